"""Greedy text of SmolLM2 through scheduler and runner: 200 tokens for ten prompts, whatever runs beside them.

Transformers' own implementation is the judge. It is given each finished text as a whole, so each token is compared with
its best token at that place; a difference counts only where its two best logits are not closer than 1e-4.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tenure.core.budget import StepBudget
from tenure.core.limits import Limits
from tenure.core.request import Request, RequestSpec
from tenure.core.scheduler import Scheduler
from tenure.model_runner.decoder_runner import DecoderRunner
from tenure.model_runner.sampler import Sampler
from tenure.model_runner.sampling_head import SamplingHead
from tenure.models.llama import LlamaModel
from tenure.outcomes import Outcome
from tenure.sampling import SamplingParams
from tenure.source import resolve_source
from tenure.text.tokenizer import load_tokenizer
from tests.models.greedy import make_cache
from tests.models.reference import smollm2, smollm2_reference

NEW_TOKENS = 200
TOLERANCE = 1e-4
OPENINGS = (
    "The history of the city of Rome begins",
    "def fibonacci(n):\n    ",
    "Dear Sir or Madam,\n\nI am writing to you",
    "Once upon a time, in a small village by the sea,",
    "Photosynthesis is the process by which",
    "The three most important things in cooking are",
    "1, 1, 2, 3, 5, 8, 13,",
    "Question: Why is the sky blue?\nAnswer:",
    "She opened the old wooden box and",
    "In mathematics, a prime number is",
)


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    return smollm2()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tokenizer = load_tokenizer(resolve_source("smollm2"))
    return [tokenizer.encode(text, add_special_tokens=False) for text in OPENINGS]


@pytest.fixture(scope="module")
def together(model: LlamaModel, prompts: list[list[int]]) -> list[list[int]]:
    engine = Engine(model)
    texts = engine.texts(prompts)
    assert engine.scheduler.counts.cached == 0, "each token was computed for these texts"
    return texts


class Engine:
    """Scheduler and runner in one thread, as the engine loop drives them with `--step-time 0`."""

    def __init__(self, model: LlamaModel, *, num_blocks: int = 400, tokens: int = 2048) -> None:
        limits = Limits(max_model_len=2048, num_blocks=num_blocks, block_size=16, num_slots=16)
        self.scheduler = Scheduler(limits)
        cache = make_cache(model, num_blocks)
        head = SamplingHead(model, Sampler())
        self._runner = DecoderRunner(model, cache, head, limits.num_slots, limits.max_model_len)
        self._budget = StepBudget(tokens=tokens)
        self._numbers = 0

    def add(self, prompt: Sequence[int], max_tokens: int = NEW_TOKENS) -> int:
        self._numbers += 1
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        self.scheduler.add(Request(self._numbers, RequestSpec([prompt], sampling)))
        return self._numbers

    def step(self) -> list[tuple[int, int]]:
        """One step; (request, token) of each item that sampled."""
        plan = self.scheduler.plan(self._budget)
        assert plan is not None
        with torch.inference_mode():
            self._runner.launch(plan)
        effects = self.scheduler.land(self._runner.land())
        return [(output.request, token) for output in effects.outputs for token in output.tokens]

    def texts(self, prompts: Sequence[Sequence[int]], max_tokens: int = NEW_TOKENS) -> list[list[int]]:
        """Greedy tokens of prompts that run together."""
        produced: dict[int, list[int]] = {self.add(prompt, max_tokens): [] for prompt in prompts}
        while self.scheduler.busy:
            for number, token in self.step():
                if number in produced:
                    produced[number].append(token)
        self.scheduler.audit()
        return list(produced.values())


@torch.inference_mode()
def first_fault(reference: Any, prompt: list[int], text: list[int]) -> str | None:
    """Where `text` is not what the reference would say, given all before it."""
    logits = reference(torch.tensor([prompt + text])).logits[0, len(prompt) - 1 : -1]
    best = logits.max(dim=-1).values
    chosen = logits.gather(1, torch.tensor(text).unsqueeze(1)).squeeze(1)
    wrong = torch.nonzero(best - chosen > TOLERANCE)
    return f"token {int(wrong[0])} is off by {float((best - chosen)[wrong[0]])}" if len(wrong) else None


@torch.inference_mode()
def first_difference(reference: Any, prompt: list[int], one: list[int], other: list[int]) -> str | None:
    """Where two texts part although the reference's two best logits are not close there."""
    if one == other:
        return None
    at = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    two = reference(torch.tensor([prompt + one[:at]])).logits[0, -1].topk(2).values
    gap = float(two[0] - two[1])
    return f"they part at token {at}, where the best leads by {gap}" if gap > TOLERANCE else None


@pytest.fixture(scope="module")
def reference() -> Any:
    return smollm2_reference()


def test_the_text_is_that_of_transformers(reference: Any, prompts: list[list[int]], together: list[list[int]]) -> None:
    assert [len(text) for text in together] == [NEW_TOKENS] * len(prompts)
    faults = [first_fault(reference, prompt, text) for prompt, text in zip(prompts, together, strict=True)]
    assert faults == [None] * len(prompts)


@pytest.mark.parametrize(
    "engine",
    [pytest.param({"tokens": 12}, id="in small chunks"), pytest.param({"num_blocks": 50}, id="with evictions")],
)
def test_the_text_does_not_depend_on_the_engine(
    model: LlamaModel, reference: Any, prompts: list[list[int]], together: list[list[int]], engine: dict[str, Any]
) -> None:
    some = slice(0, 4) if "num_blocks" in engine else slice(None)
    used = Engine(model, **engine)
    texts = used.texts(prompts[some])
    assert ("num_blocks" in engine) == (used.scheduler.counts.preemptions > 0)
    parts = zip(prompts[some], texts, together[some], strict=True)
    assert [fault for fault in (first_difference(reference, *part) for part in parts) if fault] == []


def test_the_text_does_not_depend_on_the_neighbours(
    model: LlamaModel, reference: Any, prompts: list[list[int]], together: list[list[int]]
) -> None:
    alone = Engine(model)
    texts = [alone.texts([prompt])[0] for prompt in prompts[:2]]
    parts = zip(prompts[:2], texts, together[:2], strict=True)
    assert [fault for fault in (first_difference(reference, *part) for part in parts) if fault] == []


def test_the_text_does_not_depend_on_neighbours_that_are_aborted(
    model: LlamaModel, reference: Any, prompts: list[list[int]], together: list[list[int]]
) -> None:
    engine = Engine(model)
    watched = engine.add(prompts[0])
    text: list[int] = []
    neighbours: list[int] = []
    while engine.scheduler.busy and len(text) < NEW_TOKENS:
        if len(text) % 4 == 0:
            neighbours.append(engine.add(prompts[len(neighbours) % len(prompts)]))
        text += [token for number, token in engine.step() if number == watched]
        if len(text) % 4 == 3 and len(neighbours) > 1:
            engine.scheduler.cancel(neighbours[-2], Outcome.CLIENT_CANCELLED)
    assert first_difference(reference, prompts[0], text, together[0]) is None


def test_a_cached_beginning_gives_the_same_text(
    model: LlamaModel, reference: Any, prompts: list[list[int]], together: list[list[int]]
) -> None:
    engine = Engine(model)
    long = prompts[0] + together[0][:100]
    engine.texts([long], max_tokens=1)
    before = engine.scheduler.counts.cached
    again = engine.texts([long], max_tokens=100)[0]
    assert engine.scheduler.counts.cached - before >= len(long) // 16 * 16 - 16
    assert first_difference(reference, prompts[0], together[0][:100] + again, together[0]) is None
