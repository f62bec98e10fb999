"""Convert the messages of a request to the form that chat templates expect.

- Content becomes a string or a list of text parts, whichever the template wants; null becomes empty.
- Arguments of earlier tool calls are JSON text on the API and objects in templates.
- Null fields and an empty `tool_calls` are left out, since templates test whether the key is there.
- Earlier reasoning is given under both names that templates use, `reasoning` and `reasoning_content`.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec
from jinja2 import nodes

from tenure.errors import CallerError

Message: TypeAlias = Mapping[str, Any]

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


class ContentFormat(StrEnum):
    """The form of message content that a template expects."""

    STRING = "string"
    OPENAI = "openai"
    """A list of {"type": "text", "text": ...}."""


def wanted_format(template: nodes.Template) -> ContentFormat:
    """OPENAI if the template loops over the content of messages, else STRING.

    Followed are `message.content` and `message["content"]`, variables set from them, and macro parameters that are
    called `content`.
    """
    names = {
        parameter.name
        for macro in template.find_all(nodes.Macro)
        for parameter in macro.args
        if "content" in parameter.name
    }
    for assignment in template.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, names):
            names.add(assignment.target.name)
    loops = template.find_all(nodes.For)
    return ContentFormat.OPENAI if any(_is_content(loop.iter, names) for loop in loops) else ContentFormat.STRING


def tests_for_string(template: nodes.Template) -> bool:
    """Whether the template has an `is string` test, and so takes strings as well as lists."""
    return any(test.name == "string" for test in template.find_all(nodes.Test))


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    while isinstance(node, nodes.Filter):
        node = node.node
    if isinstance(node, nodes.Name):
        return node.name in names
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content"


def prepare(messages: Sequence[Message], wanted: ContentFormat, wrap_strings: bool) -> list[dict[str, Any]]:
    """Return new messages for the template; with OPENAI and `wrap_strings` strings become lists. CallerError."""
    prepared = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        row = {key: value for key, value in message.items() if value is not None}
        row["content"] = _content(message.get("content"), wanted, wrap_strings, where)
        if calls := row.pop("tool_calls", None):
            row["tool_calls"] = [_tool_call(call, where) for call in calls]
        reasoning = message.get("reasoning") or message.get("reasoning_content")
        if reasoning:
            row["reasoning"] = row["reasoning_content"] = reasoning
        prepared.append(row)
    return prepared


def message_text(message: Message, where: str = "message") -> str:
    """The text of a message; its parts are joined by newlines. Raises CallerError for parts that are not text."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_part_texts(content, where))


def _content(content: Any, wanted: ContentFormat, wrap_strings: bool, where: str) -> str | list[dict[str, str]]:
    if content is None:
        content = ""
    if isinstance(content, str):
        wrap = wanted is ContentFormat.OPENAI and wrap_strings
        return [{"type": "text", "text": content}] if wrap else content
    texts = _part_texts(content, where)
    if wanted is ContentFormat.OPENAI:
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(texts)


def _part_texts(content: Any, where: str) -> list[str]:
    if not isinstance(content, list):
        raise CallerError(f"{where}.content must be a string or a list of parts")
    return [_text_of(part, f"{where}.content[{index}]") for index, part in enumerate(content)]


def _text_of(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if key is None:
        raise CallerError(f"{where}: this model takes text only, not a part of type {str(kind)[:40]!r}")
    text = part.get(key)
    if not isinstance(text, str):
        raise CallerError(f"{where}.{key} must be a string")
    return text


def _tool_call(call: Any, where: str) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise CallerError(f"{where}.tool_calls must hold objects with a function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments or "{}")
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            raise CallerError(f"{where}.tool_calls: the arguments are not JSON") from None
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def leave_open(messages: list[dict[str, Any]], marker: str) -> None:
    """Append `marker` to the last text of the last message, which the answer continues. CallerError without text."""
    content = messages[-1]["content"] if messages else None
    if isinstance(content, str):
        messages[-1]["content"] = content + marker
    elif content:
        messages[-1]["content"] = [*content[:-1], {"type": "text", "text": content[-1]["text"] + marker}]
    else:
        raise CallerError("there is no final message with text to continue")
