"""How a late-interaction model reads queries and documents: what sentence-transformers and PyLate write of it.

Settings of texts stand in `sentence_bert_config.json`, those of PyLate beside the prompts; the tokens that count in the
folder of a module, or again beside the prompts. What is missing means what it means to sentence-transformers' loader.
"""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tenure.checkpoints.encoder_config import EncoderConfig
from tenure.checkpoints.json_files import Raw, read_length, read_object, sensible
from tenure.checkpoints.tokens import folder_tokens, named_tokens
from tenure.errors import CallerError, ResourceError


@dataclass(frozen=True, slots=True)
class Expansion:
    """A query is lengthened by one token, again and again, behind its last special token."""

    length: int
    """Tokens of a query then, special ones included."""
    token: int
    attend: bool
    """Other tokens attend to these; they themselves attend to the others in any case."""


@dataclass(frozen=True, slots=True)
class CountedTokens:
    """Which tokens of a text are compared with those of another."""

    skipped: frozenset[int] = frozenset()
    only: frozenset[int] | None = None
    """None: all but the skipped ones."""

    @property
    def all(self) -> bool:
        return not self.skipped and self.only is None

    def __contains__(self, token: int) -> bool:
        return token not in self.skipped and (self.only is None or token in self.only)


@dataclass(frozen=True, slots=True)
class LateInteraction:
    """How the two sides of a pair are read, and which of their tokens count."""

    query_length: int | None = None
    """A longer query is cut, special tokens included; None: it may be as long as any text."""
    document_length: int | None = None
    expansion: Expansion | None = None
    counted_in_query: CountedTokens = CountedTokens()
    counted_in_document: CountedTokens = CountedTokens()

    @property
    def longest(self) -> int:
        """Most tokens of a text that has a length of its own; 0 when none has."""
        expanded = 0 if self.expansion is None else self.expansion.length
        return max(self.query_length or 0, self.document_length or 0, expanded)


_SETTINGS = ("query_length", "document_length", "query_expansion")
_PYLATE_MARKS = (
    *_SETTINGS,
    "do_query_expansion",
    "attend_to_expansion_tokens",
    "attend_to_mask_tokens",
    "query_prefix",
    "document_prefix",
    "skiplist_words",
)
"""By these a file is known for PyLate's, whose queries are lengthened unless it says otherwise."""
_PYLATE_LENGTH = 32
_PYLATE_TYPE = "ColBERT"
"""Folders with this `model_type` list no module that picks tokens, and mean one that skips punctuation."""
_STRATEGIES = ("fixed", "min")


def read_late_interaction(folder: Path, masks: Sequence[Path] | None, config: EncoderConfig) -> LateInteraction:
    """Read it for a model of this shape.

    `masks` are the folders of the modules that pick tokens; None where no modules are listed, and one is understood.
    Raises CallerError for settings that are not served, ResourceError for files that cannot be read or make no sense.
    """
    raw = read_object(folder / "config_sentence_transformers.json", required=False)
    with sensible(folder, "late interaction"):
        settings = _pylate_settings(folder, raw)
        own = read_object(folder / "sentence_bert_config.json", required=False)
        settings |= {key: own[key] for key in _SETTINGS if key in own}
        late = _counted(folder, raw, masks)
        query, document = (_within(config.window, read_length(folder, settings, key)) for key in _SETTINGS[:2])
        late = replace(late, query_length=query, document_length=document)
        asked = settings.get("query_expansion")
        if asked is None:
            return late
        late = _expanded(folder, late, asked, config)
    picked = masks is None or masks or raw.get("model_type") == _PYLATE_TYPE
    if picked or late.expansion is None or late.expansion.attend:
        return late
    # Nobody sees these tokens, and no module makes them count.
    return replace(late, expansion=None)


def _pylate_settings(folder: Path, raw: Raw) -> dict[str, Any]:
    """The settings that stand beside the prompts, under the names of sentence-transformers."""
    found = {key: raw[key] for key in _SETTINGS if key in raw and (raw[key] is not None or key == "query_expansion")}
    if "query_expansion" in found or not any(key in raw for key in _PYLATE_MARKS):
        return found
    length = read_length(folder, found, "query_length")
    if raw.get("do_query_expansion") is False:
        return found | {"query_expansion": None}
    found.pop("query_length", None)
    attend = bool(raw.get("attend_to_expansion_tokens", raw.get("attend_to_mask_tokens")))
    return found | {"query_expansion": {"strategy": "fixed", "attend": attend, "length": length or _PYLATE_LENGTH}}


def _within(window: int, length: int | None) -> int | None:
    return None if length is None else min(window, length)


def _expanded(folder: Path, late: LateInteraction, asked: Raw, config: EncoderConfig) -> LateInteraction:
    """With queries that are lengthened: to a length that is also where they are cut, or (`min`) is not."""
    strategy, attend = asked.get("strategy"), asked.get("attend", False)
    unknown = set(asked) - {"strategy", "attend", "token", "length"}
    if unknown or strategy not in _STRATEGIES or not isinstance(attend, bool):
        raise CallerError(f"{folder}: the query_expansion {asked!r} is not served (strategies fixed and min are)")
    length = read_length(folder, asked, "length")
    if length is None:
        raise ResourceError(f"{folder}: query_expansion has no length")
    if length > config.window:
        raise CallerError(f"{folder}: queries are lengthened to {length} tokens, but the model reads {config.window}")
    if late.query_length is not None and late.query_length < length:
        raise ResourceError(
            f"{folder}: a query_length of {late.query_length} is less than the {length} of query_expansion"
        )
    token = _expansion_token(folder, asked.get("token"))
    if token >= config.vocab_size:
        raise ResourceError(f"{folder}: queries are lengthened by token {token}, but the model has {config.vocab_size}")
    if token == config.first_position - 1:
        raise CallerError(f"{folder}: queries that padding lengthens are not served: RoBERTa gives it no positions")
    expansion = Expansion(length, token, attend)
    return replace(late, query_length=length if strategy == "fixed" else late.query_length, expansion=expansion)


def _expansion_token(folder: Path, named: str | None) -> int:
    """The token named, else the tokenizer's mask token, else its end token."""
    known = folder_tokens(folder)
    # What Transformers' tokenizers of these models call it by themselves.
    usual = "[MASK]" if read_object(folder / "config.json").get("model_type") == "bert" else "<mask>"
    special = {"mask_token": usual if usual in known else None} | named_tokens(folder)
    name = named or special.get("mask_token") or special.get("eos_token")
    if name is None:
        raise CallerError(f"{folder}: queries are to be lengthened, but the tokenizer names no mask token")
    if name not in known:
        raise ResourceError(f"{folder}: queries are lengthened by {name!r}, which is no token of the model")
    return known[name]


def _counted(folder: Path, raw: Raw, masks: Sequence[Path] | None) -> LateInteraction:
    """Which tokens count, by all modules that pick them."""
    pickers: list[Raw] = [read_object(mask / "config.json", required=False) for mask in masks or ()]
    if raw.get("model_type") == _PYLATE_TYPE:
        words = raw.get("skiplist_words")
        pickers.append({"skiplist_words": list(string.punctuation) if words is None else words})
    elif masks is None:
        pickers.append({"skiplist_words": raw.get("skiplist_words")})
    in_query, in_document = set[str](), set[str]()
    only: frozenset[int] | None = None
    for picker in pickers:
        tasks = picker.get("skiplist_tasks")
        tasks = ["document"] if tasks is None else [tasks] if isinstance(tasks, str) else tasks
        words = [str(word) for word in picker.get("skiplist_words") or ()]
        in_query.update(words if "query" in tasks else ())
        in_document.update(words if "document" in tasks else ())
        if kept := picker.get("keep_only_token_ids"):
            only = frozenset(map(int, kept)) if only is None else only & frozenset(map(int, kept))
    known = folder_tokens(folder) if in_query or in_document else {}
    return LateInteraction(
        counted_in_query=CountedTokens(_ids(in_query, known)),
        counted_in_document=CountedTokens(_ids(in_document, known), only),
    )


def _ids(words: set[str], known: Mapping[str, int]) -> frozenset[int]:
    """A word that is no token skips nothing."""
    return frozenset(known[word] for word in words if word in known)
