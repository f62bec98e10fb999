"""The texts of a score or rerank body: both sides of the pairs, and the text of each document."""

from collections.abc import Sequence
from typing import Any

import msgspec

from tenure.api.rerank.types import Entry, ScoreRequest, Side
from tenure.http.errors import invalid_request
from tenure.prompts.chat_messages import message_text

SPELLINGS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))


def read_sides(request: ScoreRequest, most: int) -> tuple[tuple[str, str], list[str], list[str]]:
    """The field names and the texts of both sides: one to one, one to many, or n to n. Raises a 400."""
    names = _spelling(request)
    first, second = (
        [entry_text(entry, position) for position, entry in listed(getattr(request, name), name, most)]
        for name in names
    )
    if len(first) not in (1, len(second)):
        message = f"`{names[0]}` has {len(first)} texts and `{names[1]}` {len(second)}: give one, or as many."
        raise invalid_request(message, names[0])
    return names, first, second


def _spelling(request: ScoreRequest) -> tuple[str, str]:
    given = {name for pair in SPELLINGS for name in pair if getattr(request, name) is not None}
    for pair in SPELLINGS:
        if given == set(pair):
            return pair
    known = ", or ".join(f"`{first}` and `{second}`" for first, second in SPELLINGS)
    raise invalid_request(f"The texts must be given as {known}.", min(given, default=None))


def listed(side: Side | None, name: str, most: int) -> list[tuple[str, Entry]]:
    """The entries of a side, with the name of each in messages. Raises a 400 for none and for too many."""
    if side is None:
        raise invalid_request(f"`{name}` is required.", name)
    if not isinstance(side, list):
        return [(name, side)]
    if not side:
        raise invalid_request(f"`{name}` must not be empty.", name)
    if len(side) > most:
        raise invalid_request(f"`{name}` takes at most {most} texts.", name)
    return [(f"{name}[{position}]", entry) for position, entry in enumerate(side)]


def entry_text(entry: Entry, name: str, rank_fields: Sequence[str] = ()) -> str:
    """The text of an entry: its own, the fields that are asked for, its `text`, or the texts in its `content`."""
    if isinstance(entry, str):
        return entry
    found = [(field, entry[field]) for field in rank_fields if entry.get(field) is not None]
    if found:
        return "\n".join(f"{field}: {_plain(value)}" for field, value in found)
    text = entry.get("text")
    if text is None and entry.get("content") is not None:
        return message_text(entry, name)
    if isinstance(text, str):
        return text
    if text is not None:
        raise invalid_request(f"`{name}.text` must be a string.", name)
    wanted = f" nor any of the fields {', '.join(rank_fields)}" if rank_fields else ""
    raise invalid_request(f"`{name}` has no `text`{wanted}.", name)


def shown_document(entry: Entry, text: str) -> dict[str, Any]:
    """The `document` of a result: its text and all other keys of the request's entry."""
    if isinstance(entry, str):
        return {"text": text}
    return {**entry, "text": text} if entry.get("text") is None else entry


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
