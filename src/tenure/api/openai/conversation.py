"""The conversation of a chat body: its checks, and its rendering by the model's chat template."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from tenure.api.openai.request_types import ChatMessage, ChatRequest
from tenure.errors import CallerError
from tenure.http.errors import invalid_request, unsupported
from tenure.prompts.chat_messages import message_text
from tenure.prompts.text_model import TextModel

_FIELDS = (
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "tools",
)


class Conversation(Protocol):
    """A body that may have `messages`, and some of `_FIELDS`."""

    @property
    def messages(self) -> Sequence[ChatMessage] | None: ...


def check_conversation(request: ChatRequest) -> None:
    """Raise a 400 for an empty conversation or an unsupported field; `render` checks the messages' parts."""
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
    """Return the prompt that the model's chat template renders. Raises a 400 for an error of the template.

    `instead` is the advice in the 400 for a model without a chat template.
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


def render_messages(request: Conversation, model: TextModel, instead: str, generates: bool) -> str:
    """Return the prompt of the messages of a route that is not for chats; `generates` adds the generation prompt.

    Raises a 400, as `check_conversation` and `render` do.
    """
    given: dict[str, Any] = {name: getattr(request, name, None) for name in ("messages", *_FIELDS)}
    chat = ChatRequest(**{**given, "add_generation_prompt": generates})
    check_conversation(chat)
    return render(chat, model, instead)


def refuse_conversation_fields(request: Conversation) -> None:
    """Raise a 400 for a field that says how messages are rendered, where there are none."""
    for name in _FIELDS:
        if getattr(request, name, None):
            raise invalid_request(f"`{name}` is for conversations; it needs `messages`.", name)


def response_role(request: ChatRequest) -> str:
    """Return the answer's role: `assistant`, or the last message's role without a generation prompt."""
    return "assistant" if request.add_generation_prompt is not False else request.messages[-1].role


def echoed_text(request: ChatRequest) -> str:
    """Return the last message's text when the answer goes on in the same role, else nothing.

    The conversation has been rendered already, so its parts are all text.
    """
    last = request.messages[-1]
    return message_text(_as_mapping(last)) if last.role == response_role(request) else ""


def _as_mapping(message: ChatMessage) -> dict[str, Any]:
    """Return the message as plain mappings and lists, without unset fields."""
    turn: dict[str, Any] = {"content": None, **msgspec.to_builtins(message)}
    turn["tool_calls"] = [{"type": "function", **call} for call in turn.get("tool_calls", ())]
    return turn
