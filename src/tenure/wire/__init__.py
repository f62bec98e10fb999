"""Between API processes and engines: messages, framing, outboxes, sockets, and what signs of life mean."""
