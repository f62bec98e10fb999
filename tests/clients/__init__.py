"""Clients as they are installed, against a running server."""
