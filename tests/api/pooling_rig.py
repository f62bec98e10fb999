"""The server of `generation_rig` with a model that reads texts: a scripted engine that answers every pooling request.

The vectors are drawn from the token ids alone, so equal texts have equal vectors, on every route and in every form.
"""

from collections.abc import Callable, Sequence

import numpy as np

from tenure.checkpoints.profile import ModelProfile, Scoring
from tenure.pooling import Pooled, PoolingParams
from tenure.wire.messages import ItemOutput, Submit
from tests.api.generation_rig import STOP, ByteTokenizer, Rig

SIZE = 8
LABELS = ("no", "maybe", "yes")
EMBEDDER = ModelProfile(
    tasks=("embed", "token_embed", "score"),
    whole_texts=True,
    scoring=Scoring.BI_ENCODER,
    normalize=True,
    embedding_size=SIZE,
)
CLASSIFIER = ModelProfile(tasks=("classify", "token_classify"), whole_texts=True, labels=LABELS)
CROSS_ENCODER = ModelProfile(
    tasks=("score", "classify"), whole_texts=True, scoring=Scoring.CROSS_ENCODER, labels=("relevant",)
)
LATE_INTERACTION = ModelProfile(
    tasks=("token_embed", "score"), whole_texts=True, scoring=Scoring.LATE_INTERACTION, embedding_size=SIZE
)

Answer = Callable[[Sequence[int], PoolingParams], np.ndarray]
"""The array (rows, width) for the ids of one prompt."""


def draw(ids: Sequence[int], width: int) -> np.ndarray:
    """Numbers that depend on the ids alone: (width,)."""
    return np.random.default_rng(list(ids)).standard_normal(width).astype(np.float32)


def embed(ids: Sequence[int], params: PoolingParams) -> np.ndarray:
    """What an embedding model says: a vector for the text, or one for each token."""
    rows = [[token] for token in ids] if params.task.every_token else [ids]
    found = np.stack([draw(row, SIZE)[: params.dimensions] for row in rows])
    return found / np.linalg.norm(found, axis=1, keepdims=True) if params.activation else found


def classify(ids: Sequence[int], params: PoolingParams, labels: int = len(LABELS)) -> np.ndarray:
    """What a classifier says: a softmax of several classes, a sigmoid of one."""
    rows = [[token] for token in ids] if params.task.every_token else [ids]
    logits = np.stack([draw(row, labels) for row in rows])
    if not params.activation:
        return logits
    grown = np.exp(logits)
    return grown / grown.sum(axis=1, keepdims=True) if labels > 1 else grown / (1 + grown)


def pooled(index: int, rows: np.ndarray) -> ItemOutput:
    """The output of one item with its vectors."""
    data = Pooled(len(rows), rows.astype("<f4").tobytes())
    return ItemOutput(request=1, index=index, tokens=[], finish_reason=STOP, pooled=data)


def answers(answer: Answer) -> Callable[[Submit], list[list[ItemOutput]]]:
    """A script that answers one item per step, the last one first."""

    def script(submit: Submit) -> list[list[ItemOutput]]:
        assert submit.pooling is not None
        outputs = [[pooled(i, answer(ids, submit.pooling))] for i, ids in enumerate(submit.prompts)]
        return outputs[::-1]

    return script


def pooling_rig(profile: ModelProfile = EMBEDDER, answer: Answer = embed, *, framed: bool = True, **more) -> Rig:
    """A server with one model that reads texts. `framed`: its tokenizer puts 256 before and 257 after each text."""
    return Rig(answers(answer), profile=profile, tokenizer=ByteTokenizer(framed, framed), **more)


def framed(text: str) -> list[int]:
    """The ids of a text in such a tokenizer."""
    return [256, *text.encode(), 257]
