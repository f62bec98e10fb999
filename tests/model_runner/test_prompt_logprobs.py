import random

import pytest

from tenure.model_runner.sampler import NOT_FINITE
from tests.model_runner.history_model import (
    BLOCK_SIZE,
    TABLE,
    VOCABULARY,
    Bench,
    key_of,
    next_token,
    params,
    row,
    start,
)
from tests.model_runner.reference_sampler import reference_logprob

PROMPT = random.Random(1).choices(range(VOCABULARY), k=150)
BLOCKS = list(range(-(-len(PROMPT) // BLOCK_SIZE) + 1))


def reports(bench: Bench, bounds: list[int], best: int = 2, **fields) -> list:
    """The prompt logprobs of chunks that end at `bounds`, one list per chunk."""
    starts, blocks, chunks = [start(0, PROMPT, sampling=params(prompt_logprobs=best, **fields))], BLOCKS, []
    for first, last in zip([0, *bounds], [*bounds, len(PROMPT)], strict=False):
        results = bench.step(starts, [row(0, first, last - first, blocks, samples=last == len(PROMPT))])
        chunks.append(results[0].prompt_logprobs)
        starts, blocks = [], []
    return chunks


def check(found: list, best: int) -> None:
    assert found[0] is None
    for position in range(1, len(PROMPT)):
        logits = TABLE[key_of(PROMPT[:position])].tolist()
        logprob, rank = reference_logprob(logits, PROMPT[position])
        report = found[position]
        assert (report.logprob, report.rank) == (pytest.approx(logprob, abs=2e-5), rank)
        assert report.ids == sorted(range(VOCABULARY), key=lambda token: -logits[token])[:best]


def test_each_position_is_reported_from_the_logits_before_it():
    bench = Bench()
    (found,) = reports(bench, [])
    assert len(found) == len(PROMPT)
    check(found, 2)
    assert sum(bench.model.logits_rows) == len(PROMPT)
    assert max(bench.model.logits_rows) <= 64


@pytest.mark.parametrize("bounds", [[1], [2, 3], [70, 149], [64, 128], [149]])
def test_chunks_end_to_end_give_each_position_once(bounds):
    chunks = reports(Bench(), bounds, best=1)
    assert len(chunks[0]) == bounds[0] + 1
    check([report for chunk in chunks for report in chunk], 1)


def test_adjustments_of_the_logits_do_not_show():
    (plain,) = reports(Bench(), [])
    (biased,) = reports(Bench(), [], logit_bias=((3, 50.0),), allowed_token_ids=(1, 3), temperature=0.3)
    assert plain == biased


def test_a_prompt_of_one_token_has_only_its_none():
    result = Bench().step([start(0, [5], sampling=params(prompt_logprobs=0))], [row(0, 0, 1, [1])])[0]
    assert result.prompt_logprobs == [None]


def test_a_prompt_alone_can_be_asked_for():
    sampling = params(prompt_logprobs=0, max_tokens=0)
    bench = Bench()
    result = bench.step([start(0, PROMPT[:5], sampling=sampling)], [row(0, 0, 5, [1, 2], samples=False)])[0]
    assert result.tokens == []
    assert [report and len(report.ids) for report in result.prompt_logprobs] == [None, 0, 0, 0, 0]


def test_output_tokens_are_not_reported_as_prompt():
    bench = Bench()
    tokens, sampling = [5, 9, 2, 7], params(prompt_logprobs=0)
    result = bench.step([start(0, tokens, prompt_length=2, sampling=sampling)], [row(0, 0, 4, [1])])[0]
    assert len(result.prompt_logprobs) == 2
    assert bench.step([], [row(0, 4, 1, [2])])[0].prompt_logprobs is None


def test_items_that_do_not_ask_get_none():
    result = Bench().step([start(0, [5, 9])], [row(0, 0, 2, [1])])[0]
    assert result.prompt_logprobs is None


def test_prompt_logits_that_are_not_finite_fail_the_row_alone():
    bench = Bench()
    bench.model.broken = {key_of([5, 9])}
    results = bench.step(
        [start(0, [5, 9, 2], sampling=params(prompt_logprobs=0)), start(1, [8, 6])],
        [row(0, 0, 3, [1]), row(1, 0, 2, [2])],
    )
    assert (results[0].tokens, results[0].prompt_logprobs, results[0].error) == ([], None, NOT_FINITE)
    assert results[1].tokens == [next_token([8, 6])]
