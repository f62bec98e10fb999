"""OpenAI's routes, with vLLM's additions: chat, completions, embeddings, pooling, classification, tokens."""
