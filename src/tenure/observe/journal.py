"""The stages, times and token counts of one work request, and the histogram samples that they give.

    received --admitted--> admitted --first output--> answering --the engine holds nothing--> ending --> (closed)

From admitted and answering a request goes to `ending` when its engine lets go of it for whatever reason. One that asks
an engine again goes back to `admitted`; with several asked at a time it is as far as the first that has got somewhere.

Owner: the guard makes one for each exchange and closes it when it counts the exchange out. In between only the watches
of its generations change it, in the connections' receive tasks. A sample is entered at its event and never without it:
a request that is cancelled before its first token has no time to it. Times are monotonic seconds.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tenure.observe.counters import WorkerCounters, WorkStage
from tenure.outcomes import Outcome
from tenure.sampling import SamplingParams
from tenure.wire.messages import Ended, ItemOutput, Submit


@dataclass(slots=True)
class Times:
    """Monotonic seconds; None for what has not happened. Of several generations the first of each, but the last end."""

    received: float
    admitted: float | None = None
    first_output: float | None = None
    first_token: float | None = None
    released: float | None = None
    """When the engine held nothing any more."""
    queue_seconds: float | None = None
    """From the admission to the first step with a row of the request; known once the engine has ended it."""


@dataclass(slots=True)
class Tokens:
    """`prompt` counts each prompt once; `output` are all tokens that came, those of a cancelled request too."""

    prompt: int = 0
    cached: int = 0
    computed: int = 0
    """What the cache did not have of each item's prompt."""
    output: int = 0
    longest: int = 0
    """Of the item with the most output."""
    later: int = 0
    """All but the first of each item."""
    later_seconds: float = 0.0
    """From each item's first token to its last one."""


@dataclass(slots=True)
class EngineParams:
    """The parameters of the request to the engine."""

    sampling: SamplingParams | None = None
    """None where nothing is sampled."""
    choices: int = 1
    generations: int = 0


@dataclass(slots=True)
class Journal:
    """See the module's docstring. `model` is the served name under which the request is counted."""

    counter: WorkerCounters
    times: Times
    model: str = ""
    stage: WorkStage = WorkStage.RECEIVED
    tokens: Tokens = field(default_factory=Tokens)
    params: EngineParams = field(default_factory=EngineParams)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    _running: int = 0
    _closed: bool = False
    _counted_as: str = ""

    def follow(self, submit: Submit) -> "Watch":
        """Return a watcher for a generation of this request."""
        self.params.sampling = submit.sampling if submit.pooling is None else None
        self.params.choices = submit.n
        self.tokens.prompt += submit.prompts.total
        return Watch(self, [length for length in submit.prompts.lengths() for _ in range(submit.n)])

    def close(self, outcome: Outcome) -> None:
        """The request is over. Token histograms get samples only for the outcome `ok`."""
        self.counter.move(self._counted_as, self.stage, None)
        self._closed = True
        if outcome is not Outcome.OK or not self.params.generations:
            return
        sizes: list[tuple[str, float]] = [("request_prompt_tokens", self.tokens.prompt)]
        if self.params.sampling is not None:
            sizes += [
                ("request_output_tokens", self.tokens.output),
                ("request_longest_output_tokens", self.tokens.longest),
                ("request_computed_prompt_tokens", self.tokens.computed),
                ("request_choices", self.params.choices),
                ("request_max_tokens", self.params.sampling.max_tokens),
            ]
            if self.tokens.later:
                sizes.append(("request_token_seconds", self.tokens.later_seconds / self.tokens.later))
        for name, size in sizes:
            self.counter.observe(name, size, self.model)

    # for the watches

    def admitted(self, now: float) -> None:
        if not self.params.generations:
            self.times.admitted = now
            self._counted_as = self.model
        self.params.generations += 1
        self._running += 1
        if self.stage is not WorkStage.ANSWERING:
            self._move(WorkStage.ADMITTED)

    def first_output(self, now: float, tokens: Sequence[int]) -> None:
        """The first output of a generation, or of an item of it, has arrived."""
        if self.stage is not WorkStage.ANSWERING:
            self._move(WorkStage.ANSWERING)
        if self.times.first_output is None:
            self.times.first_output = now
        if tokens and self.times.first_token is None:
            self.times.first_token = now
            self.counter.observe("time_to_first_token_seconds", now - self.times.received, self.model)

    def ended(self, ended: Ended | None, now: float) -> None:
        self._running -= 1
        self.times.released = now
        if self.times.queue_seconds is None and ended is not None:
            self.times.queue_seconds = ended.queue_seconds
        if not self._running:
            self._move(WorkStage.ENDING)

    def _move(self, stage: WorkStage) -> None:
        if not self._closed:  # else an engine has acknowledged a cancel after all, when nobody waited for it any longer
            self.counter.move(self._counted_as, self.stage, stage)
            self.stage = stage


class Watch:
    """The `client.Watcher` of one generation; `prompts` are the prompt lengths of its items."""

    __slots__ = ("_first", "_items", "_journal", "_last", "_prompts")

    def __init__(self, journal: Journal, prompts: Sequence[int]) -> None:
        self._journal = journal
        self._prompts = prompts
        self._first = [0.0] * len(prompts)  # when an item's first output came
        self._last = [0.0] * len(prompts)  # and its newest tokens
        self._items = [0] * len(prompts)  # tokens of each

    def admitted(self, now: float) -> None:
        self._journal.admitted(now)

    def output(self, output: ItemOutput, now: float) -> None:
        journal, index = self._journal, output.index
        last = self._last[index]
        if not last:
            journal.first_output(now, output.tokens)
        if not self._first[index]:
            self._first[index] = now
            journal.tokens.cached += output.cached_tokens
            journal.tokens.computed += self._prompts[index] - output.cached_tokens
        if output.tokens:
            if last:
                journal.counter.observe("inter_token_seconds", now - last, journal.model)
                journal.tokens.later += len(output.tokens)
            self._last[index] = now
            self._items[index] += len(output.tokens)
        if output.finish_reason is not None:
            journal.finish_reasons[output.finish_reason] += 1

    def ended(self, ended: Ended | None, now: float) -> None:
        tokens = self._journal.tokens
        tokens.output += sum(self._items)
        tokens.longest = max(tokens.longest, *self._items)
        spans = zip(self._first, self._last, strict=True)
        tokens.later_seconds += sum(last - first for first, last in spans if last)
        self._journal.ended(ended, now)
