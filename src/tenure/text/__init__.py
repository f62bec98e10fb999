"""Tokenizers, chat templates, detokenizing, stop strings."""
