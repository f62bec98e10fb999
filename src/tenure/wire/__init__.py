"""Messages and framing between API processes and engines."""
