"""At depth 1 a step is planned and launched while another computes: the same texts, and nothing waits for over two.

A loop with scheduler and runner on a model whose next token depends on all before it, as read back from the cache.
"""

import queue
import threading
from collections.abc import Callable, Sequence

import pytest
import torch

from tenure.core.limits import Limits
from tenure.core.report import Output
from tenure.core.request import Request, RequestSpec
from tenure.core.scheduler import Scheduler
from tenure.engine.estimator import StepCostEstimator
from tenure.engine.loop import EngineLoop
from tenure.engine.orders import Add, Cancel, Ending, EngineSnapshot, Order, Stop
from tenure.engine.step_tuner import StepTuner
from tenure.kv.cache import CacheShape, KVCache
from tenure.layers.batch import PackedBatch
from tenure.model_runner.decoder_runner import DecoderRunner
from tenure.model_runner.sampler import Sampler
from tenure.model_runner.sampling_head import SamplingHead
from tenure.model_runner.step_results import StepResults
from tenure.outcomes import Outcome
from tenure.sampling import SamplingParams
from tests.model_runner.history_model import BLOCK_SIZE, HistoryModel, continued

LIMITS = Limits(max_model_len=60, num_blocks=24, block_size=BLOCK_SIZE, num_slots=4)
"""Too few blocks for four long texts: some are evicted, and computed again."""
Texts = dict[tuple[int, int], list[int]]


class Model(HistoryModel):
    """Calls `on_pass` with the number of each pass, in the thread that computes."""

    def __init__(self, on_pass: Callable[[int], None]) -> None:
        super().__init__()
        self.on_pass = on_pass

    def forward(self, batch: PackedBatch, cache: KVCache) -> torch.Tensor:
        self.on_pass(len(self.forward_rows) + 1)
        return super().forward(batch, cache)


class Engine:
    """Runs requests to their end; calls `on_emit` with the number of each message, in the loop's thread."""

    def __init__(self, depth: int, on_pass: Callable[[int], None] = lambda number: None) -> None:
        self.model = Model(on_pass)
        self.scheduler = Scheduler(LIMITS)
        self.orders: queue.Queue[Order] = queue.Queue()
        self.on_emit: Callable[[int], None] = lambda number: None
        self.texts: Texts = {}
        self.endings: dict[int, tuple[Outcome, int]] = {}
        """Outcome, and the number of steps that had been planned by then."""
        cache = KVCache(CacheShape((None,), 1, 1, torch.float32), LIMITS.num_blocks * 2, BLOCK_SIZE)
        head = SamplingHead(self.model, Sampler())
        results = StepResults(overlap=depth > 0)
        runner = DecoderRunner(self.model, cache, head, LIMITS.num_slots, LIMITS.max_model_len, results)
        tuner = StepTuner(StepCostEstimator(), max_tokens=16, step_time=0.0)
        self.loop = EngineLoop(self.scheduler, runner, self.orders, self, tuner, depth=depth)
        self._told = self._wanted = 0

    def publish(self, snapshot: EngineSnapshot) -> None:
        assert snapshot.conserved

    def show(self, snapshot: EngineSnapshot) -> None:
        raise AssertionError("nobody asked")

    def emit(self, step: int, outputs: list[Output], ended: list[Ending]) -> None:
        for output in outputs:
            self.texts.setdefault((output.request, output.index), []).extend(output.tokens)
        for ending in ended:
            assert ending.number not in self.endings
            self.endings[ending.number] = (ending.outcome, self.scheduler.counts.steps)
        self._told += 1
        self.on_emit(self._told)
        if len(self.endings) == self._wanted:
            self.orders.put(Stop())

    def run(self, requests: Sequence[Request], later: int = 0) -> "Engine":
        """Until these requests have ended, and as many others as are to be added `later`."""
        self._wanted = len(requests) + later
        for request in requests:
            self.orders.put(Add(lambda request=request: request))
        self.loop.run()
        self.scheduler.audit()
        ledger = self.scheduler.snapshot().ledger
        assert (ledger.leased, ledger.slots_free) == (0, ledger.slots_total)
        return self

    @property
    def outcomes(self) -> dict[int, Outcome]:
        return {number: outcome for number, (outcome, _) in self.endings.items()}


def requests() -> list[Request]:
    """Greedy and drawn texts, short and long ones, choices, ends that cannot be foreseen, prompts in several pieces."""
    greedy = SamplingParams(max_tokens=30, temperature=0.0)
    drawn = SamplingParams(max_tokens=25, temperature=1.3, top_p=0.9, seed=5, frequency_penalty=0.4)
    stopping = SamplingParams(max_tokens=30, temperature=0.9, seed=6, stop_token_ids=tuple(range(0, 67, 6)))
    return [
        Request(1, RequestSpec([[5, 9, 2, 7, 1, 3]], greedy)),
        Request(2, RequestSpec([[8, 6, 4], [1, 2, 3, 4, 5, 6, 7, 8, 9] * 3], drawn, n=2)),
        Request(3, RequestSpec([[11, 12]], stopping, n=2)),
        Request(4, RequestSpec([[20, 21, 22]], greedy, plan_ahead=False)),
        Request(5, RequestSpec([[30] * 29], stopping)),
    ]


def test_texts_are_the_same_at_both_depths() -> None:
    plain, overlapped = Engine(0).run(requests()), Engine(1).run(requests())
    assert set(overlapped.outcomes.values()) == {Outcome.OK}
    assert overlapped.texts == plain.texts
    assert plain.texts[1, 0] == continued([5, 9, 2, 7, 1, 3], 30)
    assert plain.scheduler.counts.preemptions
    assert overlapped.scheduler.counts.preemptions


def test_a_cancel_at_every_moment_waits_for_two_steps_at_most_and_changes_no_other_text() -> None:
    plain = Engine(0).run(requests())
    for moment in range(1, plain.scheduler.counts.steps):
        number = moment % 5 + 1
        engine = Engine(1)
        planned: dict[str, int] = {}

        def cancel(told: int, engine: Engine = engine, moment: int = moment, planned: dict[str, int] = planned) -> None:
            if told == moment:
                planned["steps"] = engine.scheduler.counts.steps
                engine.orders.put(Cancel(moment % 5 + 1, Outcome.CLIENT_CANCELLED))

        engine.on_emit = cancel
        engine.run(requests())
        outcome, steps = engine.endings[number]
        assert outcome in (Outcome.CLIENT_CANCELLED, Outcome.OK)
        if outcome is Outcome.CLIENT_CANCELLED:
            assert steps <= planned["steps"] + 1  # the step that was in flight lands while the next one is planned
        for key, text in engine.texts.items():
            assert text == plain.texts[key][: len(text)]
            assert key[0] == number or text == plain.texts[key]
        assert all(ending is Outcome.OK for other, ending in engine.outcomes.items() if other != number)


def test_the_next_step_is_planned_and_launched_while_one_computes() -> None:
    launched = threading.Semaphore(0)
    passes: list[bool] = []

    def on_pass(number: int) -> None:
        passes.append(launched.acquire(timeout=60))  # each pass but the last goes on once the next step is launched

    engine = Engine(1, lambda number: on_pass(number) if number < 20 else None)
    launch = engine.loop._runner.launch

    def note_launch(plan) -> None:
        launch(plan)
        if plan.number > 1:
            launched.release()

    engine.loop._runner.launch = note_launch  # type: ignore[method-assign]
    engine.run([Request(1, RequestSpec([[5, 9, 2]], SamplingParams(max_tokens=20, temperature=0.0)))])
    assert passes == [True] * 19
    assert engine.texts[1, 0] == continued([5, 9, 2], 20)


def test_a_row_that_cannot_be_foreseen_skips_a_step_and_others_do_not() -> None:
    params = SamplingParams(max_tokens=10, temperature=0.0)
    engine = Engine(1).run(
        [Request(1, RequestSpec([[5, 9, 2]], params, plan_ahead=False)), Request(2, RequestSpec([[8, 6, 4]], params))]
    )
    assert engine.texts == {(1, 0): continued([5, 9, 2], 10), (2, 0): continued([8, 6, 4], 10)}
    assert engine.endings[2][1] == 10 + 1  # a token in each step; when the tenth landed, the next one was on its way
    assert engine.endings[1][1] == 10 + 5  # a token in every other step, and in each of those that it had alone


@pytest.mark.parametrize("depth", [0, 1])
def test_a_step_that_fails_ends_its_requests_and_no_later_ones(depth: int) -> None:
    params = SamplingParams(max_tokens=10, temperature=0.0)

    def on_pass(number: int) -> None:
        if number == 4:
            engine.orders.put(Add(lambda: Request(3, RequestSpec([[7, 7]], params))))
            raise RuntimeError("out of memory")

    engine = Engine(depth, on_pass)
    passes = iter(range(1, 1000))
    engine.model.on_pass = lambda number: on_pass(next(passes))
    engine.run([Request(1, RequestSpec([[5, 9, 2]], params)), Request(2, RequestSpec([[8, 6, 4]], params))], later=1)
    assert engine.outcomes == {1: Outcome.ENGINE_ERROR, 2: Outcome.ENGINE_ERROR, 3: Outcome.OK}
    assert engine.texts[3, 0] == continued([7, 7], 10)
