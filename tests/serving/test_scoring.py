"""Score and rerank by real models of every kind, against Transformers and what the server's other routes say; and
clients that leave in the middle."""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
import torch

from tests.models.tiny_encoders import save_encoder
from tests.serving.conftest import Servers
from tests.serving.server import ServerProcess, until
from tests.serving.wire import LEAVING, post
from tests.text.test_pairs import bert_folder, transformers, xlm_r_folder

QUERY = "what is a panda"
DOCUMENTS = ["the panda is a bear of china", "", "hello world", "panda " * 30, "what is a panda"]
LIMIT = 24
RERANK = ("/rerank", "/v1/rerank", "/v2/rerank")
SCORE = ("/score", "/v1/score")


class Reference:
    """A cross-encoder as Transformers runs it, one pair at a time."""

    def __init__(self, family: str, folder: Path) -> None:
        with transformers() as library:
            self.tokenizer = library.AutoTokenizer.from_pretrained(folder)
            vocabulary = {"vocab_size": len(self.tokenizer), "pad_token_id": self.tokenizer.pad_token_id}
            _, self.model = save_encoder(family, folder, "ForSequenceClassification", num_labels=1, **vocabulary)

    def logits(self, documents: list[str], **options: Any) -> list[float]:
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")
            pairs = [self.tokenizer([QUERY], [text], return_tensors="pt", **options) for text in documents]
            return [float(self.model(**pair).logits) for pair in pairs]


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Reference]]:
    makers = {"Bert": bert_folder, "XLMRoberta": xlm_r_folder}
    folders = {family: make(tmp_path_factory.mktemp(family)) for family, make in makers.items()}
    return {family: (folder, Reference(family, folder)) for family, folder in folders.items()}


@pytest.fixture(scope="module")
def scorer(servers: Servers, references: dict[str, tuple[Path, Reference]]) -> Iterator[ServerProcess]:
    sources = [f"{family}={folder}" for family, (folder, _) in references.items()]
    with ExitStack() as stack:
        yield servers.start(stack, *sources, "vectors=minilm", "tokens=minilm", "--task", "tokens=token_embed")


def answer(server: ServerProcess, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = server.http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def scores(server: ServerProcess, model: str, documents: list[str], **more: Any) -> list[float]:
    found = answer(server, "/score", {"model": model, "queries": QUERY, "documents": documents, **more})
    return [entry["score"] for entry in found["data"]]


@pytest.mark.parametrize("family", ["Bert", "XLMRoberta"])
class TestCrossEncoders:
    def test_as_transformers(self, scorer: ServerProcess, references: Any, family: str) -> None:
        logits = references[family][1].logits(DOCUMENTS)
        assert scores(scorer, family, DOCUMENTS, use_activation=False) == pytest.approx(logits, abs=1e-4)
        sigmoids = [1 / (1 + np.exp(-logit)) for logit in logits]
        assert scores(scorer, family, DOCUMENTS) == pytest.approx(sigmoids, abs=1e-4)
        assert np.ptp(sigmoids) > 1e-3, "the scores differ by more than they may be wrong"
        ranked = answer(scorer, "/v1/rerank", {"model": family, "query": QUERY, "documents": DOCUMENTS})["results"]
        assert [entry["index"] for entry in ranked] == sorted(range(5), key=lambda index: -sigmoids[index])

    def test_cut_as_transformers_cuts(self, scorer: ServerProcess, references: Any, family: str) -> None:
        long = ["panda " * 30, "the bear " * 200, "a"]
        expected = references[family][1].logits(long, truncation="longest_first", max_length=LIMIT)
        found = scores(scorer, family, long, use_activation=False, truncate_prompt_tokens=LIMIT)
        assert found == pytest.approx(expected, abs=1e-4)

    def test_documents_alone_are_cut(self, scorer: ServerProcess, references: Any, family: str) -> None:
        """The limit of 4096 is far above what the model reads: query and special tokens are left whole."""
        listed = scorer.http.get("/v1/models").json()["data"]
        length = next(entry["max_model_len"] for entry in listed if entry["id"] == family)
        long = ["the bear " * 200, "a"]
        expected = references[family][1].logits(long, truncation="only_second", max_length=length)
        found = scores(scorer, family, long, use_activation=False, max_tokens_per_doc=4096)
        assert found == pytest.approx(expected, abs=1e-4)


def test_cosines_are_those_of_the_embeddings(scorer: ServerProcess) -> None:
    found = answer(scorer, "/v1/embeddings", {"model": "vectors", "input": [QUERY, *DOCUMENTS]})
    query, *documents = [np.array(entry["embedding"]) for entry in found["data"]]
    assert scores(scorer, "vectors", DOCUMENTS) == pytest.approx([query @ vector for vector in documents], abs=1e-4)
    assert scores(scorer, "vectors", DOCUMENTS)[4] == pytest.approx(1, abs=1e-5)


def test_best_matches_are_those_of_the_token_embeddings(scorer: ServerProcess) -> None:
    body = {"model": "tokens", "input": [QUERY, *DOCUMENTS], "task": "token_embed"}
    query, *documents = [np.array(entry["data"]) for entry in answer(scorer, "/pooling", body)["data"]]
    expected = [(query @ tokens.T).max(axis=1).sum() for tokens in documents]
    assert scores(scorer, "tokens", DOCUMENTS) == pytest.approx(expected, abs=1e-3)


def test_what_is_too_long_is_refused(scorer: ServerProcess) -> None:
    body = {"model": "vectors", "query": QUERY, "documents": ["a", "bear " * 2000]}
    reply = scorer.http.post("/v2/rerank", json=body)
    assert reply.status_code == 400
    assert "`documents[1]`" in reply.json()["message"]


@pytest.mark.parametrize(
    ("path", "leave"),
    [(path, "close") for path in (*RERANK, *SCORE)] + [("/rerank", "reset"), ("/score", "half-close")],
)
def test_a_client_that_leaves(scorer: ServerProcess, path: str, leave: str) -> None:
    """What is left of 500 documents is gone, and a small request sent right after is not kept waiting (F01, F11)."""
    documents = [f"{number} bears of china " * 25 for number in range(500)]
    query = "queries" if path in SCORE else "query"
    before, label = scorer.work("vectors"), uuid4().hex
    gone = scorer.outcomes().get("client_cancelled", 0)
    with scorer.connect() as wire:
        wire.send(post(path, {"model": "vectors", query: QUERY, "documents": documents}, label))
        until(lambda: scorer.work("vectors").steps > before.steps)
        LEAVING[leave](wire)
    answer(scorer, "/rerank", {"model": "vectors", "query": QUERY, "documents": ["a"]})
    scorer.wait_at_rest()
    spent = scorer.work("vectors") - before
    assert spent.computed < 500 * 125 / 2, "most of it was never computed"
    assert scorer.outcomes()["client_cancelled"] == gone + 1
    [line] = scorer.wait_for_log(label)
    assert f"route={path} " in line
    assert "status=499 outcome=client_cancelled" in line
