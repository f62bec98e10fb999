"""The ids and vocabulary entries of a model's tokens, read without the tokenizers library."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tenure.checkpoints.gguf import GGUFFile
from tenure.checkpoints.json_files import read_object, read_struct, sensible
from tenure.errors import CallerError, ResourceError
from tenure.source import ResolvedSource, SourceKind

_NAMED = frozenset({"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
UNUSED = 5
"""GGUF's type of the entries that fill up a vocabulary to the rows of the model."""


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]


class _Added(msgspec.Struct):
    content: str
    id: int = -1


class _TokenizerFile(msgspec.Struct):
    model: _Model
    added_tokens: list[_Added] = []


class _TokenizerConfig(msgspec.Struct):
    added_tokens_decoder: dict[int, _Added] = {}


def folder_tokens(folder: Path) -> dict[str, int]:
    """The id of each token of a model folder, those of `tokenizer_config.json` too. Raises ResourceError."""
    described = read_struct(folder / "tokenizer.json", _TokenizerFile, required=True)
    config = read_struct(folder / "tokenizer_config.json", _TokenizerConfig)
    vocabulary = described.model.vocab
    if isinstance(vocabulary, list):
        vocabulary = {token: index for index, (token, _) in enumerate(vocabulary)}
    late = {token.content: index for index, token in config.added_tokens_decoder.items()}
    return {**vocabulary, **late, **{token.content: token.id for token in described.added_tokens}}


def named_tokens(folder: Path) -> dict[str, str | None]:
    """The special tokens of a model folder by name, such as `pad_token`; None for a name that is set to null.

    Older folders have some in `special_tokens_map.json`. Raises ResourceError.
    """
    found: dict[str, str | None] = {}
    for path in (folder / "special_tokens_map.json", folder / "tokenizer_config.json"):
        with sensible(path, "special tokens"):
            raw = read_object(path, required=False)
            for name in _NAMED & raw.keys():
                token = raw[name]["content"] if isinstance(raw[name], dict) else raw[name]
                found[name] = None if token is None else str(token)
    return found


def token_ids(source: ResolvedSource) -> frozenset[int]:
    """The ids that have a token. Raises ResourceError for files that cannot be read or name none."""
    found = frozenset(_vocabulary(source).values())
    if not found:
        raise ResourceError(f"{source.path}: the tokenizer has no tokens")
    return found


def answer_ids(source: ResolvedSource, words: Sequence[str]) -> list[int]:
    """The id of each word. Raises CallerError for a word that is no single token, ResourceError for a broken file."""
    known = _vocabulary(source)
    unknown = [word for word in words if word not in known]
    if unknown:
        raise CallerError(f"{source.path}: {unknown[0]!r} is no token of the model: it cannot be the answer to a pair")
    return [known[word] for word in words]


def answer_words(source: ResolvedSource, ids: Sequence[int]) -> list[str]:
    """The word of each id. Raises ResourceError for an id that no token has."""
    words = {index: word for word, index in _vocabulary(source).items()}
    unknown = [index for index in ids if index not in words]
    if unknown:
        raise ResourceError(f"{source.path}: no token has the id {unknown[0]}")
    return [words[index] for index in ids]


def _vocabulary(source: ResolvedSource) -> dict[str, int]:
    if source.kind is SourceKind.FOLDER:
        return folder_tokens(source.path)
    with GGUFFile.open(source.path) as file:
        tokens, types = (file.metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    if not isinstance(tokens, list):
        raise ResourceError(f"{source.path}: no tokenizer.ggml.tokens")
    kinds = types if isinstance(types, list) and len(types) == len(tokens) else [None] * len(tokens)
    return {str(token): index for index, token in enumerate(tokens) if kinds[index] != UNUSED}
