import math

import pytest
import torch

from tenure.errors import InternalError
from tenure.model_runner.decoder_runner import UNSOUND
from tenure.model_runner.sampler import NOT_FINITE
from tests.model_runner.history_model import BLOCK_SIZE, Bench, continued, key_of, next_token, params, row, start

PROMPT = [5, 9, 2, 7, 1, 3]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def generate(bench: Bench, tokens: list[int], count: int, *, slot: int = 0, **fields) -> list[int]:
    """Prefill in one row, then decode; blocks come one at a time, in no order. Needs a fresh slot of `bench`."""
    pool = [(37 * number + 11 * slot) % 64 for number in range(64)]
    needed = -(-len(tokens) // BLOCK_SIZE)
    results = bench.step([start(slot, tokens, **fields)], [row(slot, 0, len(tokens), pool[:needed])])
    drawn = results[0].tokens
    for length in range(len(tokens), len(tokens) + count - 1):
        new = [pool[length // BLOCK_SIZE]] if length % BLOCK_SIZE == 0 else []
        drawn += bench.step([], [row(slot, length, 1, new)])[0].tokens
    return drawn


def test_a_prompt_is_continued_through_growing_block_tables(bench):
    assert generate(bench, PROMPT, 40) == continued(PROMPT, 40)


def test_a_chunked_prompt_gives_the_same_as_a_whole_one(bench):
    results = bench.step([start(0, PROMPT)], [row(0, 0, 3, [8], samples=False)])
    assert (results[0].tokens, results[0].error) == ([], None)
    assert bench.step([], [row(0, 3, 2, [4], samples=False)])[0].tokens == []
    assert bench.step([], [row(0, 5, 1)])[0].tokens == [next_token(PROMPT)]


def test_prefill_and_decode_rows_share_a_step_and_results_keep_their_order(bench):
    bench.step([start(2, PROMPT)], [row(2, 0, 6, [20, 21])])
    first = next_token(PROMPT)
    results = bench.step(
        [start(0, [4, 4, 4, 4, 4]), start(1, [8, 6])],
        [row(0, 0, 4, [3, 1], samples=False), row(2, 6, 1), row(1, 0, 2, [9], generation=1)],
    )
    assert [result.slot for result in results] == [0, 2, 1]
    assert [result.generation for result in results] == [1, 1, 1]
    assert [result.tokens for result in results] == [[], [next_token([*PROMPT, first])], [next_token([8, 6])]]
    assert bench.step([], [row(0, 4, 1)])[0].tokens == [next_token([4, 4, 4, 4, 4])]


def test_a_prefix_that_is_in_the_cache_already_is_read_from_its_blocks(bench):
    bench.step([start(0, PROMPT)], [row(0, 0, 6, [20, 21])])
    other = [*PROMPT[:4], 30, 31]
    results = bench.step([start(1, other)], [row(1, 4, 2, [20, 40, 41])])
    assert results[0].tokens == [next_token(other)]


def test_logits_are_computed_only_for_rows_that_draw(bench):
    bench.step([start(0, PROMPT), start(1, PROMPT)], [row(0, 0, 5, [1, 2], samples=False), row(1, 0, 6, [3, 4])])
    assert bench.model.forward_rows == [11]
    assert bench.model.logits_rows == [1]
    bench.step([], [row(0, 5, 1, samples=False)])
    assert bench.model.logits_rows == [1]


def test_a_step_may_be_launched_before_the_one_before_has_landed(bench):
    bench.launch([start(0, PROMPT)], [row(0, 0, 6, [1, 2])])
    bench.launch([], [row(0, 6, 1)])
    expected = continued(PROMPT, 3)
    first = bench.land()
    bench.launch([], [row(0, 7, 1)])
    landed = [first, bench.land(), bench.land()]
    assert [result.number for result in landed] == [1, 2, 3]
    assert [token for result in landed for token in result.rows[0].tokens] == expected


def test_steps_in_flight_are_bounded_and_none_lands_twice(bench):
    bench.launch([start(0, PROMPT)], [row(0, 0, 6, [1, 2])])
    bench.launch([], [row(0, 6, 1)])
    with pytest.raises(InternalError, match="had not landed"):
        bench.launch([], [row(0, 7, 1)])
    bench.land()
    bench.land()
    with pytest.raises(InternalError, match="no step"):
        bench.land()


def test_a_slot_is_reused_without_traces_of_its_former_occupant(bench):
    fields = {"repetition_penalty": 1.3, "frequency_penalty": 0.5}
    fresh = generate(Bench(), [8, 6, 4], 12, sampling=params(**fields))
    generate(bench, PROMPT, 20, sampling=params(presence_penalty=1.0))
    results = bench.step(
        [start(0, [8, 6, 4], generation=2, sampling=params(**fields))], [row(0, 0, 3, [50], generation=2)]
    )
    drawn = results[0].tokens
    for length in range(3, 14):
        new = [50 + length // BLOCK_SIZE] if length % BLOCK_SIZE == 0 else []
        drawn += bench.step([], [row(0, length, 1, new, generation=2)])[0].tokens
    assert drawn == fresh


def test_a_new_occupant_writes_to_its_own_blocks_only(bench):
    bench.step([start(0, PROMPT)], [row(0, 0, 6, [1, 2])])
    former = bench.cache.layers[0][[1, 2]].clone()
    bench.step([start(0, [8, 6, 4], generation=2)], [row(0, 0, 3, [9], generation=2)])
    assert torch.equal(bench.cache.layers[0][[1, 2]], former)
    assert bench.cache.layers[0][9].any()


def test_a_row_of_a_former_occupant_is_refused(bench):
    bench.step([start(0, PROMPT)], [row(0, 0, 6, [1, 2])])
    bench.step([start(0, PROMPT, generation=2)], [row(0, 0, 6, [1, 2], generation=2)])
    with pytest.raises(InternalError):
        bench.step([], [row(0, 6, 1)])
    with pytest.raises(InternalError):
        bench.step([start(0, PROMPT, generation=2)], [])


@pytest.mark.parametrize(
    "wrong",
    [
        row(0, 7, 1),
        row(0, 6, 2),
        row(0, 5, 1),
        row(0, 6, 0, samples=False),
        row(0, 6, 1, list(range(200))),
        row(1, 0, 1, [7]),
    ],
    ids=["unknown token", "beyond the known", "draws inside", "empty", "too many blocks", "never occupied"],
)
def test_a_row_that_contradicts_its_slot_is_refused_and_changes_nothing(bench, wrong):
    bench.step([start(0, PROMPT)], [row(0, 0, 6, [1, 2])])
    with pytest.raises(InternalError):
        bench.launch([], [wrong])
    assert bench.step([], [row(0, 6, 1)])[0].tokens == [continued(PROMPT, 2)[1]]


def test_a_row_without_blocks_for_its_tokens_is_refused(bench):
    with pytest.raises(InternalError):
        bench.step([start(0, PROMPT)], [row(0, 0, 6, [1])])


def test_the_window_can_be_filled_to_its_last_token():
    bench = Bench(max_model_len=10)
    assert generate(bench, PROMPT, 5) == continued(PROMPT, 5)


# Draws


SAMPLED = {"temperature": 1.5, "seed": 1234, "top_p": 0.9}


def test_draws_depend_on_seed_and_choice_and_not_on_slot_or_neighbours(bench):
    alone = generate(Bench(), PROMPT, 12, sampling=params(**SAMPLED))
    generate(bench, [1, 2, 3], 2, slot=0)
    assert generate(bench, PROMPT, 12, slot=3, sampling=params(**SAMPLED)) == alone
    assert generate(Bench(), PROMPT, 12, sampling=params(**SAMPLED), choice=1) != alone
    assert generate(Bench(), PROMPT, 12, sampling=params(**{**SAMPLED, "seed": 1235})) != alone


@pytest.mark.parametrize(
    "fields",
    [
        SAMPLED,
        {**SAMPLED, "frequency_penalty": 0.7, "presence_penalty": 0.3, "repetition_penalty": 1.2},
        {**SAMPLED, "min_tokens": 8, "stop_token_ids": tuple(range(40))},
        {"bad_words": tuple((first, second) for first in range(67) for second in range(30))},
    ],
    ids=["draws", "penalties", "min_tokens", "bad_words"],
)
@pytest.mark.parametrize("produced", [1, 5, 11])
def test_an_item_goes_on_after_a_preemption_as_if_nothing_had_happened(bench, fields, produced):
    sampling = params(**fields)
    whole = generate(bench, PROMPT, 12, sampling=sampling)
    again = generate(Bench(), PROMPT + whole[:produced], 12 - produced, sampling=sampling, prompt_length=len(PROMPT))
    assert whole[:produced] + again == whole


def test_logprobs_come_with_the_token(bench):
    result = bench.step([start(0, PROMPT, sampling=params(logprobs=2))], [row(0, 0, 6, [1, 2])])[0]
    assert (result.logprobs[0].rank, result.logprobs[0].ids[:1]) == (1, result.tokens)
    assert math.exp(result.logprobs[0].logprob) <= 1


# Failures


def test_a_row_that_is_not_finite_fails_alone_and_leaves_no_trace_in_its_blocks(bench):
    bench.model.broken = {key_of(PROMPT)}
    results = bench.step([start(0, PROMPT), start(1, [8, 6])], [row(0, 0, 6, [1, 2]), row(1, 0, 2, [3])])
    assert (results[0].tokens, results[0].error) == ([], NOT_FINITE)
    assert (results[1].tokens, results[1].error) == ([next_token([8, 6])], None)
    assert not bench.cache.layers[0][[1, 2]].any()
    assert bench.cache.layers[0][3].any()


def test_a_row_that_stores_what_is_not_finite_fails_alone_whether_it_draws_or_not(bench):
    bench.model.overflowing = {PROMPT[1]}
    results = bench.step(
        [start(0, PROMPT), start(1, [8, 6]), start(2, PROMPT)],
        [row(0, 0, 4, [1], samples=False), row(1, 0, 2, [3]), row(2, 0, 6, [4, 5])],
    )
    assert [result.error for result in results] == [UNSOUND, None, UNSOUND]
    assert [result.tokens for result in results] == [[], [next_token([8, 6])], []]
    assert not bench.cache.layers[0][[1, 4, 5]].any()
    assert bench.cache.layers[0][3].any()
    bench.model.overflowing = {next_token([8, 6])}
    assert bench.step([], [row(1, 2, 1)])[0].error == UNSOUND
    assert not bench.cache.layers[0].any()


def test_rows_of_a_failed_item_already_planned_get_an_error_and_its_slot_can_be_leased_again(bench):
    bench.model.broken = {key_of(PROMPT)}
    bench.launch([start(0, PROMPT), start(1, [8, 6])], [row(0, 0, 6, [1, 2]), row(1, 0, 2, [3])])
    bench.launch([], [row(1, 2, 1), row(0, 6, 1)])
    bench.land()
    results = bench.land().rows
    assert results[0].tokens == [continued([8, 6], 2)[1]]
    assert (results[1].slot, results[1].tokens) == (0, [])
    assert results[1].error is not None
    results = bench.step([start(0, [8, 6], generation=2)], [row(0, 0, 2, [1], generation=2)])
    assert results[0].tokens == [next_token([8, 6])]


def test_a_step_of_failed_items_alone_still_has_a_result_for_each_row(bench):
    bench.model.broken = {key_of(PROMPT)}
    bench.launch([start(0, PROMPT)], [row(0, 0, 6, [1, 2])])
    bench.launch([], [row(0, 6, 1)])
    assert [[row.error is not None for row in bench.land().rows] for _ in range(2)] == [[True], [True]]
    assert bench.model.forward_rows == [6]


def test_after_a_pass_that_raises_nothing_is_in_flight_and_other_items_go_on(bench):
    bench.step([start(0, PROMPT)], [row(0, 0, 6, [1, 2])])
    bench.model.fails = RuntimeError("out of memory")
    with pytest.raises(RuntimeError):
        bench.launch([start(1, PROMPT)], [row(1, 0, 6, [3, 4])])
    with pytest.raises(InternalError, match="no step"):
        bench.land()
    results = bench.step([start(1, [8, 6], generation=2)], [row(0, 6, 1), row(1, 0, 2, [3], generation=2)])
    assert [result.tokens for result in results] == [[continued(PROMPT, 2)[1]], [next_token([8, 6])]]


@pytest.mark.parametrize("failure", [RuntimeError("out of memory"), KeyboardInterrupt()])
def test_a_head_that_raises_fails_all_rows_of_the_step_and_leaves_their_blocks_clean(bench, failure):
    bench.step([start(1, [8, 6])], [row(1, 0, 2, [3])])
    bench.model.overflowing = {PROMPT[1]}
    bench.model.head_fails = failure
    with pytest.raises(type(failure)):
        bench.launch([start(0, PROMPT)], [row(0, 0, 6, [1, 2]), row(1, 2, 1)])
    assert not bench.cache.layers[0].any()
    results = bench.step([start(2, [4])], [row(0, 6, 1), row(1, 3, 1), row(2, 0, 1, [5])])
    assert [result.error is not None for result in results] == [True, True, False]
    assert results[2].tokens == [next_token([4])]
