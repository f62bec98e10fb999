"""Embeddings against sentence-transformers: MiniLM, and small models that it wrote itself."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tenure.errors import CallerError
from tenure.models.encoder_loader import load_encoder
from tenure.models.profile import ModelProfile, PoolingMode, Scoring, read_profile
from tenure.pooling import PoolingParams, PoolingTask
from tenure.source import ResolvedSource, SourceKind, resolve_source
from tenure.text.tokenizer import load_tokenizer
from tests.models.tiny_encoders import edit_json, load_own, run, save_encoder

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


def save_own(folder: Path, minilm: ResolvedSource, modules: Sequence[Any] = ()) -> tuple[ResolvedSource, Any]:
    """A small random model with MiniLM's tokenizer, in `plain`; in `saved` the same with `modules` behind it."""
    import transformers as hf  # noqa: PLC0415 - see above
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # noqa: PLC0415

    save_encoder("Bert", folder / "plain", vocab_size=30522, max_position_embeddings=512)
    hf.AutoTokenizer.from_pretrained(minilm.path).save_pretrained(folder / "plain")
    transformer = Transformer(str(folder / "plain"), max_seq_length=64)
    theirs = SentenceTransformer(modules=[transformer, *(modules or [Pooling(48)])], device="cpu")
    theirs.save(str(folder / "saved"))
    return ResolvedSource(SourceKind.FOLDER, folder / "saved", "own"), theirs


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


def save_late(folder: Path, minilm: ResolvedSource, **settings: Any) -> tuple[ResolvedSource, Any]:
    """A late-interaction model as sentence-transformers writes it, with these settings of its transformer."""
    import sentence_transformers as st  # noqa: PLC0415 - see above

    save_own(folder, minilm)
    theirs = st.MultiVectorEncoder(str(folder / "plain"), device="cpu")
    for name, value in settings.items():
        setattr(theirs[0], name, value)
    theirs.save(str(folder / "late"))
    return ResolvedSource(SourceKind.FOLDER, folder / "late", "late"), theirs


def assert_same_tokens(source: ResolvedSource, theirs: Any, documents: Sequence[str], queries: Sequence[str]) -> None:
    """A text is cut where the model's own limit is."""
    profile = read_profile(source)
    model, tokenizer = load_encoder(source, profile), load_tokenizer(source)
    for name, texts, expected in (
        ("document", documents, theirs.encode_document(list(documents))),
        ("query", queries, theirs.encode_query(list(queries))),
    ):
        assert profile.max_length is not None
        frame, plain = tokenizer.frame, tokenizer.encode_plain([profile.prompts.get(name, "") + text for text in texts])
        ids = [frame.around(own[: profile.max_length - frame.size]) for own in plain]
        for ours, rows in zip(run(model, ids, TOKEN_EMBED), expected, strict=True):
            torch.testing.assert_close(ours, rows, atol=TOLERANCE, rtol=0)


def test_late_interaction_as_sentence_transformers_writes_it(minilm: ResolvedSource, tmp_path: Path) -> None:
    source, theirs = save_late(tmp_path, minilm)
    profile = read_profile(source)
    assert (profile.tasks, profile.scoring) == (("token_embed", "score"), Scoring.LATE_INTERACTION)
    assert_same_tokens(source, theirs, TEXTS[2:4], TEXTS[:1])


def test_late_interaction_with_one_length_for_queries_and_documents(minilm: ResolvedSource, tmp_path: Path) -> None:
    source, theirs = save_late(tmp_path, minilm, query_length=12, document_length=12)
    assert read_profile(source).max_length == 12
    assert_same_tokens(source, theirs, TEXTS[2:4], TEXTS[2:4])


def test_late_interaction_with_two_lengths_is_not_served(minilm: ResolvedSource, tmp_path: Path) -> None:
    source, theirs = save_late(tmp_path, minilm, query_length=12, document_length=20)
    assert (len(theirs.encode_query(TEXTS[2])), len(theirs.encode_document(TEXTS[2]))) == (12, 20)
    with pytest.raises(CallerError, match="query_length of 12 beside a document_length of 20"):
        read_profile(source)


@pytest.mark.parametrize("attend", [False, True])
def test_queries_that_mask_tokens_lengthen_are_not_served(attend: bool, minilm: ResolvedSource, tmp_path: Path) -> None:
    expansion = {"strategy": "fixed", "attend": attend, "length": 32}
    source, theirs = save_late(tmp_path, minilm, query_expansion=expansion)
    assert len(theirs.encode_query(TEXTS[0])) == 32
    with pytest.raises(CallerError, match="query_expansion"):
        read_profile(source)
    theirs[0].query_expansion = None
    edit_json(source.path / "sentence_bert_config.json", query_expansion=None)
    assert_same_tokens(source, theirs, TEXTS[2:4], TEXTS[:1])


@pytest.mark.parametrize(
    ("mask", "count", "named"),
    [
        ({"skiplist_words": ["lease"]}, 4, "skiplist_words"),
        ({"skiplist_words": ["lease"], "skiplist_tasks": []}, 5, None),
        ({"keep_only_token_ids": [102]}, 1, "keep_only_token_ids"),
        ({"keep_only_token_ids": []}, 5, None),
    ],
)
def test_tokens_that_do_not_count(
    mask: dict[str, Any], count: int, named: str | None, minilm: ResolvedSource, tmp_path: Path
) -> None:
    import sentence_transformers as st  # noqa: PLC0415 - see above

    source, _ = save_late(tmp_path, minilm)
    (place,) = source.path.glob("*_MultiVectorMask")
    edit_json(place / "config.json", **mask)
    theirs = st.MultiVectorEncoder(str(source.path), device="cpu")
    assert len(theirs.encode_document("nobody holds lease")) == count
    if named is None:
        assert_same_tokens(source, theirs, TEXTS[2:4], TEXTS[:1])
    else:
        with pytest.raises(CallerError, match=named):
            read_profile(source)


def test_late_interaction_as_pylate_writes_it(minilm: ResolvedSource, tmp_path: Path) -> None:
    import sentence_transformers as st  # noqa: PLC0415 - see above

    source, _ = save_late(tmp_path, minilm)
    modules = json.loads((source.path / "modules.json").read_text())
    (source.path / "modules.json").write_text(json.dumps(modules[:2]))
    settings = {"model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "prompts": {}}
    place = source.path / "config_sentence_transformers.json"
    place.write_text(json.dumps(settings))
    theirs = st.MultiVectorEncoder(str(source.path), device="cpu")
    assert len(theirs.encode_query(TEXTS[0])) == 32
    with pytest.raises(CallerError, match=r"do_query_expansion.*skiplist_words"):
        read_profile(source)
    edit_json(place, do_query_expansion=False, skiplist_words=[])
    theirs = st.MultiVectorEncoder(str(source.path), device="cpu")
    assert_same_tokens(source, theirs, TEXTS[2:4], TEXTS[:1])
