"""The prompt of decoders that judge whether a document fits a query: the published form of Qwen3-Reranker.

A system turn says what to judge, a user turn holds the texts, and the answer, `yes` or `no`, is what comes right after
an empty piece of thought. The turns are ChatML, which such models are trained on.
"""

from typing import Any

DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"

_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)


def reranker_prompt(query: str, document: str, instruction: str | None = None, /, **_: Any) -> str:
    """What the model reads, special tokens included. The texts stand in it as they are."""
    instruction = DEFAULT_INSTRUCTION if instruction is None else instruction
    return (
        f"<|im_start|>system\n{_SYSTEM}<|im_end|>\n"
        f"<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
