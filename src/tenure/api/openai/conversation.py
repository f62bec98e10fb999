"""The conversation of a chat body: its rules, and its way through the model's chat template."""

from typing import Any

import msgspec

from tenure.api.openai.request_types import ChatMessage, ChatRequest
from tenure.errors import CallerError
from tenure.http.errors import invalid_request, unsupported
from tenure.prompts.chat_messages import message_text
from tenure.prompts.text_model import TextModel


def check_conversation(request: ChatRequest) -> None:
    """Raise a 400 for a conversation that is none, or that asks for what is not served; `render` checks its parts."""
    if not request.messages:
        raise invalid_request("`messages` must not be empty.", "messages")
    if request.tools is not None and request.tool_choice != "none":
        if not request.tools:
            raise invalid_request("`tools` must not be empty.", "tools")
        raise unsupported("tools")
    if request.tool_choice not in (None, "none"):
        raise invalid_request("`tool_choice` needs `tools`.", "tool_choice")
    if request.chat_template is not None:
        raise invalid_request("`chat_template` is refused: this server uses its own.", "chat_template")
    for name in ("mm_processor_kwargs", "media_io_kwargs"):
        if getattr(request, name):
            raise unsupported(name)
    if request.continue_final_message and request.add_generation_prompt is not False:
        message = "`continue_final_message` needs `add_generation_prompt` to be false."
        raise invalid_request(message, "continue_final_message")


def render(request: ChatRequest, model: TextModel, instead: str) -> str:
    """Return the conversation as the model's template writes it; a template's refusal is a 400.

    `instead` tells what to do with a model that has none.
    """
    if model.template is None:
        raise invalid_request(f"The model {model.name} has no chat template: {instead}.", "messages")
    variables: dict[str, Any] = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
    try:
        return model.template.render(
            [_as_mapping(message) for message in request.messages],
            add_generation_prompt=request.add_generation_prompt is not False,
            continue_final_message=bool(request.continue_final_message),
            documents=request.documents,
            extra=variables,
        )
    except CallerError as error:
        raise invalid_request(f"The conversation cannot be rendered: {error}.", "messages") from None


def response_role(request: ChatRequest) -> str:
    """Return who speaks in the answer: the assistant, or the last speaker when no new turn is opened."""
    return "assistant" if request.add_generation_prompt is not False else request.messages[-1].role


def echoed_text(request: ChatRequest) -> str:
    """Return the last message's text when the answer goes on in the same role, else nothing.

    The conversation has been rendered already, so its parts are all text.
    """
    last = request.messages[-1]
    return message_text(_as_mapping(last)) if last.role == response_role(request) else ""


def _as_mapping(message: ChatMessage) -> dict[str, Any]:
    """What the text side reads: plain mappings and lists, without what is unset."""
    turn: dict[str, Any] = {"content": None, **msgspec.to_builtins(message)}
    turn["tool_calls"] = [{"type": "function", **call} for call in turn.get("tool_calls", ())]
    return turn
