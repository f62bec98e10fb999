"""Tokenizers, detokenizing, stop strings."""
