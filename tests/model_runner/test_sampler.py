"""Each sampling field by itself, on logits small enough to check by hand."""

import math

import pytest
import torch

from tenure.model_runner.sampler import ADJUSTED_NOT_FINITE, NOT_FINITE, NOTHING_LEFT, Sampled
from tenure.sampling import SamplingParams, TokenLogprobs
from tests.model_runner.sampled_rows import SAMPLERS, Case, sample

INFINITY = math.inf


def greedy(**fields: object) -> SamplingParams:
    return SamplingParams(max_tokens=100, temperature=0.0, **fields)  # type: ignore[arg-type]


def sample_one(
    logits: list[float], params: SamplingParams, *, choice: int = 0, prompt: tuple[int, ...] = (), output=()
) -> Sampled:
    first, *others = [
        sample(torch.tensor([logits]), [Case(params, choice, prompt, output)], sampler) for sampler in SAMPLERS
    ]
    assert all(other == first for other in others)
    return first


def token_of(logits: list[float], params: SamplingParams, **context) -> int | None:
    sampled = sample_one(logits, params, **context)
    assert sampled.errors == [None]
    return sampled.tokens[0]


def drawn_set(logits: list[float], **fields: object) -> set[int | None]:
    """All tokens that 400 draws give."""
    params = SamplingParams(max_tokens=1, **fields)  # type: ignore[arg-type]
    cases = [Case(params, choice) for choice in range(400)]
    first, *others = [sample(torch.tensor([logits] * 400), cases, sampler).tokens for sampler in SAMPLERS]
    assert all(other == first for other in others)
    return set(first)


def test_greedy_takes_the_best_token_and_the_first_of_equals():
    assert token_of([0.0, 3.0, 1.0], greedy()) == 1
    assert token_of([0.0, 3.0, 3.0], greedy()) == 1


def test_allowed_token_ids_bar_all_others():
    assert token_of([5.0, 1.0, 2.0, 9.0], greedy(allowed_token_ids=(1, 2))) == 2


def test_a_bias_is_added_but_brings_back_no_token_that_is_not_allowed():
    assert token_of([5.0, 1.0, 2.0], greedy(logit_bias=((1, 4.5),))) == 1
    assert token_of([5.0, 1.0, 2.0], greedy(logit_bias=((0, -100.0),))) == 2
    assert token_of([5.0, 1.0, 2.0], greedy(logit_bias=((0, 100.0),), allowed_token_ids=(1, 2))) == 2


def test_a_bad_word_of_one_token_is_never_drawn():
    assert token_of([5.0, 1.0, 2.0], greedy(bad_words=((0,),))) == 2


def test_a_bad_word_bars_its_last_token_only_after_its_others():
    logits, words = [5.0, 1.0, 2.0], greedy(bad_words=((1, 2, 0),))
    assert token_of(logits, words, output=[2, 1, 2]) == 2
    assert token_of(logits, words, output=[1, 2, 1]) == 0
    assert token_of(logits, words, output=[2]) == 0


def test_bad_words_look_at_the_output_only():
    assert token_of([5.0, 1.0, 2.0], greedy(bad_words=((1, 0),)), prompt=(2, 1)) == 0


def test_min_tokens_bars_end_and_stop_tokens_until_reached():
    params = greedy(min_tokens=2, eos_token_ids=(0,), stop_token_ids=(2,), ignore_eos=True)
    logits = [5.0, 1.0, 4.0]
    assert [token_of(logits, params, output=[1] * produced) for produced in range(4)] == [1, 1, 0, 0]


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits_of_prompt_and_output():
    assert token_of([4.0, 3.0, 1.0], greedy(repetition_penalty=2.0), prompt=(0,)) == 1
    assert token_of([4.0, 3.0, 1.0], greedy(repetition_penalty=2.0), prompt=(0,), output=[1]) == 0
    assert token_of([-1.0, -1.5, -9.0], greedy(repetition_penalty=2.0), output=[0]) == 1
    assert token_of([3.0, 4.0, 1.0], greedy(repetition_penalty=0.5), prompt=(0,)) == 0


def test_presence_penalty_counts_once_and_only_the_output():
    logits = [4.0, 3.0]
    assert token_of(logits, greedy(presence_penalty=1.5), output=[0]) == 1
    assert token_of(logits, greedy(presence_penalty=0.9), output=[0, 0, 0]) == 0
    assert token_of(logits, greedy(presence_penalty=1.5), prompt=(0,)) == 0
    assert token_of(logits, greedy(presence_penalty=-1.5), output=[1]) == 1


def test_frequency_penalty_grows_with_each_use_and_counts_only_the_output():
    logits = [4.0, 3.0]
    assert token_of(logits, greedy(frequency_penalty=0.4), output=[0, 0]) == 0
    assert token_of(logits, greedy(frequency_penalty=0.4), output=[0, 0, 0]) == 1
    assert token_of(logits, greedy(frequency_penalty=0.4), prompt=(0, 0, 0)) == 0


def test_temperature_flattens_or_sharpens():
    logits = [0.0, 1.0, 0.0, 0.0]
    assert drawn_set(logits, temperature=0.05) == {1}
    assert drawn_set(logits, temperature=100.0) == {0, 1, 2, 3}


def test_a_tiny_temperature_is_greedy_and_stays_finite():
    assert drawn_set([3.0e30, 1.0, 2.9e30], temperature=1e-5) == {0}
    assert drawn_set([1.0, 3.0e35, 2.9e35], temperature=1e-5) == {1}
    assert drawn_set([-3.0e38, -3.0e35, -3.0e38], temperature=1e-5) == {1}


def test_top_k_keeps_the_best_and_those_that_tie_with_the_last():
    assert drawn_set([1.0, 1.2, 1.1, 1.3], top_k=2) == {1, 3}
    assert drawn_set([1.0, 1.2, 1.2, 1.3], top_k=2) == {1, 2, 3}
    assert drawn_set([1.0, 1.2, 1.1, 1.3], top_k=9) == {0, 1, 2, 3}


def test_top_p_keeps_the_fewest_best_that_reach_the_share():
    logits = [math.log(share) for share in (0.1, 0.4, 0.2, 0.3)]
    assert drawn_set(logits, top_p=0.35) == {1}
    assert drawn_set(logits, top_p=0.69) == {1, 3}
    assert drawn_set(logits, top_p=0.71) == {1, 2, 3}
    assert drawn_set(logits, top_p=1e-9) == {1}


def test_min_p_is_relative_to_the_best():
    logits = [math.log(share) for share in (0.1, 0.4, 0.2, 0.3)]
    assert drawn_set(logits, min_p=0.45) == {1, 2, 3}
    assert drawn_set(logits, min_p=1.0) == {1}


def test_filters_apply_one_after_the_other():
    """top_p is a share of what min_p and top_k have left."""
    logits = [math.log(share) for share in (0.1, 0.4, 0.2, 0.3)]
    assert drawn_set(logits, top_k=3, top_p=0.75) == {1, 3}
    assert drawn_set(logits, top_p=0.75) == {1, 2, 3}
    assert drawn_set(logits, min_p=0.3, top_p=0.75) == {1, 3}


@pytest.mark.parametrize("bad", [math.nan, INFINITY])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_fails_alone(bad, temperature):
    params = SamplingParams(max_tokens=1, temperature=temperature, logprobs=1, logit_bias=((0, 1.0),))
    rows = [[1.0, 50.0, 2.0], [1.0, bad, 2.0], [90.0, 2.0, 1.0]]
    for sampler in SAMPLERS:
        sampled = sample(torch.tensor(rows), [Case(params) for _ in rows], sampler)
        assert sampled.tokens == [1, None, 0]
        assert sampled.errors == [None, NOT_FINITE, None]
        assert [report is None for report in sampled.logprobs] == [False, True, False]


def test_a_row_without_any_possible_token_fails():
    assert sample_one([-INFINITY] * 3, greedy()).errors == [NOT_FINITE]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masks_that_leave_nothing_fail_that_row_alone(temperature):
    barred = SamplingParams(max_tokens=1, temperature=temperature, allowed_token_ids=(1,), bad_words=((1,),))
    free = SamplingParams(max_tokens=1, temperature=temperature)
    for sampler in SAMPLERS:
        sampled = sample(torch.tensor([[0.0, 99.0]] * 3), [Case(params) for params in (free, barred, free)], sampler)
        assert sampled.tokens == [1, None, 1]
        assert sampled.errors == [None, NOTHING_LEFT, None]


def test_penalties_that_overflow_fail_the_row():
    assert sample_one([3.0e38, 1.0], greedy(repetition_penalty=1e-3), output=[0]).errors == [ADJUSTED_NOT_FINITE]


def test_a_token_of_probability_zero_is_never_drawn():
    logits = [-INFINITY, 0.0] * 100 + [-INFINITY] * 100
    assert all(token is not None and token % 2 and token < 200 for token in drawn_set(logits, temperature=5.0))


def test_token_ids_beyond_the_logits_are_passed_over():
    params = greedy(
        logit_bias=((99, 5.0), (1, 5.0)),
        stop_token_ids=(98,),
        bad_words=((97,),),
        min_tokens=3,
        logprobs=0,
        logprob_token_ids=(96, 2),
    )
    sampled = sample_one([1.0, 0.5, 0.0], params)
    assert sampled.tokens == [1]
    assert sampled.logprobs[0] is not None
    assert sampled.logprobs[0].ids == [2]


def test_the_logits_passed_in_stay_as_they_are():
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    params = SamplingParams(max_tokens=1, temperature=0.7, logit_bias=((0, 1.0),), top_k=1, logprobs=-1)
    for sampler in SAMPLERS:
        sample(logits, [Case(params)], sampler)
        assert logits.tolist() == [[1.0, 2.0, 3.0]]


# Logprobs


LOGITS = [math.log(share) for share in (0.1, 0.4, 0.2, 0.3)]


def report_of(logits: list[float], params: SamplingParams) -> TokenLogprobs:
    report = sample_one(logits, params).logprobs[0]
    assert report is not None
    return report


def test_no_logprobs_unless_asked_for():
    assert sample_one(LOGITS, greedy()).logprobs == [None]


def test_chosen_logprob_rank_and_alternatives_are_of_the_raw_distribution():
    report = report_of(LOGITS, greedy(logprobs=2, logit_bias=((2, 50.0),)))
    assert report.rank == 3
    assert report.logprob == pytest.approx(math.log(0.2), abs=1e-6)
    assert report.ids == [1, 3]
    assert report.logprobs == pytest.approx([math.log(0.4), math.log(0.3)], abs=1e-6)


def test_temperature_does_not_change_what_is_reported():
    params = SamplingParams(max_tokens=1, temperature=0.01, logprobs=0)
    report = report_of(LOGITS, params)
    assert (report.rank, report.ids, report.logprobs) == (1, [], [])
    assert report.logprob == pytest.approx(math.log(0.4), abs=1e-6)


def test_minus_one_reports_the_whole_vocabulary_best_first():
    assert report_of(LOGITS, greedy(logprobs=-1)).ids == [1, 3, 2, 0]
    assert report_of(LOGITS, greedy(logprobs=20)).ids == [1, 3, 2, 0]


def test_requested_tokens_follow_the_best_ones_and_are_listed_once():
    report = report_of(LOGITS, greedy(logprobs=2, logprob_token_ids=(0, 3, 0)))
    assert report.ids == [1, 3, 0]
    assert report.logprobs == pytest.approx([math.log(0.4), math.log(0.3), math.log(0.1)], abs=1e-6)


def test_requested_tokens_are_reported_without_logprobs_too():
    assert report_of(LOGITS, greedy(logprob_token_ids=(2,))).ids == [2]


def test_equals_are_listed_by_id_and_share_their_rank():
    logits = [1.0, 2.0, 1.0, 2.0, 1.0]
    assert report_of(logits, greedy(logprobs=3)).ids == [1, 3, 0]
    assert report_of(logits, greedy(logprobs=-1)).ids == [1, 3, 0, 2, 4]
    assert report_of([0.0] * 150 + [1.0] + [0.0] * 150, greedy(logprobs=4)).ids == [150, 0, 1, 2]
    assert report_of(logits, greedy(logprobs=0, allowed_token_ids=(3,))).rank == 1
    assert report_of(logits, greedy(logprobs=0, allowed_token_ids=(4,))).rank == 3


def test_minus_infinity_is_reported_as_a_number():
    report = report_of([0.0, -INFINITY], greedy(logprobs=-1))
    assert report.ids == [0, 1]
    assert report.logprobs == [0.0, -9999.0]
