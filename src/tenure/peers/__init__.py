"""Engines of one cluster among themselves: its secret, tickets as text, authenticated connections."""
