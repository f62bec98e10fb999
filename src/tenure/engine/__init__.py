"""The engine process: I/O thread, engine loop, runner, sampler."""
