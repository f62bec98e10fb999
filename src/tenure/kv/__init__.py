"""Device memory of the KV cache."""
