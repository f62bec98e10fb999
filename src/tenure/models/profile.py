"""What a model can do and how it is to be used, read from its files: engines and API processes both go by it.

No torch here, and no weights are touched.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Scoring(StrEnum):
    """How a model scores a pair of texts."""

    CROSS_ENCODER = "cross_encoder"
    """It reads both together; the score is its only class."""
    BI_ENCODER = "bi_encoder"
    """It embeds each; the score is the cosine of the two."""
    LATE_INTERACTION = "late_interaction"
    """It embeds each token; the score is the sum, over the query's tokens, of the best match (MaxSim)."""


class PoolingMode(StrEnum):
    """Which hidden states make the one vector of a text."""

    CLS = "cls"
    MEAN = "mean"
    MAX = "max"
    LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProfile:
    """See the module's docstring."""

    tasks: tuple[str, ...]
    """What routes may ask for, the model's own first: `generate`, or `score` and the values of `PoolingTask`."""
    whole_texts: bool = False
    """An encoder: every token sees the whole text, so that it must be read in one piece."""
    scoring: Scoring | None = None
    pooling: PoolingMode = PoolingMode.MEAN
    normalize: bool = False
    """Embeddings have length 1, unless a request asks for them as they are."""
    embedding_size: int = 0
    """Numbers in an embedding; 0 for a model that gives none."""
    dimensions: tuple[int, ...] = ()
    """The shorter sizes that it was trained for (Matryoshka)."""
    max_length: int | None = None
    """Tokens of a text, special ones included, as its authors recommend; None leaves it to the model's window."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """By name, what goes in front of a text for a certain use, such as `query`."""
    default_prompt: str | None = None
    """The name of the one that goes in front of every text that names none."""
    labels: tuple[str, ...] = ()
    """Of its classes, by number."""
    answer_tokens: tuple[str, str] | None = None
    """A decoder that answers whether a document fits a query: its words for no and yes."""

    @property
    def generates(self) -> bool:
        return "generate" in self.tasks
