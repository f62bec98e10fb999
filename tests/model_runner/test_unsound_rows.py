"""A request that overflows fails alone, and at once: whoever gets its blocks, from the cache or as free ones, is sound.

Greedy text of a small random decoder through scheduler and runner. What it stores of one token can be made to
overflow after the step's hidden states are computed, so that these are finite.
"""

import queue
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tenure.core.limits import Limits
from tenure.core.report import Output
from tenure.core.request import Request, RequestSpec
from tenure.core.scheduler import Scheduler
from tenure.engine.estimator import StepCostEstimator
from tenure.engine.loop import EngineLoop
from tenure.engine.orders import Add, Ending, EngineSnapshot, Order, Stop
from tenure.engine.step_tuner import StepTuner
from tenure.kv.cache import KVCache
from tenure.layers.batch import PackedBatch
from tenure.model_runner.decoder_runner import UNSOUND, DecoderRunner
from tenure.model_runner.sampler import Sampler
from tenure.model_runner.sampling_head import SamplingHead
from tenure.model_runner.step_results import StepResults
from tenure.models.llama import LlamaModel
from tenure.models.loader import load
from tenure.outcomes import Outcome
from tenure.sampling import SamplingParams
from tests.models.greedy import BLOCK_SIZE, make_cache
from tests.models.tiny import save_tiny

NUM_BLOCKS = 5
CHUNK = 24
FATAL = 150
KEY, VALUE = 0, 1
FIRST = [5, 9, 2, FATAL, *range(3, 39)]
"""Overflows in its first piece of two, in the block that this completes."""
SECOND = [*range(3, 40), FATAL, 7, 8]
"""Overflows in its second piece; the first completes a block."""
UNRELATED = [*range(70, 136)]
"""Takes every block. The last one is hardly begun: the rest of it is as its last owner left it."""


class Overflowing:
    """A model whose key or value (`part`) of the token FATAL is infinite in its last layer, while it is `hot`.

    The pass over this token then raises as well if `raises` says so: once it has written, or when logits are asked for.
    """

    def __init__(self, model: LlamaModel, part: int) -> None:
        self.hot = False
        self.raises = ""
        self._model = model
        self._part = part

    def forward(self, batch: PackedBatch, cache: KVCache) -> Tensor:
        hidden_TD = self._model.forward(batch, cache)
        if self.hot:
            slots = batch.slot_mapping_T[batch.token_ids_T == FATAL]
            cache.layers[-1][slots // BLOCK_SIZE, self._part, :, slots % BLOCK_SIZE] = -torch.inf
            if len(slots) and self.raises == "pass":
                raise RuntimeError("out of memory")
        return hidden_TD

    def logits(self, hidden_RD: Tensor) -> Tensor:
        if self.hot and self.raises == "head":
            raise RuntimeError("out of memory")
        return self._model.logits(hidden_RD)


class Engine:
    """Loop, scheduler and runner in one thread; a step takes `CHUNK` tokens of a prompt. It is its loop's port."""

    def __init__(self, model: LlamaModel, part: int = KEY, depth: int = 0) -> None:
        limits = Limits(max_model_len=80, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, num_slots=4)
        self.model = Overflowing(model, part)
        self.scheduler = Scheduler(limits)
        head = SamplingHead(self.model, Sampler())
        cache = make_cache(model, NUM_BLOCKS)
        runner = DecoderRunner(
            self.model, cache, head, limits.num_slots, limits.max_model_len, StepResults(overlap=depth > 0)
        )
        tuner = StepTuner(StepCostEstimator(), max_tokens=CHUNK, step_time=0.0)
        self._orders: queue.Queue[Order] = queue.Queue()
        self._loop = EngineLoop(self.scheduler, runner, self._orders, self, tuner, depth=depth)
        self._texts: dict[int, list[int]] = {}
        self._numbers = 0

    def publish(self, snapshot: EngineSnapshot) -> None:
        pass

    def emit(self, step: int, outputs: list[Output], ended: list[Ending]) -> None:
        for output in outputs:
            self._texts[output.request] += output.tokens
        if ended and not self.scheduler.busy:
            self._orders.put(Stop())

    def run(self, prompts: Sequence[list[int]], max_tokens: int = 8) -> tuple[list[Request], list[list[int]]]:
        """Requests that run together, and their texts."""
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        requests = [
            Request(self._numbers + number, RequestSpec([prompt], sampling)) for number, prompt in enumerate(prompts, 1)
        ]
        self._numbers += len(prompts)
        self._texts = {request.number: [] for request in requests}
        for request in requests:
            self._orders.put(Add(lambda request=request: request))
        self._loop.run()
        self.scheduler.audit()
        return requests, list(self._texts.values())

    def fail(self, prompt: list[int]) -> int:
        """Run a prompt that overflows, and no other; in how many steps it has failed."""
        before = self.scheduler.counts.steps
        self.model.hot = True
        [request], [text] = self.run([prompt])
        self.model.hot = False
        assert request.outcome is Outcome.ENGINE_ERROR
        assert self.model.raises or request.message == UNSOUND
        assert text == []
        return self.scheduler.counts.steps - before

    def sound(self, prompt: list[int]) -> list[int]:
        """The text of a prompt, which ends well."""
        [request], [text] = self.run([prompt])
        assert request.outcome is Outcome.OK
        return text


@pytest.fixture(scope="module", params=["torch", None], ids=["torch's attention", "the best attention"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LlamaModel:
    source, _ = save_tiny("llama3-rope", tmp_path_factory.mktemp("tiny"))
    return load(source, attention=request.param)


parts = pytest.mark.parametrize("part", [KEY, VALUE], ids=["key", "value"])


@parts
@pytest.mark.parametrize(("prompt", "steps", "cached"), [(FIRST, 1, 0), (SECOND, 2, BLOCK_SIZE)], ids=["1st", "2nd"])
def test_the_same_beginning_is_found_again_as_far_as_it_was_sound(
    model: LlamaModel, part: int, prompt: list[int], steps: int, cached: int
) -> None:
    expected = Engine(model).sound(prompt)
    engine = Engine(model, part)
    assert engine.fail(prompt) == steps
    assert engine.sound(prompt) == expected
    assert engine.scheduler.counts.cached == cached


@parts
@pytest.mark.parametrize("prompt", [FIRST, SECOND], ids=["1st", "2nd"])
def test_an_unrelated_request_that_gets_the_blocks_is_sound(model: LlamaModel, part: int, prompt: list[int]) -> None:
    expected = Engine(model).sound(UNRELATED)
    engine = Engine(model, part)
    engine.fail(prompt)
    assert engine.sound(UNRELATED) == expected


@pytest.mark.parametrize("depth", [0, 1])
@parts
@pytest.mark.parametrize("raises", ["pass", "head"])
def test_a_step_that_raises_leaves_nothing_behind_that_is_not_finite(
    model: LlamaModel, part: int, raises: str, depth: int
) -> None:
    failing, innocent = [*range(3, 22), FATAL, 7, 8], UNRELATED[:18]
    expected = Engine(model).sound(innocent)
    engine = Engine(model, part, depth)
    engine.model.raises = raises
    engine.fail(failing)
    assert engine.sound(innocent) == expected  # in the same two blocks, the second of which it hardly begins


@pytest.mark.parametrize("depth", [0, 1])
def test_an_overflow_concerns_none_that_run_beside_it(model: LlamaModel, depth: int) -> None:
    neighbour = [80, 81, 82, 83, 84]
    expected = Engine(model).sound(neighbour)
    engine = Engine(model, depth=depth)
    engine.model.hot = True
    requests, texts = engine.run([neighbour, FIRST])
    assert [request.outcome for request in requests] == [Outcome.OK, Outcome.ENGINE_ERROR]
    assert texts == [expected, []]
