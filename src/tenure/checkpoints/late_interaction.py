"""The settings of late-interaction models for queries and documents, as sentence-transformers and PyLate save them.

Lengths are read from `sentence_bert_config.json`, or in PyLate's form from `config_sentence_transformers.json`; masked
tokens from the module's folder, or again from that file. Defaults are those of sentence-transformers' loader.
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
    """Query expansion: one token is appended repeatedly after the query's last special token."""

    length: int
    """Tokens of an expanded query, special ones included."""
    token: int
    attend: bool
    """Whether the other tokens attend to the appended ones; these attend to all others in any case."""


@dataclass(frozen=True, slots=True)
class CountedTokens:
    """The tokens of a text that take part in the comparison (MaxSim)."""

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
    """Lengths, expansion and counted tokens of queries and documents."""

    query_length: int | None = None
    """Most tokens of a query, special ones included; a longer one is truncated. None: the model's window."""
    document_length: int | None = None
    expansion: Expansion | None = None
    counted_in_query: CountedTokens = CountedTokens()
    counted_in_document: CountedTokens = CountedTokens()

    @property
    def longest(self) -> int:
        """The greater of the two lengths; 0 when neither is set."""
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
"""A file with one of these keys is PyLate's, where query expansion is on by default."""
_PYLATE_LENGTH = 32
_PYLATE_TYPE = "ColBERT"
"""Folders with this `model_type` list no module that picks tokens, and mean one that skips punctuation."""
_STRATEGIES = ("fixed", "min")


def read_late_interaction(folder: Path, masks: Sequence[Path] | None, config: EncoderConfig) -> LateInteraction:
    """Read the settings of a model in `folder`.

    `masks` are the folders of the token-mask modules; None without a `modules.json`, where one mask is implied.
    Raises CallerError for settings that are not served, ResourceError for files that cannot be read or make no sense.
    """
    raw = read_object(folder / "config_sentence_transformers.json", required=False)
    with sensible(folder, "late interaction"):
        settings = _pylate_settings(folder, raw)
        own = read_object(folder / "sentence_bert_config.json", required=False)
        settings |= {key: own[key] for key in _SETTINGS if key in own}
        late = _counted(folder, raw, masks)
        lengths = (read_length(folder, settings, key) for key in _SETTINGS[:2])
        query, document = (length and min(config.window, length) for length in lengths)
        late = replace(late, query_length=query, document_length=document)
        asked = settings.get("query_expansion")
        if asked is None:
            return late
        late = _expanded(folder, late, asked, config)
    picked = masks is None or masks or raw.get("model_type") == _PYLATE_TYPE
    if picked or late.expansion is None or late.expansion.attend:
        return late
    # Without a module that counts them, expansion tokens that no token attends to have no effect.
    return replace(late, expansion=None)


def _pylate_settings(folder: Path, raw: Raw) -> dict[str, Any]:
    """PyLate's settings from `config_sentence_transformers.json`, under the names of sentence-transformers."""
    found = {key: raw[key] for key in _SETTINGS if key in raw and (raw[key] is not None or key == "query_expansion")}
    if "query_expansion" in found or not any(key in raw for key in _PYLATE_MARKS):
        return found
    length = read_length(folder, found, "query_length")
    if raw.get("do_query_expansion") is False:
        return found | {"query_expansion": None}
    found.pop("query_length", None)
    attend = bool(raw.get("attend_to_expansion_tokens", raw.get("attend_to_mask_tokens")))
    return found | {"query_expansion": {"strategy": "fixed", "attend": attend, "length": length or _PYLATE_LENGTH}}


def _expanded(folder: Path, late: LateInteraction, asked: Raw, config: EncoderConfig) -> LateInteraction:
    """`late` with query expansion. Its length also truncates queries, unless the strategy is `min`."""
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
    """The id of the token `named`, else of the tokenizer's mask token, else of its end token."""
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
    """The counted tokens of both sides, from all token-mask modules."""
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
    """The ids of those words that are tokens."""
    return frozenset(known[word] for word in words if word in known)
