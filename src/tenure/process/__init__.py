"""What the processes of one server share: life lines, reports, counters, logs, turns, descriptors, ended requests."""
