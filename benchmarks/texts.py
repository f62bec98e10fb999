"""Texts of an exact length, none like another, for a model with a vocabulary of word pieces."""

import random
from pathlib import Path

from tenure.source import resolve_source


class Texts:
    """Draws texts from the whole words of MiniLM's vocabulary, so that each word is one token.

    The special tokens around a text (two) come on top.
    """

    def __init__(self, seed: int, folder: Path | None = None) -> None:
        lines = ((folder or resolve_source("minilm").path) / "vocab.txt").read_text(encoding="utf-8").splitlines()
        self._words = [line for line in lines if len(line) > 2 and line.isascii() and line.isalpha()]
        self._random = random.Random(seed)

    def one(self, words: int) -> str:
        return " ".join(self._random.choices(self._words, k=words))

    def many(self, count: int, words: int) -> list[str]:
        return [self.one(words) for _ in range(count)]
