"""The tokens of a model folder, read without the library that tokenises."""

from pathlib import Path

import msgspec

from tenure.checkpoints.json_files import read_object, sensible
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
    """The id of each token of a model folder, those of `tokenizer_config.json` too. Raises ResourceError."""
    path = folder / "tokenizer.json"
    try:
        described = msgspec.json.decode(path.read_bytes(), type=_TokenizerFile)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ResourceError(f"{path}: {error}") from error
    vocabulary = described.model.vocab
    if isinstance(vocabulary, list):
        vocabulary = {token: index for index, (token, _) in enumerate(vocabulary)}
    path = folder / "tokenizer_config.json"
    with sensible(path, "tokens"):
        late = (read_object(path, required=False).get("added_tokens_decoder") or {}).items()
        added = {str(token["content"]): int(index) for index, token in late}
    return {**vocabulary, **added, **{token.content: token.id for token in described.added_tokens}}
