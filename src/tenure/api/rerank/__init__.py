"""Score and rerank routes, in Jina's, Cohere's and vLLM's shapes."""
