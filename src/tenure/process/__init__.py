"""What the processes of one server share: the supervisor, life lines, reports, logs, counters."""
