"""Small random decoders as embedders and rerankers, through scheduler and runner, against Transformers' own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tenure.core.budget import StepBudget
from tenure.core.limits import Limits
from tenure.core.report import Effects
from tenure.core.request import Request, RequestSpec
from tenure.core.scheduler import Scheduler
from tenure.model_runner.decoder_runner import UNSOUND, DecoderRunner
from tenure.model_runner.pooling_head import PoolingHead
from tenure.models.loader import AnswerHead, LabelHead, OutputHead, load
from tenure.outcomes import Outcome
from tenure.pooling import PoolingParams, PoolingTask
from tenure.sampling import SamplingParams
from tenure.source import ResolvedSource, SourceKind
from tests.models.greedy import make_cache
from tests.models.tiny import COMMON, save_tiny

TOLERANCE = 1e-4
EMBED, CLASSIFY = PoolingParams(task=PoolingTask.EMBED), PoolingParams(task=PoolingTask.CLASSIFY)
NO, YES = 40, 77


def random_tokens(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 199, length).tolist()


TEXTS = [random_tokens(length, seed=length) for length in (70, 1, 33, 16, 5)]


class Reader:
    """Scheduler and runner in one thread, around a model that reads."""

    def __init__(self, source: ResolvedSource, head: OutputHead, *, normalize: bool = True, tokens: int = 2048) -> None:
        model = load(source, head=head)
        limits = Limits(max_model_len=512, num_blocks=64, block_size=16, num_slots=8)
        task = PoolingTask.EMBED if head is None else PoolingTask.CLASSIFY
        pooling = PoolingHead(model, task, normalize)
        self.scheduler = Scheduler(limits)
        self.model = model
        self._runner = DecoderRunner(model, make_cache(model, 64), pooling, limits.num_slots, limits.max_model_len)
        self._budget = StepBudget(tokens=tokens)
        self._requests = 0

    def add(self, texts: Sequence[Sequence[int]], pooling: PoolingParams) -> Request:
        self._requests += 1
        request = Request(self._requests, RequestSpec(texts, SamplingParams(max_tokens=0), pooling=pooling))
        self.scheduler.add(request)
        return request

    def step(self) -> Effects:
        plan = self.scheduler.plan(self._budget)
        assert plan is not None
        self._runner.launch(plan)
        return self.scheduler.land(self._runner.land())

    def read(self, texts: Sequence[Sequence[int]], pooling: PoolingParams) -> np.ndarray:
        """The answers to texts of one request, a row for each."""
        request = self.add(texts, pooling)
        answers: dict[int, np.ndarray] = {}
        while self.scheduler.busy:
            for output in self.step().outputs:
                assert output.pooled is not None
                assert output.finish_reason == "stop"
                answers[output.index] = np.frombuffer(output.pooled.data, "<f4")
        self.scheduler.audit()
        assert request.outcome is Outcome.OK
        return np.stack([answers[index] for index in range(len(texts))])


@pytest.fixture(scope="module", params=["qwen3", "llama3-rope"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ResolvedSource, Any]:
    return save_tiny(request.param, tmp_path_factory.mktemp(request.param))


@torch.inference_mode()
def reference_embeddings(reference: Any, texts: Sequence[Sequence[int]]) -> torch.Tensor:
    states = [reference.model(torch.tensor([text])).last_hidden_state[0, -1] for text in texts]
    return F.normalize(torch.stack(states), dim=-1)


@torch.inference_mode()
def reference_scores(reference: Any, texts: Sequence[Sequence[int]]) -> torch.Tensor:
    logits = torch.stack([reference(torch.tensor([text])).logits[0, -1] for text in texts])
    return logits[:, [NO, YES]].softmax(-1)[:, 1]


def assert_close(ours: np.ndarray, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(torch.tensor(ours), theirs, atol=TOLERANCE, rtol=TOLERANCE)


def test_embeddings_are_the_last_states_of_transformers(saved: tuple[ResolvedSource, Any]) -> None:
    source, reference = saved
    expected = reference_embeddings(reference, TEXTS)
    reader = Reader(source, None)
    together = reader.read(TEXTS, EMBED)
    assert_close(together, expected)
    alone = np.concatenate([Reader(source, None).read([text], EMBED) for text in TEXTS])
    np.testing.assert_allclose(alone, together, atol=1e-5)


def test_embeddings_of_texts_that_come_in_chunks(saved: tuple[ResolvedSource, Any]) -> None:
    source, reference = saved
    assert_close(Reader(source, None, tokens=17).read(TEXTS, EMBED), reference_embeddings(reference, TEXTS))


def test_a_text_may_fill_the_window(saved: tuple[ResolvedSource, Any]) -> None:
    source, reference = saved
    text = random_tokens(512, seed=2)
    assert_close(Reader(source, None, tokens=100).read([text], EMBED), reference_embeddings(reference, [text]))


def test_embeddings_with_a_cached_beginning(saved: tuple[ResolvedSource, Any]) -> None:
    source, reference = saved
    reader = Reader(source, None)
    reader.read(TEXTS, EMBED)
    later = [TEXTS[0][:50] + random_tokens(9, seed=1), TEXTS[0], TEXTS[3]]
    assert_close(reader.read(later, EMBED), reference_embeddings(reference, later))
    assert reader.scheduler.counts.cached == 48 + 64


def test_scores_are_the_softmax_over_the_answers(saved: tuple[ResolvedSource, Any]) -> None:
    source, reference = saved
    reader = Reader(source, AnswerHead(NO, YES), tokens=40)
    scores = reader.read(TEXTS, CLASSIFY)
    assert scores.shape == (len(TEXTS), 1)
    assert_close(scores[:, 0], reference_scores(reference, TEXTS))
    raw = reader.read(TEXTS, PoolingParams(task=PoolingTask.CLASSIFY, activation=False))
    assert_close(raw[:, 0], reference_scores(reference, TEXTS).logit())


def test_tied_output_weights_give_the_answers_too(tmp_path: Path) -> None:
    source, reference = save_tiny("qwen3-tied-biased", tmp_path)
    scores = Reader(source, AnswerHead(NO, YES)).read(TEXTS, CLASSIFY)
    assert_close(scores[:, 0], reference_scores(reference, TEXTS))


def test_a_checkpoint_without_output_weights_embeds(saved: tuple[ResolvedSource, Any], tmp_path: Path) -> None:
    """As sentence-transformers saves it: neither a head nor the first part of the names."""
    _, reference = saved
    reference.model.save_pretrained(tmp_path)
    source = ResolvedSource(SourceKind.FOLDER, tmp_path, "bare")
    assert_close(Reader(source, None).read(TEXTS, EMBED), reference_embeddings(reference, TEXTS))


@pytest.mark.parametrize("labels", [1, 3])
def test_sequence_classifiers(labels: int, tmp_path: Path) -> None:
    import transformers as hf  # noqa: PLC0415 - seconds to import; only this test needs it here

    torch.manual_seed(labels)
    reference = hf.Qwen3ForSequenceClassification(hf.Qwen3Config(**COMMON, head_dim=16, num_labels=labels)).eval()
    reference.save_pretrained(tmp_path)
    ours = Reader(ResolvedSource(SourceKind.FOLDER, tmp_path, "m"), LabelHead(labels)).read(TEXTS, CLASSIFY)
    with torch.inference_mode():
        logits = torch.cat([reference(torch.tensor([text])).logits for text in TEXTS])
    assert_close(ours, logits.sigmoid() if labels == 1 else logits.softmax(-1))


def test_a_text_that_meets_broken_weights_fails_its_own_request_only(
    saved: tuple[ResolvedSource, Any], tmp_path: Path
) -> None:
    _, reference = saved
    with torch.no_grad():
        kept = reference.model.embed_tokens.weight[150].clone()
        reference.model.embed_tokens.weight[150] = torch.nan
    reference.save_pretrained(tmp_path)
    with torch.no_grad():
        reference.model.embed_tokens.weight[150] = kept
    reader = Reader(ResolvedSource(SourceKind.FOLDER, tmp_path, "m"), None, tokens=30)
    sound = [text for text in TEXTS if 150 not in text]
    broken, whole = reader.add([[5, 150, *range(3, 60)]], EMBED), reader.add(sound, EMBED)
    answers = {}
    while reader.scheduler.busy:
        for output in reader.step().outputs:
            assert output.request == whole.number
            assert output.pooled is not None
            answers[output.index] = np.frombuffer(output.pooled.data, "<f4")
    assert (broken.outcome, broken.message) == (Outcome.ENGINE_ERROR, UNSOUND)
    assert whole.outcome is Outcome.OK
    assert len(sound) > 2
    assert_close(np.stack([answers[i] for i in range(len(sound))]), reference_embeddings(reference, sound))
