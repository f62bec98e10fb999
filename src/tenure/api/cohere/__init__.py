"""Cohere's embed routes."""
