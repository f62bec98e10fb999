"""What a decoder's final hidden states are turned into, chosen when it is loaded."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenHead:
    """Logits of the next token: a column for each id up to the last of `tokens`, those of no token out of reach."""

    tokens: frozenset[int] | None = None
    """The ids that have a token; None: all rows of the output weights have one."""


@dataclass(frozen=True, slots=True)
class LabelHead:
    """Logits of `count` classes: the weight `score.weight` of a sequence classifier."""

    count: int


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """One logit: by how much that of the next token `yes` exceeds that of `no`.

    Its sigmoid is the softmax over the two, taken at `yes`. Two rows of the output weights are all that it needs.
    """

    no: int
    yes: int


OutputHead = TokenHead | LabelHead | AnswerHead | None
"""None for a model that only embeds; its checkpoint need not have output weights."""
