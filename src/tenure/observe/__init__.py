"""What the server tells of itself: counters, metrics, journals of requests, logs, spans."""
