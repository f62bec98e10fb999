"""The tokens of a model folder, read without the library that tokenises."""

from pathlib import Path

import msgspec

from tenure.errors import ResourceError


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]]


class _Added(msgspec.Struct):
    id: int
    content: str


class _TokenizerFile(msgspec.Struct):
    model: _Model
    added_tokens: list[_Added] = []


def folder_tokens(folder: Path) -> dict[str, int]:
    """The id of each token of a model folder. Raises ResourceError for a `tokenizer.json` that cannot be read."""
    path = folder / "tokenizer.json"
    try:
        described = msgspec.json.decode(path.read_bytes(), type=_TokenizerFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ResourceError(f"{path}: {error}") from error
    vocabulary = described.model.vocab
    if isinstance(vocabulary, list):
        vocabulary = {token: index for index, (token, _) in enumerate(vocabulary)}
    return {**vocabulary, **{token.content: token.id for token in described.added_tokens}}
