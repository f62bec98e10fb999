"""What an API process says of a prompt reaches the runner, whatever stands between."""

import tracemalloc

import msgspec
import numpy as np

from tenure.core.budget import StepBudget
from tenure.core.limits import Limits
from tenure.core.report import Output
from tenure.core.scheduler import Scheduler
from tenure.engine import translation
from tenure.outcomes import FinishReason
from tenure.pooling import Pooled
from tenure.sampling import SamplingParams, TokenLogprobs
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
    scheduler.add(translation.request(7, asked, [], 0.0))
    plan = scheduler.plan(StepBudget(tokens=64))
    assert plan is not None
    told = [(start.tokens, start.first_segment, start.unattended) for start in plan.starts]
    assert told == list(zip(prompts, asked.segments, asked.unattended, strict=True))


def test_nothing_need_be_said() -> None:
    asked = wire.Submit(
        request=1, public_id="x", prompts=TokenLists.of([[1], [2]]), sampling=SamplingParams(max_tokens=1)
    )
    scheduler = Scheduler(Limits(max_model_len=32, num_slots=8))
    scheduler.add(translation.request(7, asked, [], 0.0))
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
    request = translation.request(7, asked, [], 0.0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 32_000 * 40 + 128 * 2048
    assert all(item.prompt == prompt for item in request.items)


def largest(outputs: list[wire.ItemOutput]) -> int:
    messages = translation.step_outputs(7, outputs)
    return max(len(msgspec.msgpack.encode(message)) for message in messages)


def test_vectors_of_many_tokens_come_in_parts() -> None:
    """3,000 rows of 384 numbers, 4.6 MB: no message has more than twice what a part is to have."""
    rows = np.arange(3000 * 384, dtype="<f4").reshape(3000, 384)
    whole = Output(7, 2, [], None, FinishReason.STOP, None, None, 0, Pooled(len(rows), rows.tobytes()))
    parts = list(translation.item_outputs(5, whole))
    assert {(part.request, part.index) for part in parts} == {(5, 2)}
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + [FinishReason.STOP]
    pooled = [part.pooled for part in parts if part.pooled is not None]
    assert b"".join(part.data for part in pooled) == rows.tobytes()
    assert all(len(part.data) == part.rows * 384 * 4 for part in pooled)
    assert largest(parts * 3) < 2 * translation.PART_BYTES


def test_logprobs_of_a_long_prompt_come_in_parts() -> None:
    entries = [None, *(TokenLogprobs.of(-1.0, 1, list(range(21)), [-1.0] * 21) for _ in range(2999))]
    whole = Output(7, 0, [3], None, FinishReason.LENGTH, None, entries, 16, None)
    parts = list(translation.item_outputs(5, whole))
    assert [part.tokens for part in parts] == [[]] * (len(parts) - 1) + [[3]]
    assert [entry for part in parts for entry in part.prompt_logprobs or ()] == entries
    assert {part.cached_tokens for part in parts} == {16}
    assert largest(parts) < 2 * translation.PART_BYTES


def test_what_is_small_comes_in_one_part_and_one_message() -> None:
    plain = Output(7, 0, [3], None, None, None, None, 0, None)
    read = Output(7, 1, [], None, FinishReason.STOP, None, None, 0, Pooled(0, b""))
    first = Output(7, 2, [4], None, None, None, [None], 0, None)
    parts = [part for output in (plain, read, first) for part in translation.item_outputs(5, output)]
    assert [(part.index, part.tokens, part.pooled, part.prompt_logprobs) for part in parts] == [
        (0, [3], None, None),
        (1, [], Pooled(0, b""), None),
        (2, [4], None, [None]),
    ]
    assert [len(message.outputs) for message in translation.step_outputs(7, parts)] == [3]
