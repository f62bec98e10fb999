"""The ids of a model's answer words, looked up in its vocabulary as they are written there."""

from collections.abc import Sequence
from pathlib import Path

from tenure.checkpoints.folder_tokens import folder_tokens
from tenure.checkpoints.gguf import GGUFFile
from tenure.errors import CallerError, ResourceError
from tenure.source import ResolvedSource, SourceKind


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
    return _gguf_vocabulary(source.path) if source.kind is SourceKind.GGUF else folder_tokens(source.path)


def _gguf_vocabulary(path: Path) -> dict[str, int]:
    with GGUFFile.open(path) as file:
        tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Sequence) or isinstance(tokens, str):
        raise ResourceError(f"{path}: no tokenizer.ggml.tokens")
    return {str(token): index for index, token in enumerate(tokens)}
