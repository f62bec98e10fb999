"""Late interaction against sentence-transformers: what its `encode_query`, `encode_document` and MaxSim say."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tenure.api.rerank.scoring import counted_rows, max_similarity
from tenure.checkpoints.late_interaction import LateInteraction
from tenure.checkpoints.profile import Scoring, read_profile
from tenure.models.encoder_loader import load_encoder
from tenure.pooling import PoolingParams, PoolingTask
from tenure.prompts.score_prompts import PairRules, Prompts, single_prompts
from tenure.prompts.text_model import TextModel
from tenure.source import ResolvedSource, SourceKind, resolve_source
from tenure.text.tokenizer import load_tokenizer
from tests.models.tiny_encoders import edit_json, run, save_own

TOLERANCE = 1e-4
TOKEN_EMBED = PoolingParams(task=PoolingTask.TOKEN_EMBED)
LONG = "nobody holds a lease that somebody else has already given back to the pool of all resources, " * 2
QUERIES = ["who holds it?", "", LONG, "nobody; nothing", "a"]
DOCUMENTS = [LONG, "a lease, held (by nobody).", "?!", "it", "who holds it?"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as sentence-transformers writes it."""
    import sentence_transformers as st  # noqa: PLC0415 - seconds to import; only these tests need it

    folder = tmp_path_factory.mktemp("late")
    save_own(folder, resolve_source("minilm"))
    st.MultiVectorEncoder(str(folder / "plain"), device="cpu").save(str(folder / "late"))
    return folder / "late"


def late_model(saved: Path, folder: Path, mask: dict[str, Any] | None = None, **settings: Any) -> ResolvedSource:
    """The same with these settings of its mask, and these of its transformer."""
    shutil.copytree(saved, folder / "own")
    source = ResolvedSource(SourceKind.FOLDER, folder / "own", "late")
    edit_json(source.path / "sentence_bert_config.json", **{"max_seq_length": 64} | settings)
    (place,) = source.path.glob("*_MultiVectorMask")
    edit_json(place / "config.json", **mask or {})
    return source


def drop_modules(source: ResolvedSource, *kinds: str) -> None:
    path = source.path / "modules.json"
    modules = json.loads(path.read_text())
    path.write_text(json.dumps([one for one in modules if not one["type"].endswith(kinds)]))


def pylate_model(saved: Path, folder: Path, **settings: Any) -> ResolvedSource:
    """A model as PyLate writes it: two modules, and its settings beside the prompts."""
    source = late_model(saved, folder)
    drop_modules(source, "MultiVectorMask", "Normalize")
    path = source.path / "sentence_bert_config.json"
    own = json.loads(path.read_text())
    newer = ("query_length", "document_length", "query_expansion")
    path.write_text(json.dumps({key: value for key, value in own.items() if key not in newer}))
    marks = {"model_type": "ColBERT", "query_prefix": "[Q] ", "document_prefix": "[D] ", "prompts": {}}
    (source.path / "config_sentence_transformers.json").write_text(json.dumps(marks | settings))
    return source


def prompts_of(source: ResolvedSource) -> Prompts:
    """What the engine is asked to read of the queries and documents."""
    profile = read_profile(source)
    assert profile.scoring is Scoring.LATE_INTERACTION
    assert profile.max_length is not None
    model = TextModel("late", load_tokenizer(source), profile=profile)
    rules = PairRules(model, 30522, profile.max_length, ("queries", "documents"), "right")
    return single_prompts(QUERIES, DOCUMENTS, rules)


def assert_as_theirs(source: ResolvedSource) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The vectors that count and all scores are those of sentence-transformers, with each back end; returns them."""
    import sentence_transformers as st  # noqa: PLC0415 - see above

    theirs = st.MultiVectorEncoder(str(source.path), device="cpu")
    queries, documents = theirs.encode_query(QUERIES), theirs.encode_document(DOCUMENTS)
    expected = st.util.maxsim(queries, documents).numpy()
    profile, prompts = read_profile(source), prompts_of(source)
    late = profile.late_interaction
    sides = [late.counted_in_query] * len(QUERIES) + [late.counted_in_document] * len(DOCUMENTS)
    for attention in ("torch", None):
        model, unattended = load_encoder(source, profile, attention=attention), prompts.unattended or None
        rows = run(model, prompts.ids, TOKEN_EMBED, unattended=unattended)
        found = [counted_rows(*one) for one in zip([row.numpy() for row in rows], prompts.ids, sides, strict=True)]
        for ours, vectors in zip(found, [*queries, *documents], strict=True):
            np.testing.assert_allclose(ours, vectors.numpy(), atol=TOLERANCE, rtol=0)
        ours, others = found[: len(QUERIES)], found[len(QUERIES) :]
        scores = [[max_similarity(query, document) for document in others] for query in ours]
        np.testing.assert_allclose(scores, expected, atol=TOLERANCE, rtol=1e-6)
    return ours, others


def test_as_sentence_transformers_writes_it(saved: Path, tmp_path: Path) -> None:
    source = late_model(saved, tmp_path)
    profile = read_profile(source)
    assert (profile.tasks, profile.late_interaction) == (("token_embed", "score"), LateInteraction())
    assert prompts_of(source).unattended == []
    assert_as_theirs(source)


@pytest.mark.parametrize(("query", "document"), [(12, 20), (12, None), (None, 20), (12, 12), (70, 80)])
def test_two_lengths(query: int | None, document: int | None, saved: Path, tmp_path: Path) -> None:
    source = late_model(saved, tmp_path, query_length=query, document_length=document)
    queries, documents = assert_as_theirs(source)
    assert (len(queries[2]), len(documents[0])) == (min(query or 64, 38), min(document or 64, 38))
    assert read_profile(source).max_length == max(64, query or 0, document or 0), "of texts that are not scored"


@pytest.mark.parametrize("attend", [False, True])
@pytest.mark.parametrize("change", [{}, {"token": "[unused7]"}, {"strategy": "min"}], ids=str)
def test_queries_are_lengthened(change: dict[str, Any], attend: bool, saved: Path, tmp_path: Path) -> None:
    expansion = {"strategy": "fixed", "attend": attend, "length": 32} | change
    source = late_model(saved, tmp_path, query_expansion=expansion, document_length=20)
    queries, documents = assert_as_theirs(source)
    lengths = [32, 32, 38 if "strategy" in change else 32, 32, 32]
    assert ([len(query) for query in queries], len(documents[0])) == (lengths, 20)
    prompts = prompts_of(source)
    assert prompts.unattended == ([] if attend else [26, 30, 0, 27, 29, 0, 0, 0, 0, 0])
    assert prompts.ids[4][3:] == [8 if "token" in change else 103] * 29


def test_longer_than_texts_may_be(saved: Path, tmp_path: Path) -> None:
    source = late_model(saved, tmp_path, query_expansion={"strategy": "fixed", "length": 80})
    assert_as_theirs(source)


def test_documents_keep_to_the_length_of_texts_beside_longer_queries(saved: Path, tmp_path: Path) -> None:
    source = late_model(saved, tmp_path, max_seq_length=20, query_expansion={"strategy": "fixed", "length": 30})
    documents = assert_as_theirs(source)[1]
    assert len(documents[0]) == 20


@pytest.mark.parametrize(
    "mask",
    [
        {"skiplist_words": ["lease", ",", "nothing", "no such token"]},
        {"skiplist_words": ["a", "[SEP]", "who"], "skiplist_tasks": ["query", "document"]},
        {"skiplist_words": ["a", "[MASK]"], "skiplist_tasks": "query"},
        {"skiplist_words": ["a"], "skiplist_tasks": []},
        {"skiplist_words": ["[CLS]", "[SEP]", "?", "!"]},
        {"keep_only_token_ids": [102, 1037]},
        {"keep_only_token_ids": [1037], "skiplist_words": ["it"]},
        {"keep_only_token_ids": []},
    ],
    ids=str,
)
def test_tokens_that_do_not_count(mask: dict[str, Any], saved: Path, tmp_path: Path) -> None:
    source = late_model(saved, tmp_path, mask, query_expansion={"strategy": "fixed", "length": 16})
    assert_as_theirs(source)


def test_a_document_of_which_no_token_counts_is_last(saved: Path, tmp_path: Path) -> None:
    source = late_model(saved, tmp_path, {"skiplist_words": ["[CLS]", "[SEP]", "?", "!"]})
    queries, documents = assert_as_theirs(source)
    scores = [max_similarity(queries[0], document) for document in documents]
    assert len(documents[2]) == 0
    assert scores[2] == min(scores) == -1e9


@pytest.mark.parametrize("attend", [False, True])
def test_without_a_module_that_makes_them_count(attend: bool, saved: Path, tmp_path: Path) -> None:
    source = late_model(saved, tmp_path, query_expansion={"strategy": "fixed", "length": 16, "attend": attend})
    drop_modules(source, "MultiVectorMask")
    queries, _ = assert_as_theirs(source)
    assert len(queries[0]) == (16 if attend else 6)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"query_length": 24, "document_length": 30},
        {"query_length": 24, "attend_to_expansion_tokens": True},
        {"attend_to_mask_tokens": True},
        {"do_query_expansion": False, "query_length": 7},
        {"skiplist_words": []},
        {"skiplist_words": ["lease"], "do_query_expansion": False},
        {"query_expansion": None},
        {"query_prefix": "[unused0]", "document_prefix": "[unused1] "},
        {"query_prefix": "lease [x] ", "document_prefix": ""},
        {"prompts": {"query": "[Q] ask: ", "document": "text: "}},
    ],
    ids=str,
)
def test_as_pylate_writes_it(settings: dict[str, Any], saved: Path, tmp_path: Path) -> None:
    source = pylate_model(saved, tmp_path, **settings)
    queries, documents = assert_as_theirs(source)
    lengthened = not (settings.get("do_query_expansion") is False or "query_expansion" in settings)
    assert (len({len(query) for query in queries}) == 1) == lengthened
    assert (len(documents[2]) < len(prompts_of(source).ids[7])) == ("skiplist_words" not in settings)


def test_prefixes_that_pylate_added_to_the_vocabulary(saved: Path, tmp_path: Path) -> None:
    import transformers as hf  # noqa: PLC0415 - see above

    source = pylate_model(saved, tmp_path)
    tokenizer = hf.AutoTokenizer.from_pretrained(source.path)
    # There is no room for others in the table of embeddings.
    described = json.loads((source.path / "tokenizer.json").read_text())
    for old, new in (("[unused0]", "[Q] "), ("[unused1]", "[D] ")):
        described["model"]["vocab"][new] = described["model"]["vocab"].pop(old)
        entry = {"id": described["model"]["vocab"][new], "content": new, "normalized": True, "special": False}
        described["added_tokens"].append(entry | dict.fromkeys(("single_word", "lstrip", "rstrip"), False))
    (source.path / "tokenizer.json").write_text(json.dumps(described))
    assert tokenizer.convert_tokens_to_ids("[unused0]") == prompts_of(source).ids[0][1]
    assert_as_theirs(source)


def test_what_an_operator_compares_token_by_token_is_read_as_it_is() -> None:
    assert read_profile(resolve_source("minilm"), "token_embed").late_interaction == LateInteraction()


def test_vectors_of_tokens_that_are_not_scored_are_of_the_text_as_it_is(saved: Path, tmp_path: Path) -> None:
    import sentence_transformers as st  # noqa: PLC0415 - see above

    plain = st.MultiVectorEncoder(str(saved), device="cpu").encode(DOCUMENTS[1])
    more = {"query_expansion": {"strategy": "fixed", "length": 32}, "query_length": 40, "document_length": 4}
    source = late_model(saved, tmp_path, {"skiplist_words": ["a"]}, **more)
    profile = read_profile(source)
    [rows] = run(load_encoder(source, profile), [load_tokenizer(source).encode(DOCUMENTS[1])], TOKEN_EMBED)
    assert profile.max_length == 64
    torch.testing.assert_close(rows, plain, atol=TOLERANCE, rtol=0)
