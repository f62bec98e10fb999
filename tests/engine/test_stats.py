"""What the loop measures: a sample for each event and none without it, whatever becomes of a request."""

import pytest

from tenure.outcomes import Outcome
from tenure.wire.messages import StatsSnapshot
from tests.engine.test_loop import Cancel, Rig, added, request


def samples(figures: StatsSnapshot) -> dict[str, int]:
    """How many samples each histogram of requests has."""
    names = ("queue_seconds", "prefill_seconds", "decode_seconds", "inference_seconds")
    return {name.removesuffix("_seconds"): sum(getattr(figures, name).counts) for name in names}


def figures(rig: Rig) -> StatsSnapshot:
    return rig.port.snapshots[-1].figures


def test_a_request_that_ends_well_has_a_sample_of_each_kind() -> None:
    rig = Rig()
    rig.run(added(request(1, max_tokens=4)))
    now = figures(rig)
    assert samples(now) == {"queue": 1, "prefill": 1, "decode": 1, "inference": 1}
    assert now.queue_seconds.sum == 0.0
    assert now.prefill_seconds.sum == pytest.approx(0.01)
    assert now.decode_seconds.sum == pytest.approx(0.03), "three tokens after the first, a step each"
    assert now.inference_seconds.sum == pytest.approx(0.04)
    assert rig.port.told[-1].ended[0].queue_seconds == 0.0


def test_the_queue_is_left_with_the_first_row() -> None:
    """Of five requests with four slots one waits until another has ended."""
    rig = Rig()
    rig.run(*(added(request(number, max_tokens=number + 1)) for number in range(1, 6)))
    now = figures(rig)
    assert samples(now)["queue"] == 5
    assert now.queue_seconds.sum == pytest.approx(0.02)
    queued = [snapshot.figures.queued_requests for snapshot in rig.port.snapshots]
    assert (max(queued), queued[-1]) == (5, 0)
    assert {told.ended[0].number: told.ended[0].queue_seconds for told in rig.port.told if told.ended}[5] == (
        pytest.approx(0.02)
    )


def test_a_request_that_is_cancelled_in_the_queue_leaves_no_sample() -> None:
    rig = Rig()
    rig.run(added(request(1)), added(request(2)), Cancel(2, Outcome.CLIENT_CANCELLED))
    assert samples(figures(rig)) == {"queue": 1, "prefill": 1, "decode": 1, "inference": 1}
    assert figures(rig).queued_requests == 0
    [cancelled] = [ended for told in rig.port.told for ended in told.ended if ended.number == 2]
    assert cancelled.queue_seconds is None


def test_a_request_that_is_cancelled_in_prefill_has_no_prefill_time() -> None:
    """Fault F57: a request that never said a token has no time of its first one."""
    rig = Rig(max_tokens=4)
    rig.orders.put(added(request(1, length=60)))
    rig.loop._receive(wait=False)
    plan = rig.scheduler.plan(rig.loop._tuner.budget())
    assert plan is not None
    rig.loop._launch(plan)
    rig.loop._land()
    rig.run(Cancel(1, Outcome.CLIENT_CANCELLED), ends=1)
    assert samples(figures(rig)) == {"queue": 1, "prefill": 0, "decode": 0, "inference": 0}


def test_a_request_that_is_cancelled_while_it_speaks_has_no_times_of_its_end() -> None:
    rig = Rig()
    rig.port.on_emit = lambda told: rig.orders.put(Cancel(1, Outcome.CLIENT_CANCELLED)) if told.step == 3 else None
    rig.run(added(request(1, max_tokens=50)))
    assert samples(figures(rig)) == {"queue": 1, "prefill": 1, "decode": 0, "inference": 0}


def test_a_prompt_counts_once_whatever_is_made_of_it() -> None:
    """Fault F58: with n choices it is still one prompt."""
    rig = Rig()
    rig.run(added(request(1, length=7, n=4, max_tokens=2)), added(request(2, length=5)))
    assert figures(rig).prompt_tokens == 12
    assert figures(rig).sequence_prompt_tokens == 4 * 7 + 5


def test_a_step_counts_what_it_samples_and_the_prompts_that_it_completes() -> None:
    """As vLLM counts the tokens of an iteration; a step in the middle of a prompt has none of them."""
    rig = Rig(max_tokens=4)
    rig.run(added(request(1, length=1, max_tokens=1)))
    now = figures(rig).iteration_tokens
    assert (sum(now.counts), now.sum) == (1, 2)
    rig.run(added(request(2, length=10, max_tokens=3)))
    now = figures(rig)
    assert (sum(now.iteration_tokens.counts), now.iteration_tokens.sum) == (4, 2 + 11 + 1 + 1)
    assert sum(now.step_tokens.counts) == 6
    assert now.iteration_tokens.sum == now.sequence_prompt_tokens + rig.scheduler.counts.sampled


def test_steps_are_measured_with_what_was_in_them() -> None:
    rig = Rig()
    rig.run(added(request(1, length=3, max_tokens=3)), added(request(2, length=3, max_tokens=3)))
    now = figures(rig)
    assert sum(now.step_seconds.counts) == sum(now.step_rows.counts) == sum(now.step_tokens.counts) == 3
    assert now.step_seconds.sum == pytest.approx(0.03)
    assert (now.step_rows.sum, now.step_tokens.sum) == (6, 6 + 2 + 2)


def test_the_prefix_cache_is_asked_for_all_tokens_of_an_item_that_starts() -> None:
    rig = Rig()
    rig.run(added(request(1, length=9, max_tokens=1)))
    rig.run(added(request(1, length=9, max_tokens=1)))
    counts = rig.port.snapshots[-1].scheduler.counts
    assert (counts.queried, counts.cached) == (18, 8)


def test_figures_that_were_published_do_not_change() -> None:
    rig = Rig()
    rig.run(added(request(1)))
    before = figures(rig)
    kept = samples(before)
    rig.run(added(request(2)))
    assert samples(before) == kept
