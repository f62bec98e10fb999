"""Between processes: messages, framing, outboxes, sockets, and what signs of life mean."""
