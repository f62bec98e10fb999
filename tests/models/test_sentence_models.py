"""Embeddings against sentence-transformers: MiniLM, and small models that it wrote itself."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tenure.checkpoints.profile import ModelProfile, Scoring, read_profile
from tenure.checkpoints.sentence_modules import PoolingMode
from tenure.models.encoder_loader import load_encoder
from tenure.pooling import PoolingParams, PoolingTask
from tenure.source import ResolvedSource, SourceKind, resolve_source
from tenure.text.tokenizer import load_tokenizer
from tests.models.tiny_encoders import edit_json, load_own, run, save_own

TOLERANCE = 1e-4
ALONE = 1e-5
EMBED = PoolingParams(task=PoolingTask.EMBED)
TOKEN_EMBED = PoolingParams(task=PoolingTask.TOKEN_EMBED)
WORDS = [
    "nobody",
    "holds",
    "a",
    "lease",
    "that",
    "somebody",
    "else",
    "has",
    "already",
    "given",
    "back",
    "to",
    "the",
    "pool",
    "of",
    "all",
    "resources",
]
COUNTS = (1, 0, 40, 3, 253, 300, 40, 120, 17, 1)
"""Words of each text, every one a token; 254 and two special tokens fill the window."""
TEXTS = [" ".join((WORDS * 20)[shift : shift + count]) for shift, count in enumerate(COUNTS)]


@pytest.fixture(scope="module")
def minilm() -> ResolvedSource:
    return resolve_source("minilm")


@pytest.fixture(scope="module")
def reference(minilm: ResolvedSource) -> Any:
    import sentence_transformers  # noqa: PLC0415 - seconds to import; only these tests need it

    return sentence_transformers.SentenceTransformer(str(minilm.path), device="cpu")


def token_ids(reference: Any, texts: list[str]) -> list[list[int]]:
    limit = reference.max_seq_length
    return [reference.tokenizer(text, truncation=True, max_length=limit)["input_ids"] for text in texts]


def assert_same(ours: list[torch.Tensor], theirs: Any) -> None:
    torch.testing.assert_close(torch.cat(ours), theirs, atol=TOLERANCE, rtol=0)


def test_minilm_is_an_embedding_model(minilm: ResolvedSource) -> None:
    assert read_profile(minilm) == ModelProfile(
        tasks=("embed", "token_embed", "score"),
        whole_texts=True,
        scoring=Scoring.BI_ENCODER,
        pooling=PoolingMode.MEAN,
        normalize=True,
        embedding_size=384,
        max_length=256,
    )


def test_embeddings_of_one_token_up_to_the_window(minilm: ResolvedSource, reference: Any) -> None:
    model, texts = load_own(minilm), token_ids(reference, TEXTS)
    assert (min(map(len, texts)), max(map(len, texts))) == (2, model.window)
    together = run(model, texts, EMBED)
    assert_same(together, reference.encode(TEXTS, convert_to_tensor=True))
    for text, one in zip(texts, together, strict=True):
        torch.testing.assert_close(run(model, [text], EMBED)[0], one, atol=ALONE, rtol=0)


def test_embeddings_as_the_model_gives_them(minilm: ResolvedSource, reference: Any) -> None:
    model, texts = load_own(minilm), token_ids(reference, TEXTS[:4])
    [_, _, pooled] = run(model, texts[1:], PoolingParams(task=PoolingTask.EMBED, activation=False))
    theirs = reference.encode(TEXTS[3], output_value="token_embeddings", convert_to_tensor=True)
    torch.testing.assert_close(pooled[0], theirs.mean(0), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("mode", ["cls", "mean", "max", "lasttoken"])
def test_folders_that_sentence_transformers_writes(mode: str, minilm: ResolvedSource, tmp_path: Path) -> None:
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling  # noqa: PLC0415

    straight = Dense(24, 16, bias=False, activation_function=torch.nn.Identity())
    modules = [Pooling(48, pooling_mode=mode), Dense(48, 24), straight, Normalize()]
    source, theirs = save_own(tmp_path, minilm, modules)
    profile = read_profile(source)
    assert (profile.embedding_size, profile.max_length, profile.normalize) == (16, 64, True)
    texts = token_ids(theirs, TEXTS)
    assert max(map(len, texts)) == 64
    assert_same(run(load_encoder(source, profile), texts, EMBED), theirs.encode(TEXTS, convert_to_tensor=True))


def test_a_folder_without_modules_is_read_as_sentence_transformers_does(minilm: ResolvedSource, tmp_path: Path) -> None:
    import sentence_transformers as st  # noqa: PLC0415 - see above

    save_own(tmp_path, minilm)
    source = ResolvedSource(SourceKind.FOLDER, tmp_path / "plain", "plain")
    theirs = st.SentenceTransformer(str(source.path), device="cpu")
    assert read_profile(source).pooling == PoolingMode.MEAN
    assert_same(run(load_own(source), token_ids(theirs, TEXTS), EMBED), theirs.encode(TEXTS, convert_to_tensor=True))


def test_prompts_are_read(minilm: ResolvedSource, tmp_path: Path) -> None:
    _, theirs = save_own(tmp_path, minilm)
    theirs.prompts = {"query": "query: ", "document": ""}
    theirs.default_prompt_name = "query"
    theirs.save(str(tmp_path / "prompted"))
    profile = read_profile(ResolvedSource(SourceKind.FOLDER, tmp_path / "prompted", "m"))
    assert (profile.prompts, profile.default_prompt) == ({"query": "query: ", "document": ""}, "query")


def test_lower_case_is_made_as_sentence_transformers_makes_it(minilm: ResolvedSource, tmp_path: Path) -> None:
    import sentence_transformers as st  # noqa: PLC0415 - see above

    source, _ = save_own(tmp_path, minilm)
    edit_json(source.path / "tokenizer_config.json", do_lower_case=False)
    described = json.loads((source.path / "tokenizer.json").read_text())
    edit_json(source.path / "tokenizer.json", normalizer=described["normalizer"] | {"lowercase": False})
    text, as_it_is = "Nobody HOLDS a Lease", load_tokenizer(source).encode("Nobody HOLDS a Lease")
    edit_json(source.path / "sentence_bert_config.json", do_lower_case=True)
    theirs = st.SentenceTransformer(str(source.path), device="cpu")
    assert as_it_is != load_tokenizer(source).encode(text) == token_ids(theirs, [text])[0]
