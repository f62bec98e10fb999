"""From vectors or logits of an engine to the scores of pairs, in whatever order the answers arrive.

Each object belongs to one HTTP request.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from tenure.api.common.pooling_job import Vectors
from tenure.checkpoints.late_interaction import CountedTokens
from tenure.http.errors import internal_error

Similarity = Callable[[Vectors, Vectors], float]

NO_TOKENS = -1e9
"""The score of a document none of whose tokens counts; sentence-transformers' number."""


class Scores(Protocol):
    """Takes the answers one by one, in any order; after the last one `values` has a score for each pair."""

    values: list[float]

    def take(self, index: int, vectors: Vectors) -> None: ...


class ClassScores:
    """Each item is a pair; its score is the logit of its only class."""

    def __init__(self, pairs: int) -> None:
        self.values = [0.0] * pairs

    def take(self, index: int, vectors: Vectors) -> None:
        (score,) = vectors.tolist()
        self.values[index] = score


class PairedScores:
    """Items are texts: the queries, then the documents. One query for all documents, or one for each.

    Keeps the vectors of queries with missing documents, and of documents whose query is missing.
    """

    def __init__(self, similarity: Similarity, queries: int, documents: int) -> None:
        self.values = [0.0] * documents
        self._similarity = similarity
        self._queries = queries
        self._known: dict[int, Vectors] = {}
        self._early: dict[int, list[tuple[int, Vectors]]] = {}

    @property
    def kept(self) -> int:
        """The number of items whose vectors are kept."""
        return len(self._known) + sum(map(len, self._early.values()))

    def take(self, index: int, vectors: Vectors) -> None:
        if index < self._queries:
            self._known[index] = vectors
            for document, early in self._early.pop(index, ()):
                self._score(index, document, early)
            return
        document = index - self._queries
        query = document if self._queries > 1 else 0
        if query in self._known:
            self._score(query, document, vectors)
        else:
            self._early.setdefault(query, []).append((document, vectors))

    def _score(self, query: int, document: int, vectors: Vectors) -> None:
        self.values[document] = self._similarity(self._known[query], vectors)
        if self._queries > 1:
            del self._known[query]


def sigmoid(logit: float) -> float:
    """1 / (1 + exp(-logit)), in float64 and without overflow."""
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))


def cosine(first: Vectors, second: Vectors) -> float:
    """The cosine of two vectors (width,), from -1 to 1; raises a 500 when one of them is zero."""
    length = float(np.linalg.norm(first)) * float(np.linalg.norm(second))
    if length == 0:
        raise internal_error("The model gave an embedding without length.")
    return float(np.clip(float(first @ second) / length, -1, 1))


def max_similarity(query: Vectors, document: Vectors) -> float:
    """The sum, over the query's tokens, of the largest dot product with a token of the document (MaxSim).

    Both are (tokens, width). From ColBERT (Khattab and Zaharia, 2020). A document without tokens is below all others.
    """
    if len(document) == 0:
        return NO_TOKENS
    return float((query @ document.T).max(axis=1).sum())


def counted_rows(vectors: Vectors, ids: Sequence[int], counted: CountedTokens) -> Vectors:
    """The rows of `vectors` (tokens, width) whose token id is in `counted`."""
    return vectors if counted.all else vectors[np.fromiter((token in counted for token in ids), bool, len(ids))]
