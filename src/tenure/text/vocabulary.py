"""What a loaded tokenizer consists of, whatever file it came from."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Literal

from tokenizers import Tokenizer as Backend


class Coding(Enum):
    """How an entry of the vocabulary stands for bytes."""

    BYTE_LEVEL = "byte_level"
    """Each character is one byte, in GPT-2's alphabet."""
    SENTENCEPIECE = "sentencepiece"
    """UTF-8 with ▁ for a space, and <0xAB> for the byte AB."""
    WORDPIECE = "wordpiece"
    """UTF-8; pieces that continue a word start with ##, all others with a space."""
    PLAIN = "plain"
    """UTF-8."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The parts of a tokenizer. `added_ids` are matched in text before all else; `special_ids` are among them."""

    backend: Backend
    coding: Coding
    size: int
    """Ids are below this."""
    without_token: frozenset[int]
    """Those of them that stand for nothing."""
    added_ids: frozenset[int]
    special_ids: frozenset[int]
    named_tokens: Mapping[str, str]
    """What templates call some special tokens, such as `pad_token`."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    chat_template: str | None
    truncation_side: Literal["left", "right"] = "right"


def _byte_of_character() -> Mapping[str, int]:
    """GPT-2's alphabet: printable Latin-1 characters stand for their own byte, the rest for U+0100 and up in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
    return MappingProxyType(alphabet)


BYTE_OF_CHARACTER = _byte_of_character()


def piece_bytes(piece: str, coding: Coding) -> bytes:
    """The exact bytes that one entry of the vocabulary (not an added token) contributes to a text."""
    if coding is Coding.BYTE_LEVEL:
        try:
            return bytes([BYTE_OF_CHARACTER[character] for character in piece])
        except KeyError:
            return piece.encode()
    if coding is Coding.SENTENCEPIECE:
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            try:
                return bytes([int(piece[3:5], 16)])
            except ValueError:
                return piece.encode()
        return piece.replace("▁", " ").encode()
    if coding is Coding.WORDPIECE:
        return (piece[2:] if piece.startswith("##") else f" {piece}").encode()
    return piece.encode()
