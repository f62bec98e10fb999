"""The engine process: I/O thread, engine server, engine loop, statistics."""
