"""Model definitions and the loading of their weights."""
