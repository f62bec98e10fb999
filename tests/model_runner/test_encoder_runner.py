"""Whole texts through the runner: each gets its own answer, and one that is not finite fails alone."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from tenure.core.plan import Row, RowResult, Start, StepPlan
from tenure.errors import InternalError
from tenure.layers.text_batch import TextBatch
from tenure.model_runner.encoder_runner import EncoderRunner
from tenure.model_runner.pooling_head import NO_LENGTH, NOT_FINITE
from tenure.outcomes import Outcome
from tenure.pooling import Pooled, PoolingParams, PoolingTask
from tenure.sampling import SamplingParams

BAD_TOKEN = 99
EMBED = PoolingParams(task=PoolingTask.EMBED)
READ_ONLY = SamplingParams(max_tokens=0)


class CountingEncoder:
    """Embeds a text as (sum of its tokens, how many are of the second text); its tokens as themselves.

    Of texts with tokens that none attends to it notes the lengths, and how many these are.
    """

    dtype = torch.float32
    device = torch.device("cpu")
    vocab_size = 100
    window = 64

    def __init__(self) -> None:
        self.shortened: list[tuple[int, int]] = []

    def pool(self, batch: TextBatch, params: Sequence[PoolingParams]) -> list[torch.Tensor]:
        self.shortened += [(texts.length, texts.unattended) for texts in batch.alike if texts.unattended]
        answers = []
        for first, length, wanted in zip(batch.starts_S, batch.lengths_S, params, strict=True):
            tokens = batch.token_ids_T[first : first + length].float()
            if wanted.task is PoolingTask.TOKEN_EMBED:
                answers.append(tokens[:, None])
                continue
            second = batch.token_types_T[first : first + length].sum().float()
            answer = torch.stack((tokens.sum(), second))[None]
            answers.append(answer * float("nan") if BAD_TOKEN in tokens.tolist() else answer)
        return answers


def start(slot: int, tokens: list[int], pooling: PoolingParams | None = EMBED, segment: int = 0) -> Start:
    return Start(slot, 1, tokens, len(tokens), 0, READ_ONLY, pooling, segment)


def plan(number: int, *starts: Start) -> StepPlan:
    return StepPlan(number, list(starts), [Row(s.slot, s.generation, 0, len(s.tokens), [], False) for s in starts])


def run(*starts: Start) -> list[RowResult]:
    runner = EncoderRunner(CountingEncoder())
    runner.launch(plan(7, *starts))
    result = runner.land()
    assert result.number == 7
    assert [(row.slot, row.generation) for row in result.rows] == [(s.slot, s.generation) for s in starts]
    return result.rows


def numbers(pooled: Pooled | None) -> list[list[float]]:
    assert pooled is not None
    return np.frombuffer(pooled.data, "<f4").reshape(pooled.rows, -1).tolist()


def test_each_text_gets_its_own_answer_whatever_its_length() -> None:
    rows = run(start(3, [1, 2, 3, 4]), start(0, [5]), start(1, [6, 7]))
    assert [numbers(row.pooled) for row in rows] == [[[10, 0]], [[5, 0]], [[13, 0]]]


def test_the_second_text_of_a_pair_is_told_apart() -> None:
    rows = run(start(0, [1, 2, 3, 4, 5], segment=2), start(1, [1, 2, 3]))
    assert [numbers(row.pooled) for row in rows] == [[[15, 3]], [[6, 0]]]


def test_the_model_is_told_which_tokens_none_attends_to() -> None:
    encoder = CountingEncoder()
    lengthened = Start(1, 1, [1, 2, 3, 4], 4, 0, READ_ONLY, EMBED, unattended=3)
    EncoderRunner(encoder).launch(plan(1, start(0, [1, 2, 3, 4]), lengthened))
    assert encoder.shortened == [(4, 3)]


def test_an_embedding_of_zeros_fails_alone_and_zeros_for_a_token_do_not() -> None:
    rows = run(start(0, [0, 0]), start(1, [1]), start(2, [0, 1], PoolingParams(task=PoolingTask.TOKEN_EMBED)))
    assert (rows[0].error, rows[0].pooled) == (NO_LENGTH, None)
    assert [numbers(row.pooled) for row in rows[1:]] == [[[1, 0]], [[0], [1]]]


def test_one_vector_for_each_token_beside_one_for_a_text() -> None:
    rows = run(start(0, [8, 9], PoolingParams(task=PoolingTask.TOKEN_EMBED)), start(1, [8, 9]))
    assert [numbers(row.pooled) for row in rows] == [[[8], [9]], [[17, 0]]]


def test_a_text_that_is_not_finite_fails_alone_and_has_no_vector() -> None:
    good, bad, other = run(start(0, [1]), start(1, [2, BAD_TOKEN]), start(2, [3]))
    assert (bad.error, bad.outcome, bad.pooled) == (NOT_FINITE, Outcome.ENGINE_ERROR, None)
    assert [numbers(row.pooled) for row in (good, other)] == [[[1, 0]], [[3, 0]]]


def test_two_steps_may_be_in_flight_and_land_in_order() -> None:
    runner = EncoderRunner(CountingEncoder())
    runner.launch(plan(1, start(0, [1])))
    runner.launch(plan(2, start(1, [2])))
    with pytest.raises(InternalError, match="had not landed"):
        runner.launch(plan(3, start(2, [3])))
    assert [runner.land().number, runner.land().number] == [1, 2]
    with pytest.raises(InternalError, match="no step is in flight"):
        runner.land()


@pytest.mark.parametrize(
    "broken",
    [
        StepPlan(1, [start(0, [1, 2])], [Row(0, 1, 0, 1, [], False)]),
        StepPlan(1, [start(0, [1, 2])], [Row(0, 2, 0, 2, [], False)]),
        plan(1, start(0, [1], pooling=None)),
    ],
    ids=["part of a text", "another occupant", "a text to be continued"],
)
def test_what_makes_no_sense_raises(broken: StepPlan) -> None:
    with pytest.raises(InternalError):
        EncoderRunner(CountingEncoder()).launch(broken)
