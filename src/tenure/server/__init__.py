"""The supervisor of one server, and the processes that it keeps."""
