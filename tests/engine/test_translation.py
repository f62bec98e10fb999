"""What an API process says of a prompt reaches the runner, whatever stands between."""

import tracemalloc

from tenure.core.budget import StepBudget
from tenure.core.limits import Limits
from tenure.core.scheduler import Scheduler
from tenure.engine import translation
from tenure.sampling import SamplingParams
from tenure.token_lists import TokenLists
from tenure.wire import messages as wire


def test_the_executor_is_told_of_each_prompt_what_was_said_of_it() -> None:
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    asked = wire.Submit(
        request=1,
        public_id="x",
        prompts=TokenLists.of(prompts),
        sampling=SamplingParams(max_tokens=1),
        n=2,
        segments=[2, 0, 1],
        unattended=[0, 1, 3],
    )
    scheduler = Scheduler(Limits(max_model_len=32, num_slots=8, num_blocks=32, block_size=4))
    scheduler.add(translation.request(7, asked, 0.0))
    plan = scheduler.plan(StepBudget(tokens=64))
    assert plan is not None
    told = [(start.tokens, start.first_segment, start.unattended) for start in plan.starts]
    assert told == list(zip(prompts, asked.segments, asked.unattended, strict=True))


def test_nothing_need_be_said() -> None:
    asked = wire.Submit(
        request=1, public_id="x", prompts=TokenLists.of([[1], [2]]), sampling=SamplingParams(max_tokens=1)
    )
    scheduler = Scheduler(Limits(max_model_len=32, num_slots=8))
    scheduler.add(translation.request(7, asked, 0.0))
    plan = scheduler.plan(StepBudget(tokens=64))
    assert plan is not None
    assert [(start.first_segment, start.unattended) for start in plan.starts] == [(0, 0), (0, 0)]


def test_the_choices_of_a_prompt_share_it() -> None:
    """128 choices of 32,000 tokens take the prompt once, and a few hundred bytes for each item."""
    prompt = [token % 1000 for token in range(32_000)]
    asked = wire.Submit(
        request=1, public_id="x", prompts=TokenLists.of([prompt]), sampling=SamplingParams(max_tokens=1), n=128
    )
    tracemalloc.start()
    request = translation.request(7, asked, 0.0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32_000 * 40 + 128 * 2048
    assert all(item.prompt == prompt for item in request.items)
