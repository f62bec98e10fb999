"""Implementations behind the seams of `layers`."""
