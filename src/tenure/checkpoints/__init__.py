"""What a model's files say, read without torch: GGUF, configurations, modules, tokens."""
