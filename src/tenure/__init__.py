"""Tenure: an inference server in which every unit of work has a named holder, and ends when its holder does."""

__version__ = "0.1.0"
