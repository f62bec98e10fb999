"""What the processes of one server share: reports, settings of the operating system, worker threads, ended requests."""
