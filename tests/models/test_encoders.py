"""Encoders against Transformers' own models, float32: classes, pooling, token embeddings; and what must not matter."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tenure.errors import CallerError
from tenure.kernels.native import can_run_avx512
from tenure.layers.pooling import unit_rows
from tenure.models.bert import ROWS_AT_ONCE
from tenure.pooling import PoolingParams, PoolingTask
from tenure.source import ResolvedSource
from tests.layers.threads import threads as using
from tests.models.tiny_encoders import FAMILIES, edit_json, hidden_states, load_own, random_texts, run, save_encoder

TOLERANCE = 1e-4
ALONE = 1e-5
"""How far an answer may move with what else is in the batch."""
LENGTHS = (17, 1, 40, 17, 2, 64, 40, 98)
EMBED = PoolingParams(task=PoolingTask.EMBED)
TOKEN_EMBED = PoolingParams(task=PoolingTask.TOKEN_EMBED)
CLASSIFY = PoolingParams(task=PoolingTask.CLASSIFY)
TOKEN_CLASSIFY = PoolingParams(task=PoolingTask.TOKEN_CLASSIFY)


def raw(params: PoolingParams) -> PoolingParams:
    return PoolingParams(task=params.task, activation=False)


def assert_close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=0)


def logits(reference: Any, text: list[int], segment: int = 0) -> torch.Tensor:
    types = [0] * len(text)
    if segment and reference.config.type_vocab_size > 1:
        types[segment:] = [1] * (len(text) - segment)
    with torch.inference_mode():
        found: torch.Tensor = reference(torch.tensor([text]), token_type_ids=torch.tensor([types])).logits
    return found


@pytest.mark.parametrize("labels", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_cross_encoders_read_pairs_as_transformers_does(family: str, labels: int, tmp_path: Path) -> None:
    source, reference = save_encoder(family, tmp_path, "ForSequenceClassification", num_labels=labels)
    model = load_own(source)
    pairs, segments = random_texts((20, 9, 64, 20)), (7, 4, 33, 0)
    theirs = [logits(reference, pair, segment) for pair, segment in zip(pairs, segments, strict=True)]
    for ours, expected in zip(run(model, pairs, raw(CLASSIFY), segments), theirs, strict=True):
        assert_close(ours, expected)
    for ours, expected in zip(run(model, pairs, CLASSIFY, segments), theirs, strict=True):
        assert_close(ours, expected.sigmoid() if labels == 1 else expected.softmax(-1))


@pytest.mark.parametrize("attention", ["torch", None])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_that_none_attends_to_attend_to_the_others(family: str, attention: str | None, tmp_path: Path) -> None:
    source, reference = save_encoder(family, tmp_path)
    model = load_own(source, attention=attention)
    texts, unattended = random_texts(LENGTHS), (0, 0, 39, 9, 1, 0, 8, 50)
    together = run(model, texts, raw(TOKEN_EMBED), unattended=unattended)
    for text, hidden, ours in zip(texts, unattended, together, strict=True):
        seen = torch.tensor([[1] * (len(text) - hidden) + [0] * hidden])
        with torch.inference_mode():
            assert_close(ours, reference(torch.tensor([text]), attention_mask=seen).last_hidden_state[0])
        assert_close(run(model, [text], raw(TOKEN_EMBED), unattended=[hidden])[0], ours, ALONE)


def test_the_second_text_of_a_pair_has_a_type_of_its_own(tmp_path: Path) -> None:
    model = load_own(save_encoder("Bert", tmp_path, "ForSequenceClassification", num_labels=1)[0])
    [pair] = random_texts((20,))
    scores = [run(model, [pair], raw(CLASSIFY), [segment])[0].item() for segment in (0, 7, 8)]
    assert min(abs(scores[0] - scores[1]), abs(scores[1] - scores[2])) > 100 * TOLERANCE


def test_classes_that_do_not_exclude_each_other(tmp_path: Path) -> None:
    source, reference = save_encoder(
        "Bert", tmp_path, "ForSequenceClassification", num_labels=3, problem_type="multi_label_classification"
    )
    [text] = random_texts((20,))
    [scores] = run(load_own(source), [text], CLASSIFY)
    assert_close(scores, logits(reference, text).sigmoid())


@pytest.mark.parametrize("family", FAMILIES)
def test_classes_of_tokens(family: str, tmp_path: Path) -> None:
    source, reference = save_encoder(family, tmp_path, "ForTokenClassification", num_labels=4)
    texts = random_texts(LENGTHS)
    for ours, text in zip(run(load_own(source), texts, TOKEN_CLASSIFY), texts, strict=True):
        assert_close(ours, logits(reference, text)[0].softmax(-1))


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ResolvedSource, Any]:
    return save_encoder(request.param, tmp_path_factory.mktemp(request.param))


def test_hidden_states_of_all_tokens_up_to_the_window(saved: tuple[ResolvedSource, Any]) -> None:
    source, reference = saved
    model, texts = load_own(source), random_texts(LENGTHS)
    assert model.window == (100 if source.name == "Bert" else 98)
    answers = run(model, texts, raw(TOKEN_EMBED))
    for ours, text in zip(answers, texts, strict=True):
        assert ours.dtype == torch.float32
        assert_close(ours, hidden_states(reference, text))


def test_the_torch_back_ends_do_the_same_sums(saved: tuple[ResolvedSource, Any]) -> None:
    texts = random_texts(LENGTHS)
    best, plain = (run(load_own(saved[0], linear=name, attention=name), texts, EMBED) for name in (None, "torch"))
    for one, other in zip(best, plain, strict=True):
        assert_close(one, other, ALONE)


def test_half_the_bits_give_nearly_the_same(saved: tuple[ResolvedSource, Any]) -> None:
    texts = random_texts(LENGTHS)
    model = load_own(saved[0], dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    for ours, exact in zip(run(model, texts, EMBED), run(load_own(saved[0]), texts, EMBED), strict=True):
        assert ours.dtype == torch.float32
        assert torch.cosine_similarity(ours, exact).item() > 0.99


def test_a_text_is_answered_alike_alone_and_among_others(saved: tuple[ResolvedSource, Any]) -> None:
    model, texts = load_own(saved[0]), random_texts(LENGTHS)
    together = run(model, texts, EMBED)
    backwards = run(model, texts[::-1], EMBED)[::-1]
    for text, one, other in zip(texts, together, backwards, strict=True):
        [alone] = run(model, [text], EMBED)
        assert_close(one, alone, ALONE)
        assert_close(other, alone, ALONE)


@pytest.mark.skipif(not can_run_avx512(torch.float32, torch.device("cpu")), reason="torch's products here")
def test_with_native_products_the_batch_does_not_matter_at_all(saved: tuple[ResolvedSource, Any]) -> None:
    """To the last bit: whether a layer takes its rows in blocks or step by step, and on however many threads."""
    model, texts = load_own(saved[0]), random_texts((*LENGTHS, 90, 64, 98, 5))
    for params in (TOKEN_EMBED, EMBED):
        for text, one in zip(texts, run(model, texts, params), strict=True):
            with using(1):
                [alone] = run(model, [text], params)
            assert torch.equal(one, alone)


def test_batches_of_more_rows_than_go_through_at_once(saved: tuple[ResolvedSource, Any]) -> None:
    model, texts = load_own(saved[0]), random_texts((98, 60) * 12)
    assert sum(map(len, texts)) > ROWS_AT_ONCE
    for text, answer in list(zip(texts, run(model, texts, EMBED), strict=True))[::5]:
        assert_close(answer, run(model, [text], EMBED)[0], ALONE)


def test_each_text_gets_what_it_asks_for(saved: tuple[ResolvedSource, Any]) -> None:
    model, texts = load_own(saved[0]), random_texts((5, 9, 5, 7))
    short = PoolingParams(task=PoolingTask.EMBED, dimensions=8)
    answers = run(model, texts, [EMBED, TOKEN_EMBED, short, EMBED])
    assert [tuple(answer.shape) for answer in answers] == [(1, 48), (9, 48), (1, 8), (1, 48)]
    for answer, text, params in zip(answers, texts, [EMBED, TOKEN_EMBED, short, EMBED], strict=True):
        assert_close(answer, run(model, [text], params)[0], ALONE)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu"])
def test_activations(activation: str, tmp_path: Path) -> None:
    source, reference = save_encoder("Bert", tmp_path, hidden_act=activation)
    texts = random_texts((12, 3))
    for ours, text in zip(run(load_own(source), texts, raw(TOKEN_EMBED)), texts, strict=True):
        assert_close(ours, hidden_states(reference, text))


POOLED = {
    "cls": lambda states: states[0],
    "mean": lambda states: states.mean(0),
    "max": lambda states: states.max(0).values,
    "lasttoken": lambda states: states[-1],
}


@pytest.mark.parametrize("mode", POOLED)
def test_one_vector_from_all_tokens(mode: str, saved: tuple[ResolvedSource, Any], tmp_path: Path) -> None:
    source, reference = saved
    own = ResolvedSource(source.kind, tmp_path / "own", "m")
    shutil.copytree(source.path, own.path)
    (own.path / "modules.json").write_text(
        '[{"type": "sentence_transformers.models.Transformer", "path": ""},'
        ' {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},'
        ' {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}]'
    )
    edit_json(own.path / "1_Pooling" / "config.json", pooling_mode=mode)
    model, texts = load_own(own), random_texts(LENGTHS)
    cut = PoolingParams(task=PoolingTask.EMBED, dimensions=16)
    for params in (EMBED, raw(EMBED), cut):
        for ours, text in zip(run(model, texts, params), texts, strict=True):
            expected = POOLED[mode](hidden_states(reference, text))[: params.dimensions]
            if params.activation:
                expected = torch.nn.functional.normalize(expected, dim=0)
            assert_close(ours[0], expected)


def max_sim(query: torch.Tensor, document: torch.Tensor) -> float:
    return (query @ document.T).max(dim=1).values.sum().item()


def late_interaction(reference: Any, weight: torch.Tensor, query: list[int], document: list[int]) -> float:
    sides = [hidden_states(reference, text) @ weight.T for text in (query, document)]
    return max_sim(*[torch.nn.functional.normalize(side, dim=-1) for side in sides])


def test_colbert_compares_projected_tokens(tmp_path: Path) -> None:
    source, reference = save_encoder("Bert", tmp_path)
    weight = torch.randn(16, 48)
    save_with_prefix(tmp_path, "bert.", {"linear.weight": weight})
    edit_json(tmp_path / "config.json", architectures=["HF_ColBERT"], dim=16)
    model = load_own(source)
    texts = random_texts((6, 31, 31, 12))
    query, *documents = run(model, texts, TOKEN_EMBED)
    for document, text in zip(documents, texts[1:], strict=True):
        assert max_sim(query, document) == pytest.approx(
            late_interaction(reference, weight, texts[0], text), abs=TOLERANCE
        )


def test_tokens_of_any_embedding_model_can_be_compared(saved: tuple[ResolvedSource, Any]) -> None:
    source, reference = saved
    model, texts = load_own(source, "token_embed"), random_texts((6, 31))
    ours = max_sim(*run(model, texts, TOKEN_EMBED))
    assert ours == pytest.approx(late_interaction(reference, torch.eye(48), *texts), abs=TOLERANCE)


def save_with_prefix(folder: Path, prefix: str, more: dict[str, torch.Tensor]) -> None:
    from safetensors.torch import load_file, save_file  # noqa: PLC0415 - nothing else here needs it

    weights = {prefix + name: weight for name, weight in load_file(folder / "model.safetensors").items()}
    save_file(weights | more, folder / "model.safetensors")


@pytest.mark.parametrize("prefix", ["bert.", "roberta."])
def test_names_of_weights_may_have_a_prefix(prefix: str, tmp_path: Path) -> None:
    source, reference = save_encoder("Bert", tmp_path)
    save_with_prefix(tmp_path, prefix, {})
    [text] = random_texts((8,))
    assert_close(run(load_own(source), [text], raw(TOKEN_EMBED))[0], hidden_states(reference, text))


BROKEN_TOKEN = 150


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("head", "params"),
    [
        ("Model", EMBED),
        ("Model", TOKEN_EMBED),
        ("ForSequenceClassification", CLASSIFY),
        ("ForTokenClassification", TOKEN_CLASSIFY),
    ],
)
def test_a_text_whose_numbers_break_breaks_alone(
    head: str, params: PoolingParams, value: float, tmp_path: Path
) -> None:
    source, reference = save_encoder("Bert", tmp_path, head, num_labels=2)
    with torch.no_grad():
        reference.base_model.embeddings.word_embeddings.weight[BROKEN_TOKEN] = value
    reference.save_pretrained(tmp_path)
    model = load_own(source)
    sound = [[token for token in text if token != BROKEN_TOKEN] for text in random_texts((12, 30))]
    broken = [sound[0][0], *sound[0][2:], BROKEN_TOKEN]
    first, middle, last = run(model, [sound[0], broken, sound[1]], params)
    assert torch.isnan(middle).all()
    for answer, text in ((first, sound[0]), (last, sound[1])):
        assert_close(answer, run(model, [text], params)[0], ALONE)


def test_large_numbers_do_not_become_zero() -> None:
    rows = unit_rows(torch.tensor([[3e30, 4e30], [3e-30, 4e-30]]))
    torch.testing.assert_close(rows[0], torch.tensor([0.6, 0.8]))


def test_a_task_that_the_model_does_not_do(saved: tuple[ResolvedSource, Any]) -> None:
    with pytest.raises(CallerError, match="classify"):
        run(load_own(saved[0]), random_texts((3,)), CLASSIFY)


def test_the_size_of_the_vocabulary(saved: tuple[ResolvedSource, Any]) -> None:
    assert load_own(saved[0]).vocab_size == 199
