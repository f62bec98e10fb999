"""Reply types that all API families share."""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

StopReason = str | int | None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Each prompt counts once, however many choices it has; completion tokens are those of all choices."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: UnsetType | None = UNSET


class ListReply(msgspec.Struct, frozen=True, kw_only=True):
    """Base of replies with one entry per input; subclasses add `data`."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    usage: Usage


@dataclass(frozen=True)
class ReplyHead:
    """`created` is in Unix seconds."""

    id: str
    created: int
    model: str
    fingerprint: str
    """The `system_fingerprint`: it changes with the server's version."""

    def fields(self) -> dict[str, Any]:
        """The fields with which every reply begins."""
        return {"id": self.id, "created": self.created, "model": self.model}


def reading_usage(tokens: int) -> Usage:
    """The usage of a pooling request: prompt tokens alone."""
    return Usage(prompt_tokens=tokens, total_tokens=tokens, completion_tokens=0)
