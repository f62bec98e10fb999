"""A decoder that reads and does not write: what its runner answers, to which row, and what goes wrong alone."""

import numpy as np
import pytest
import torch

from tenure.model_runner.pooling_head import NOT_FINITE, PoolingHead
from tenure.outcomes import Outcome
from tenure.pooling import PoolingParams, PoolingTask
from tests.model_runner.history_model import TABLE, VOCABULARY, Bench, HistoryModel, key_of, params, row, start

PROMPT = [5, 9, 2, 7, 1, 3]
READS = params(max_tokens=0)


def make_bench(task: PoolingTask = PoolingTask.EMBED, *, normalize: bool = False, width: int = VOCABULARY) -> Bench:
    model = Narrow(width)
    return Bench(model=model, head=PoolingHead(model, task, normalize))


class Narrow(HistoryModel):
    """Gives the first `width` of its numbers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width

    def logits(self, hidden_RD):
        return super().logits(hidden_RD)[:, : self._width]


def wanted(task: PoolingTask = PoolingTask.EMBED, **fields) -> PoolingParams:
    return PoolingParams(task=task, **fields)


def text(slot: int, tokens: list[int], pooling: PoolingParams | None = None):
    return start(slot, tokens, sampling=READS, pooling=pooling or wanted())


def reads(slot: int, first: int, count: int, blocks: list[int] | None = None):
    return row(slot, first, count, blocks, samples=False)


def vector(result) -> np.ndarray:
    assert result.error is None
    assert result.pooled.rows == 1
    return np.frombuffer(result.pooled.data, "<f4")


def state_of(tokens: list[int]) -> np.ndarray:
    return TABLE[key_of(tokens)].numpy()


def test_the_answer_is_of_the_last_token_and_comes_with_the_row_that_ends_the_prompt():
    bench = make_bench()
    first = bench.step([text(0, PROMPT)], [reads(0, 0, 4, [8])])
    assert (first[0].pooled, first[0].tokens, first[0].error) == (None, [], None)
    last = bench.step([], [reads(0, 4, 2, [4])])
    np.testing.assert_array_equal(vector(last[0]), state_of(PROMPT))


def test_texts_that_end_go_on_or_start_in_one_step_do_not_disturb_each_other():
    bench = make_bench()
    bench.step([text(0, PROMPT)], [reads(0, 0, 3, [8])])
    results = bench.step(
        [text(1, [4, 4, 4, 4, 4]), text(2, [8, 6])], [reads(1, 0, 4, [3, 1]), reads(0, 3, 3, [9]), reads(2, 0, 2, [5])]
    )
    assert [result.slot for result in results] == [1, 0, 2]
    assert results[0].pooled is None
    np.testing.assert_array_equal(vector(results[1]), state_of(PROMPT))
    np.testing.assert_array_equal(vector(results[2]), state_of([8, 6]))


def test_a_prefix_that_is_in_the_cache_counts():
    bench = make_bench()
    bench.step([text(0, PROMPT)], [reads(0, 0, 6, [20, 21])])
    other = [*PROMPT[:4], 30]
    results = bench.step([text(1, other)], [reads(1, 4, 1, [20, 40])])
    np.testing.assert_array_equal(vector(results[0]), state_of(other))


def test_an_embedding_is_cut_and_then_scaled():
    bench = make_bench(normalize=True)
    results = bench.step(
        [
            text(0, PROMPT),
            text(1, PROMPT, wanted(dimensions=8)),
            text(2, PROMPT, wanted(dimensions=8, activation=False)),
        ],
        [reads(slot, 0, 6, [2 * slot, 2 * slot + 1]) for slot in range(3)],
    )
    whole, cut = state_of(PROMPT), state_of(PROMPT)[:8]
    np.testing.assert_allclose(vector(results[0]), whole / np.linalg.norm(whole), rtol=1e-6)
    np.testing.assert_allclose(vector(results[1]), cut / np.linalg.norm(cut), rtol=1e-6)
    np.testing.assert_array_equal(vector(results[2]), cut)


def test_a_model_whose_embeddings_have_any_length_leaves_them_alone():
    results = make_bench().step([text(0, PROMPT)], [reads(0, 0, 6, [1, 2])])
    np.testing.assert_array_equal(vector(results[0]), state_of(PROMPT))


@pytest.mark.parametrize("width", [1, 5])
def test_one_class_is_a_sigmoid_and_several_a_softmax(width):
    bench = make_bench(PoolingTask.CLASSIFY, width=width)
    results = bench.step(
        [
            text(0, PROMPT, wanted(PoolingTask.CLASSIFY)),
            text(1, PROMPT, wanted(PoolingTask.CLASSIFY, activation=False)),
        ],
        [reads(0, 0, 6, [1, 2]), reads(1, 0, 6, [3, 4])],
    )
    logits = TABLE[key_of(PROMPT)][:width]
    expected = logits.sigmoid() if width == 1 else logits.softmax(0)
    np.testing.assert_allclose(vector(results[0]), expected.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(vector(results[1]), logits.numpy())


@pytest.mark.parametrize("task", [PoolingTask.EMBED, PoolingTask.CLASSIFY])
def test_an_output_that_is_not_finite_is_an_error_of_that_text_alone(task):
    bench = make_bench(task)
    bench.model.broken = {key_of(PROMPT)}
    results = bench.step(
        [text(0, PROMPT, wanted(task)), text(1, [8, 6], wanted(task))], [reads(0, 0, 6, [1, 2]), reads(1, 0, 2, [3])]
    )
    assert (results[0].pooled, results[0].error, results[0].outcome) == (None, NOT_FINITE, Outcome.ENGINE_ERROR)
    assert np.isfinite(vector(results[1])).all()
    assert not bench.cache.layers[0][[1, 2]].any()


@pytest.mark.parametrize("pooling", [None, wanted(PoolingTask.CLASSIFY), wanted(PoolingTask.TOKEN_EMBED)])
def test_what_the_model_cannot_do_is_refused_to_that_item_alone(pooling):
    bench = make_bench()
    results = bench.step(
        [start(0, PROMPT, sampling=params(), pooling=pooling), text(1, [8, 6])],
        [row(0, 0, 6, [1, 2], samples=pooling is None), reads(1, 0, 2, [3])],
    )
    assert (results[0].tokens, results[0].outcome) == ([], Outcome.INVALID)
    assert "embed" in results[0].error
    np.testing.assert_array_equal(vector(results[1]), state_of([8, 6]))


def test_an_infinite_logit_is_no_sound_probability():
    class Infinite(Narrow):
        def logits(self, hidden_RD):
            return torch.full((len(hidden_RD), 1), torch.inf)

    model = Infinite(1)
    bench = Bench(model=model, head=PoolingHead(model, PoolingTask.CLASSIFY))
    results = bench.step([text(0, PROMPT, wanted(PoolingTask.CLASSIFY))], [reads(0, 0, 6, [1, 2])])
    assert (results[0].pooled, results[0].error) == (None, NOT_FINITE)


def test_a_half_precision_model_answers_in_float32():
    class Half(Narrow):
        def logits(self, hidden_RD):
            return super().logits(hidden_RD).to(torch.bfloat16)

    model = Half(8)
    bench = Bench(model=model, head=PoolingHead(model, PoolingTask.EMBED))
    results = bench.step([text(0, PROMPT)], [reads(0, 0, 6, [1, 2])])
    np.testing.assert_array_equal(vector(results[0]), TABLE[key_of(PROMPT)][:8].bfloat16().float().numpy())
