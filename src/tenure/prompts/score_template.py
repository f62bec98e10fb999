"""The prompt of a reranker whose chat template has places for a query and a document: messages of roles of these names.

Rerankers of sentence-transformers are saved so. A system message, where there is one, is the instruction; templates
made for other servers look for it under that name.
"""

from collections.abc import Callable
from typing import Any

from tenure.errors import CallerError
from tenure.prompts.chat_template import ChatTemplate

_PROBES = ("the probed query", "the probed document")


def template_prompt(template: ChatTemplate) -> Callable[..., str] | None:
    """The `ScorePrompt` of this template; None for one that does not show both texts.

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
