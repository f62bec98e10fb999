"""The prompts of rerankers: of a chat template made for them, or the published form of Qwen3-Reranker (ChatML).

In the published form the system turn gives the task, the user turn the texts, and the answer, `yes` or `no`, follows an
empty block of reasoning. Rerankers of sentence-transformers are saved with a chat template that takes messages of the
roles `query` and `document`, and the instruction as a system message or as a variable.
"""

from collections.abc import Callable
from typing import Any

from tenure.errors import CallerError
from tenure.prompts.chat_template import ChatTemplate

DEFAULT_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"

_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
_PROBES = ("the probed query", "the probed document")


def reranker_prompt(query: str, document: str, instruction: str | None = None, /, **_: Any) -> str:
    """The published prompt, special tokens included; the texts are not escaped."""
    instruction = DEFAULT_INSTRUCTION if instruction is None else instruction
    return (
        f"<|im_start|>system\n{_SYSTEM}<|im_end|>\n"
        f"<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def template_prompt(template: ChatTemplate) -> Callable[..., str] | None:
    """The `ScorePrompt` that renders `template`; None if its output lacks one of the two texts.

    It raises CallerError for texts that the template refuses.
    """

    def write(query: str, document: str, instruction: str | None, /, **names: Any) -> str:
        asked = [] if instruction is None else [{"role": "system", "content": instruction}]
        messages = [*asked, {"role": "query", "content": query}, {"role": "document", "content": document}]
        named = names if instruction is None else {**names, "instruction": instruction}
        return template.render(messages, add_generation_prompt=False, extra=named)

    try:
        shown = write(*_PROBES, None)
    except CallerError:
        return None
    return write if all(probe in shown for probe in _PROBES) else None
