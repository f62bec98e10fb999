"""A request's journal: one sample for each event and none without it, one stage at a time, all left at the end."""

from dataclasses import dataclass, field

import pytest

from tenure.observe.counters import WorkStage
from tenure.observe.journal import Journal, Times
from tenure.outcomes import FinishReason, Outcome
from tenure.pooling import PoolingParams, PoolingTask
from tenure.sampling import SamplingParams
from tenure.token_lists import TokenLists
from tenure.wire.messages import Ended, ItemOutput, Submit

LENGTH = FinishReason.LENGTH
ENDED = Ended(request=1, outcome=Outcome.OK, queue_seconds=0.5)


@dataclass
class RequestCounter:
    """Keeps what it is told."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    models: set[str] = field(default_factory=set)
    moves: list[tuple[WorkStage, WorkStage | None]] = field(default_factory=list)

    def arrive(self, route: str) -> None: ...

    def leave(self, route: str, model: str, outcome: Outcome) -> None: ...

    def move(self, model: str, before: WorkStage, after: WorkStage | None) -> None:
        self.models.add(model)
        self.moves.append((before, after))

    def observe(self, histogram: str, value: float, model: str = "") -> None:
        self.models.add(model)
        self.samples.setdefault(histogram, []).append(value)

    @property
    def stages(self) -> list[str]:
        """Those that were entered, in order; each move begins where the one before has ended."""
        for (_, reached), (left, _) in zip(self.moves, self.moves[1:], strict=False):
            assert left is reached
        return [after.value if after is not None else "" for _, after in self.moves]


def journal(counter: RequestCounter) -> Journal:
    made = Journal(counter, Times(received=10.0))
    made.model = "tiny"
    return made


def submit(prompts: int = 1, n: int = 1, **more) -> Submit:
    sampling = SamplingParams(max_tokens=8)
    return Submit(
        request=1, public_id="x", prompts=TokenLists.of([[1, 2, 3]] * prompts), sampling=sampling, n=n, **more
    )


def output(index: int, tokens: int = 1, finish: FinishReason | None = None, cached: int = 0) -> ItemOutput:
    return ItemOutput(1, index, [7] * tokens, finish_reason=finish, cached_tokens=cached)


def test_a_request_that_ends_well():
    counter = RequestCounter()
    book = journal(counter)
    watch = book.follow(submit(n=2))
    watch.admitted(11.0)
    watch.output(output(0, cached=2), 12.0)
    watch.output(output(1), 12.5)
    watch.output(output(0, finish=LENGTH), 13.0)
    watch.output(output(1, finish=LENGTH), 14.5)
    watch.ended(ENDED, 15.0)
    book.close(Outcome.OK)
    assert counter.stages == ["admitted", "answering", "ending", ""]
    assert counter.models == {"tiny"}
    assert counter.samples == {
        "time_to_first_token_seconds": [2.0],
        "inter_token_seconds": [1.0, 2.0],
        "request_prompt_tokens": [3],
        "request_output_tokens": [4],
        "request_longest_output_tokens": [2],
        "request_computed_prompt_tokens": [4],  # one, and three
        "request_token_seconds": [1.5],
        "request_choices": [2],
        "request_max_tokens": [8],
    }
    assert (book.tokens.prompt, book.tokens.cached, book.tokens.output) == (3, 2, 4)
    assert (book.times.admitted, book.times.first_token, book.times.released) == (11.0, 12.0, 15.0)
    assert book.times.queue_seconds == 0.5


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_a_request_that_ends_before_its_first_token_has_no_sample_at_all(outcome):
    counter = RequestCounter()
    book = journal(counter)
    watch = book.follow(submit())
    watch.admitted(11.0)
    watch.ended(Ended(request=1, outcome=outcome), 12.0)
    book.close(outcome)
    assert counter.samples == {}
    assert counter.stages == ["admitted", "ending", ""]


def test_a_request_that_is_never_admitted_is_in_no_stage_but_the_first():
    counter = RequestCounter()
    book = journal(counter)
    book.follow(submit())
    book.close(Outcome.QUEUE_FULL)
    assert counter.samples == {}
    assert counter.moves == [(WorkStage.RECEIVED, None)]


def test_a_request_that_is_cancelled_has_the_samples_of_what_it_got():
    counter = RequestCounter()
    book = journal(counter)
    watch = book.follow(submit())
    watch.admitted(11.0)
    watch.output(output(0), 12.0)
    watch.output(output(0), 12.5)
    watch.ended(None, 13.0)
    book.close(Outcome.CLIENT_CANCELLED)
    assert counter.samples == {"time_to_first_token_seconds": [2.0], "inter_token_seconds": [0.5]}
    assert book.tokens.output == 2


def test_what_gives_no_tokens_has_no_token_times():
    counter = RequestCounter()
    book = journal(counter)
    watch = book.follow(submit(prompts=2, pooling=PoolingParams(task=PoolingTask.EMBED)))
    watch.admitted(11.0)
    for index in range(2):
        watch.output(output(index, tokens=0, finish=FinishReason.STOP), 12.0)
    watch.ended(ENDED, 12.0)
    book.close(Outcome.OK)
    assert counter.samples == {"request_prompt_tokens": [6]}
    assert counter.stages == ["admitted", "answering", "ending", ""]


def test_a_request_of_several_generations_is_in_one_stage_at_a_time():
    counter = RequestCounter()
    book = journal(counter)
    first, second = book.follow(submit()), book.follow(submit())
    first.admitted(11.0)
    second.admitted(11.5)
    first.output(output(0), 12.0)
    first.ended(ENDED, 12.5)
    second.output(output(0), 13.0)
    second.ended(ENDED, 14.0)
    third = book.follow(submit())
    third.admitted(15.0)
    third.ended(ENDED, 16.0)
    book.close(Outcome.OK)
    stages = [stage for stage, before in zip(counter.stages, ["", *counter.stages], strict=False) if stage != before]
    assert stages == ["admitted", "answering", "ending", "admitted", "ending", ""]
    assert len(counter.samples["time_to_first_token_seconds"]) == 1
    assert book.times.admitted == 11.0
    assert book.times.released == 16.0


def test_an_acknowledgement_that_comes_after_the_end_changes_no_count():
    counter = RequestCounter()
    book = journal(counter)
    watch = book.follow(submit())
    watch.admitted(11.0)
    book.close(Outcome.CLIENT_CANCELLED)
    before = list(counter.moves)
    watch.ended(ENDED, 99.0)
    assert counter.moves == before
