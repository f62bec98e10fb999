"""What a round of `benchmarks.pooling` asks for."""

import json
import sys
from collections.abc import Callable
from enum import StrEnum

import msgspec

DOCUMENTS = 31


class Kind(StrEnum):
    RERANK = "rerank"
    EMBED = "embed"


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """`clients` ask again and again until `seconds` have passed; the round ends with the last answer."""

    kind: Kind
    clients: int
    words: int
    """Of each document, or input."""
    batch: int = 1
    """Inputs of a request."""
    number: int = 0
    seconds: float = 4.0

    @property
    def title(self) -> str:
        if self.kind is Kind.RERANK:
            return f"rerank, {DOCUMENTS} x {self.words} words, {self.clients} clients"
        return f"embed, {self.batch} x {self.words} words, {self.clients} clients"

    @property
    def unit(self) -> str:
        return "pairs/s" if self.kind is Kind.RERANK else "inputs/s"


def seed_of(given: Round, client: int) -> int:
    """Of the texts of one client in one round; the same for every peer."""
    return (given.number * 1000 + given.words) * 1000 + client


def serve_rounds(measure: Callable[[Round, int], float]) -> None:
    """As a worker process: answer each line of stdin, a round and how many threads may call, with its rate."""
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        given, callers = msgspec.json.decode(line, type=tuple[Round, int])
        print(json.dumps(measure(given, callers)), flush=True)
