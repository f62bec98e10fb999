"""The supervisor: processes, the listening socket, shared counters."""
