"""Which runner and which head a model gets, by what it is used for."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from tenure.config import EngineConfig, ModelChoice
from tenure.core.budget import StepBudget
from tenure.core.request import Request, RequestSpec
from tenure.engine.assembly import Engine, assemble
from tenure.errors import CallerError
from tenure.outcomes import Outcome
from tenure.pooling import PoolingParams, PoolingTask
from tenure.sampling import SamplingParams
from tenure.source import SourceKind
from tests.models.tiny import save_tiny

TEXT = list(range(3, 40))
NO, YES = 40, 77


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("decoder")
    _, reference = save_tiny("qwen3", folder)
    write_vocabulary(folder, range(199))
    return folder, reference


def write_vocabulary(folder: Path, ids: Iterable[int]) -> None:
    words = {NO: "no", YES: "yes"}
    vocabulary = {words.get(index, f"t{index}"): index for index in ids}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))


def make_engine(folder: Path, task: str | None, **fields) -> Engine:
    choice = ModelChoice(name="m", served_names=("m",), kind=SourceKind.FOLDER, path=str(folder), task=task)
    with torch.inference_mode():
        return assemble(EngineConfig(model=choice, max_num_seqs=2, kv_cache_memory=0.01, **fields))


def answer(engine: Engine, pooling: PoolingParams | None, max_tokens: int = 0, temperature: float = 0.0):
    """The outputs and the outcome of a request for TEXT."""
    sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature)
    request = Request(1, RequestSpec([TEXT], sampling, pooling=pooling))
    engine.scheduler.add(request)
    outputs = []
    while engine.scheduler.busy:
        plan = engine.scheduler.plan(StepBudget(tokens=100))
        engine.runner.launch(plan)
        outputs += engine.scheduler.land(engine.runner.land()).outputs
    return outputs, request.outcome


def test_a_decoder_with_no_task_generates(saved):
    folder, reference = saved
    engine = make_engine(folder, None)
    with torch.inference_mode():
        expected = int(reference(torch.tensor([TEXT])).logits[0, -1].argmax())
    outputs, _ = answer(engine, None, max_tokens=1)
    assert ([token for output in outputs for token in output.tokens], engine.card.tasks) == ([expected], ("generate",))


def test_rows_without_a_token_are_never_drawn(saved, tmp_path):
    folder, reference = saved
    with torch.inference_mode():
        ranked = reference(torch.tensor([TEXT])).logits[0, -1].argsort(descending=True).tolist()
    # The best have no token: some lie between tokens, some behind the last; two have one in the other file alone.
    known = sorted(set(range(190)) - set(ranked[:40]) | {ranked[30]})
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    write_vocabulary(tmp_path, set(known) - {ranked[30]})
    late = {str(ranked[30]): {"content": "<late>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": late}))
    engine = make_engine(tmp_path, None)
    outputs, _ = answer(engine, None, max_tokens=1)
    assert [token for output in outputs for token in output.tokens] == [ranked[30]]
    drawn, _ = answer(engine, None, max_tokens=150, temperature=2.0)
    assert {token for output in drawn for token in output.tokens} <= set(known)
    assert engine.card.vocabulary_size == max(known) + 1


def test_a_decoder_told_to_score_answers_with_the_words_of_its_vocabulary(saved):
    folder, reference = saved
    engine = make_engine(folder, "score")
    with torch.inference_mode():
        expected = reference(torch.tensor([TEXT])).logits[0, -1, [NO, YES]].softmax(-1)[1]
    (output,), outcome = answer(engine, PoolingParams(task=PoolingTask.CLASSIFY))
    assert (outcome, engine.card.tasks) == (Outcome.OK, ("score", "classify"))
    np.testing.assert_allclose(np.frombuffer(output.pooled.data, "<f4"), [float(expected)], atol=1e-4)


def test_a_decoder_told_to_embed_gives_vectors_of_length_one(saved):
    engine = make_engine(saved[0], "embed")
    (output,), _ = answer(engine, PoolingParams(task=PoolingTask.EMBED))
    vector = np.frombuffer(output.pooled.data, "<f4")
    assert (len(vector), engine.card.tasks) == (48, ("embed", "score"))
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-6)


def test_a_vocabulary_without_the_answers_is_refused_at_load(saved, tmp_path):
    save_tiny("qwen3", tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"yes": YES}}}))
    with pytest.raises(CallerError, match="'no' is no token of the model"):
        make_engine(tmp_path, "score")
