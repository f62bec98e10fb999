"""Where a model's files are."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class SourceKind(StrEnum):
    """The layout of a model's files."""

    GGUF = "gguf"
    """One GGUF file: weights, tokenizer and chat template together."""
    FOLDER = "folder"
    """A Hugging Face folder: config.json, tokenizer.json, *.safetensors."""


@dataclass(frozen=True, slots=True)
class ResolvedSource:
    """A model on the local disk."""

    kind: SourceKind
    path: Path
    name: str
