"""The engine process: I/O thread, engine loop, executor, sampler."""
