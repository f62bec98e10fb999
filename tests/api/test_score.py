"""`/score` and `/v1/score`: spellings, shapes, the three kinds of scoring, cutting, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from tenure.checkpoints.late_interaction import CountedTokens, Expansion, LateInteraction
from tenure.checkpoints.profile import ModelProfile, Scoring
from tenure.config import ApiSettings
from tenure.pooling import PoolingTask
from tests.api.generation_rig import assert_refused
from tests.api.pooling_rig import (
    CLASSIFIER,
    CROSS_ENCODER,
    EMBEDDER,
    LATE_INTERACTION,
    SIZE,
    draw,
    embed,
    framed,
    pooling_rig,
)

PATHS = ("/score", "/v1/score")


def relevance(ids, params):
    """One class, whose score is the sigmoid of something that the ids decide."""
    logit = draw(ids, 1)[None]
    return 1 / (1 + np.exp(-logit)) if params.activation else logit


def pair(first, second):
    """What a pair is to a cross-encoder whose tokenizer frames texts."""
    return [256, *first.encode(), 257, *second.encode(), 257]


def cross_rig(**more):
    return pooling_rig(CROSS_ENCODER, relevance, **more)


def vector(text):
    found = draw(framed(text), SIZE).astype(np.float64)
    return found / np.linalg.norm(found)


def unit(token):
    found = draw([token], SIZE).astype(np.float64)
    return found / np.linalg.norm(found)


def tokens(text):
    return np.stack([unit(token) for token in framed(text)])


def scores(reply):
    assert reply.status_code == 200, reply.text
    assert [entry["index"] for entry in reply.json()["data"]] == list(range(len(reply.json()["data"])))
    return [entry["score"] for entry in reply.json()["data"]]


@pytest.mark.parametrize("path", PATHS)
def test_the_reply(path):
    rig = cross_rig()
    reply = rig.post(path, {"model": "alias", "queries": "who", "documents": ["me", "you"]})
    body = reply.json()
    assert body["id"].startswith("score-")
    assert body["created"] > 1_700_000_000
    assert (body["object"], body["model"]) == ("list", "tiny")
    assert [(entry["index"], entry["object"]) for entry in body["data"]] == [(0, "score"), (1, "score")]
    read = len(pair("who", "me")) + len(pair("who", "you"))
    assert body["usage"] == {"prompt_tokens": read, "total_tokens": read, "completion_tokens": 0}
    assert rig.submitted.public_id == body["id"]


@pytest.mark.parametrize(
    ("first", "second"), [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")]
)
@pytest.mark.parametrize(
    ("left", "right", "read"),
    [
        ("q", "a", [("q", "a")]),
        (["q"], "a", [("q", "a")]),
        ("q", ["a", "b"], [("q", "a"), ("q", "b")]),
        (["q"], ["a", "b", ""], [("q", "a"), ("q", "b"), ("q", "")]),
        (["q", "r"], ["a", "b"], [("q", "a"), ("r", "b")]),
        ({"text": "q"}, [{"content": [{"type": "text", "text": "a"}]}, "b"], [("q", "a"), ("q", "b")]),
    ],
)
def test_every_spelling_and_shape(first, second, left, right, read):
    rig = cross_rig()
    found = scores(rig.post("/score", {first: left, second: right}))
    assert rig.submitted.prompts == [pair(*texts) for texts in read]
    assert rig.submitted.segments == [len(texts[0]) + 2 for texts in read]
    sigmoids = [1 / (1 + np.exp(-draw(pair(*texts), 1)[0])) for texts in read]
    assert found == pytest.approx(sigmoids, abs=1e-6)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"queries": "q"}, "queries"),
        ({}, None),
        ({"queries": None, "documents": None}, None),
        ({"queries": "q", "text_2": "a"}, "queries"),
        ({"queries": "q", "documents": "a", "items": "b"}, "documents"),
        ({"queries": [], "documents": ["a"]}, "queries"),
        ({"queries": "q", "documents": []}, "documents"),
        ({"queries": ["q", "r"], "documents": ["a"]}, "queries"),
        ({"queries": ["q", "r"], "documents": ["a", "b", "c"]}, "queries"),
        ({"queries": ["q"], "documents": [{"title": "no text"}]}, "documents[0]"),
        ({"queries": ["q"], "documents": [{"text": 5}]}, "documents[0]"),
        ({"queries": ["q"], "documents": [{"content": [{"type": "image_url"}]}]}, None),
        ({"queries": ["q"], "documents": ["a", None]}, "documents[1]"),
        ({"queries": "q", "documents": [["a"]]}, "documents[0]"),
        ({"queries": "q", "documents": 7}, "documents"),
        ({"queries": "q", "documents": "a", "max_tokens_per_doc": -1}, "max_tokens_per_doc"),
        ({"queries": "q", "documents": "a", "max_tokens_per_query": 1.5}, "max_tokens_per_query"),
        ({"queries": "q", "documents": "a", "truncation_side": "middle"}, "truncation_side"),
        ({"queries": "q", "documents": "a", "truncate_prompt_tokens": 4096}, "truncate_prompt_tokens"),
        ({"queries": "q", "documents": "a", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ({"queries": "q", "documents": "a", "normalize": True}, "normalize"),
    ],
)
def test_what_is_refused(body, param):
    rig = cross_rig()
    error = assert_refused(rig, rig.post("/score", body))
    assert error["param"] == param
    assert param is None or param in error["message"]


def test_null_is_unset():
    rig = cross_rig()
    fields = ("max_tokens_per_doc", "max_tokens_per_query", "instruction", "use_activation", "truncate_prompt_tokens")
    others = ("truncation_side", "priority", "cache_salt", "chat_template_kwargs", "items", "text_1", "model")
    body = {"queries": "q", "documents": "a", **dict.fromkeys((*fields, *others))}
    assert scores(rig.post("/score", body)) == scores(cross_rig().post("/score", {"queries": "q", "documents": "a"}))


def test_the_raw_number_of_a_cross_encoder():
    rig = cross_rig()
    found = scores(rig.post("/score", {"queries": "q", "documents": ["a", "b"], "use_activation": False}))
    assert found == pytest.approx([float(draw(pair("q", text), 1)[0]) for text in "ab"])
    assert not rig.submitted.pooling.activation


class TestBiEncoder:
    def test_cosines_with_the_query_read_once(self):
        rig = pooling_rig(EMBEDDER)
        reply = rig.post("/score", {"queries": "who", "documents": ["me", "you", "who", ""]})
        assert rig.submitted.prompts == [framed(text) for text in ("who", "me", "you", "who", "")]
        assert rig.submitted.segments == []
        assert rig.submitted.pooling.task is PoolingTask.EMBED
        cosines = [float(vector("who") @ vector(text)) for text in ("me", "you", "who", "")]
        assert scores(reply) == pytest.approx(cosines, abs=1e-6)
        assert scores(reply)[2] <= 1.0
        assert reply.json()["usage"]["prompt_tokens"] == sum(map(len, rig.submitted.prompts))

    def test_many_to_many(self):
        rig = pooling_rig(EMBEDDER)
        found = scores(rig.post("/score", {"text_1": ["a", "b", "c"], "text_2": ["x", "y", "c"]}))
        expected = [float(vector(first) @ vector(second)) for first, second in ("ax", "by", "cc")]
        assert found == pytest.approx(expected, abs=1e-6)

    def test_vectors_of_any_length(self):
        def long(ids, params):
            return embed(ids, params) * 1000

        found = scores(pooling_rig(EMBEDDER, long).post("/score", {"queries": "q", "documents": ["q", "a"]}))
        assert found == pytest.approx([1.0, float(vector("q") @ vector("a"))], abs=1e-6)
        assert max(found) <= 1.0

    def test_a_vector_without_length_is_no_score(self):
        def nothing(ids, params):
            return np.zeros((1, SIZE), np.float32)

        reply = pooling_rig(EMBEDDER, nothing).post("/score", {"queries": "q", "documents": ["a"]})
        assert reply.status_code == 500
        assert "without length" in reply.json()["error"]["message"]

    def test_prompts_of_the_model(self):
        """As sentence-transformers' `encode_query` and `encode_document`."""
        profile = ModelProfile(
            tasks=("embed", "score"),
            scoring=Scoring.BI_ENCODER,
            prompts={"query": "Q: ", "passage": "P: ", "other": "O: "},
            default_prompt="other",
        )
        rig = pooling_rig(profile)
        scores(rig.post("/score", {"queries": "q", "documents": ["a"]}))
        assert rig.submitted.prompts == [framed("Q: q"), framed("P: a")]

    @pytest.mark.parametrize(("side", "kept"), [("right", "abc"), ("left", "xyz")])
    def test_limits_are_for_texts_and_not_for_the_prompts_of_the_model(self, side, kept):
        profile = replace(EMBEDDER, prompts={"query": "Q: ", "passage": "P: "})
        rig = pooling_rig(profile)
        body = {"queries": "0123456789", "documents": ["abcdefuvwxyz", "ab"], "truncation_side": side}
        scores(rig.post("/score", body | {"max_tokens_per_doc": 3, "max_tokens_per_query": 9}))
        query = "012345678" if side == "right" else "123456789"
        assert rig.submitted.prompts == [framed("Q: " + query), framed("P: " + kept), framed("P: ab")]

    @pytest.mark.parametrize(("side", "kept"), [("right", "abcdefgh"), ("left", "stuvwxyz")])
    def test_a_text_is_cut_to_the_window_behind_its_prompt(self, side, kept):
        profile = replace(EMBEDDER, prompts={"query": "Q: ", "passage": "P: "})
        for limit in ({"max_tokens_per_doc": 4096}, {"truncate_prompt_tokens": -1}):
            rig = pooling_rig(profile, max_model_len=13)
            body = {"queries": "q", "documents": "abcdefghijklmnopqrstuvwxyz", "truncation_side": side}
            scores(rig.post("/score", body | limit))
            assert rig.submitted.prompts == [framed("Q: q"), framed("P: " + kept)]

    def test_a_limit_that_leaves_no_room_beside_the_prompt_is_refused(self):
        rig = pooling_rig(replace(EMBEDDER, prompts={"query": "Q: "}))
        body = {"queries": "q", "documents": "a", "truncate_prompt_tokens": 5}
        assert "no room beside the 5 tokens" in assert_refused(rig, rig.post("/score", body))["message"]


class TestLateInteraction:
    def test_the_sum_of_best_matches(self):
        rig = pooling_rig(LATE_INTERACTION)
        reply = rig.post("/score", {"queries": "who", "documents": ["me", "owl", "who"]})
        assert rig.submitted.pooling.task is PoolingTask.TOKEN_EMBED
        expected = [(tokens("who") @ tokens(text).T).max(axis=1).sum() for text in ("me", "owl", "who")]
        assert scores(reply) == pytest.approx(expected, abs=1e-5)
        assert scores(reply)[2] == pytest.approx(5), "each of its five tokens has itself as best match"
        assert reply.json()["usage"]["prompt_tokens"] == 5 + 4 + 5 + 5

    def test_many_to_many(self):
        found = scores(pooling_rig(LATE_INTERACTION).post("/score", {"queries": ["ab", "c"], "items": ["bd", "xyz"]}))
        expected = [(tokens(a) @ tokens(b).T).max(axis=1).sum() for a, b in (("ab", "bd"), ("c", "xyz"))]
        assert found == pytest.approx(expected, abs=1e-5)


def late_rig(**settings):
    more = {name: settings.pop(name) for name in ("max_model_len",) if name in settings}
    return pooling_rig(replace(LATE_INTERACTION, late_interaction=LateInteraction(**settings)), **more)


MASK = 258


class TestLateInteractionWithSettings:
    """As a model's files say that queries and documents are read."""

    def test_each_side_is_cut_to_its_length(self):
        rig = late_rig(query_length=4, document_length=5)
        scores(rig.post("/score", {"queries": "0123456789", "documents": ["abcdefgh", "ab"]}))
        assert rig.submitted.prompts == [framed("01"), framed("abc"), framed("ab")]
        rig = late_rig(query_length=4, document_length=5)
        more = {"truncation_side": "left", "truncate_prompt_tokens": 4, "max_tokens_per_query": 1}
        scores(rig.post("/score", {"queries": "0123456789", "documents": ["abcdefgh", "ab"], **more}))
        assert rig.submitted.prompts == [framed("9"), framed("gh"), framed("ab")]

    def test_what_would_be_cut_to_the_window_of_the_server_is_refused(self):
        rig = late_rig(document_length=20, max_model_len=16)
        reply = rig.post("/score", {"queries": "q", "documents": "d" * 17})
        assert "16 are read" in assert_refused(rig, reply, code="context_length_exceeded")["message"]

    @pytest.mark.parametrize("path", ["/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"])
    @pytest.mark.parametrize("attend", [False, True])
    def test_queries_are_lengthened(self, attend, path):
        rig = late_rig(query_length=8, expansion=Expansion(8, MASK, attend))
        reply = rig.post(path, {"queries" if "score" in path else "query": "who", "documents": ["me", "owls"]})
        assert rig.submitted.prompts == [[*framed("who"), MASK, MASK, MASK], framed("me"), framed("owls")]
        assert rig.submitted.unattended == ([] if attend else [3, 0, 0])
        query = np.concatenate((tokens("who"), [unit(MASK)] * 3))
        expected = [(query @ tokens(text).T).max(axis=1).sum() for text in ("me", "owls")]
        body = reply.json()
        found = body["data"] if "score" in path else sorted(body["results"], key=lambda one: one["index"])
        numbers = [one["score" if "score" in path else "relevance_score"] for one in found]
        assert numbers == pytest.approx(expected, abs=1e-5)

    def test_only_queries_that_are_short(self):
        rig = late_rig(expansion=Expansion(5, MASK, attend=False))
        scores(rig.post("/score", {"queries": ["a", "longer", "abc"], "documents": ["x", "y", "z"]}))
        assert list(rig.submitted.prompts)[:3] == [[*framed("a"), MASK, MASK], framed("longer"), framed("abc")]
        assert rig.submitted.unattended == [2, 0, 0, 0, 0, 0]
        rig = late_rig(expansion=Expansion(5, MASK, attend=False))
        scores(rig.post("/score", {"queries": "longer", "documents": ["x"]}))
        assert rig.submitted.unattended == []

    def test_a_query_that_cannot_be_as_long_is_refused(self):
        rig = late_rig(query_length=32, expansion=Expansion(32, MASK, attend=False), max_model_len=16)
        reply = rig.post("/score", {"queries": "who", "documents": "me"})
        error = assert_refused(rig, reply, code="context_length_exceeded")
        assert "lengthens queries to 32 tokens" in error["message"]
        assert error["param"] == "queries"

    @pytest.mark.parametrize(
        ("query", "document"),
        [
            (CountedTokens(), CountedTokens(frozenset(b"wm"))),
            (CountedTokens(frozenset({MASK, 256})), CountedTokens()),
            (CountedTokens(), CountedTokens(frozenset(b"o"), frozenset((*b"owe", 257)))),
            (CountedTokens(frozenset((*b"who", 256, 257, MASK))), CountedTokens()),
        ],
    )
    def test_tokens_that_do_not_count(self, query, document):
        rig = late_rig(expansion=Expansion(6, MASK, attend=True), counted_in_query=query, counted_in_document=document)
        texts = ("me", "owls", "who")
        found = scores(rig.post("/score", {"queries": "who", "documents": texts}))
        assert list(rig.submitted.prompts)[1:] == [framed(text) for text in texts], "they are read"
        left = np.array([unit(token) for token in (*framed("who"), MASK) if token in query]).reshape(-1, SIZE)
        rights = [[unit(token) for token in framed(text) if token in document] for text in texts]
        assert found == pytest.approx([(left @ np.array(right).T).max(axis=1).sum() for right in rights], abs=1e-5)

    def test_a_document_of_which_no_token_counts_is_last(self):
        rig = late_rig(counted_in_document=CountedTokens(only=frozenset(b"o")))
        reply = rig.post("/rerank", {"query": "who", "documents": ["me", "owls"]})
        assert [(one["index"], one["relevance_score"]) for one in reply.json()["results"]] == [
            (1, pytest.approx((tokens("who") @ unit(ord("o"))).sum(), abs=1e-5)),
            (0, -1e9),
        ]

    def test_vectors_of_tokens_are_of_the_text_as_it_is(self):
        settings = {"expansion": Expansion(8, MASK, attend=False), "query_length": 8, "document_length": 3}
        rig = late_rig(**settings, counted_in_document=CountedTokens(frozenset(b"m")))
        reply = rig.post("/pooling", {"input": "memo", "task": "token_embed"})
        np.testing.assert_allclose(reply.json()["data"][0]["data"], tokens("memo"), atol=1e-6)
        assert (rig.submitted.prompts, rig.submitted.unattended) == ([framed("memo")], [])


class TestCutting:
    def test_a_pair_is_cut_as_transformers_cuts(self):
        rig = cross_rig()
        body = {"queries": "qqqqqqqq", "documents": ["aaaaaaaaaaaa", "bb"], "truncate_prompt_tokens": 10}
        scores(rig.post("/score", body))
        assert rig.submitted.prompts == [pair("qqq", "aaaa"), pair("qqqqq", "bb")]
        assert rig.submitted.segments == [5, 7]

    def test_on_the_left(self):
        rig = cross_rig()
        more = {"truncate_prompt_tokens": 10, "truncation_side": "left"}
        scores(rig.post("/score", {"queries": "0123456789", "documents": "abcdefghij", **more}))
        assert rig.submitted.prompts == [pair("789", "ghij")]

    def test_to_the_whole_window(self):
        rig = cross_rig(max_model_len=32)
        scores(rig.post("/score", {"queries": "q", "documents": "d" * 100, "truncate_prompt_tokens": -1}))
        assert rig.submitted.prompts == [pair("q", "d" * 28)]

    def test_each_text_for_itself(self):
        rig = cross_rig()
        body = {"queries": "0123456789", "documents": "abcdefghij", "max_tokens_per_query": 4, "max_tokens_per_doc": 3}
        scores(rig.post("/score", body))
        assert rig.submitted.prompts == [pair("0123", "abc")]

    def test_a_document_is_cut_to_what_its_query_and_the_special_tokens_leave(self):
        """However large the limit: 4096 is what some clients always send."""
        rig = cross_rig(max_model_len=32)
        scores(rig.post("/score", {"queries": "q" * 9, "documents": ["d" * 100, "dd"], "max_tokens_per_doc": 4096}))
        assert rig.submitted.prompts == [pair("q" * 9, "d" * 20), pair("q" * 9, "dd")]

    def test_a_query_too(self):
        rig = cross_rig(max_model_len=32)
        more = {"max_tokens_per_doc": 4096, "max_tokens_per_query": 4096}
        scores(rig.post("/score", {"queries": "q" * 100, "documents": "d" * 100, **more}))
        assert rig.submitted.prompts == [pair("q" * 28, "d")]

    def test_zero_is_off(self):
        rig = cross_rig()
        more = {"max_tokens_per_doc": 0, "max_tokens_per_query": 0}
        scores(rig.post("/score", {"queries": "q" * 9, "documents": "d" * 9, **more}))
        assert rig.submitted.prompts == [pair("q" * 9, "d" * 9)]

    @pytest.mark.parametrize(
        ("body", "name", "length"),
        [
            ({"queries": "q", "documents": ["d", "d" * 29]}, "documents[1]", 33),
            ({"queries": "q" * 40, "documents": "d", "max_tokens_per_doc": 4096}, "documents", 44),
        ],
    )
    def test_what_is_too_long_is_refused(self, body, name, length):
        rig = cross_rig(max_model_len=32)
        error = assert_refused(rig, rig.post("/score", body), code="context_length_exceeded")
        assert f"`{name}`" in error["message"]
        assert f"{length} tokens" in error["message"]
        assert "reduce the length of the input prompt" in error["message"]

    def test_texts_that_are_read_alone(self):
        rig = pooling_rig(EMBEDDER, max_model_len=16)
        body = {"queries": "q" * 20, "documents": ["d" * 20, "x"], "max_tokens_per_query": 4}
        scores(rig.post("/score", {**body, "max_tokens_per_doc": 4096}))
        assert rig.submitted.prompts == [framed("qqqq"), framed("d" * 14), framed("x")]
        rig = pooling_rig(EMBEDDER, max_model_len=16)
        error = assert_refused(rig, rig.post("/score", body), code="context_length_exceeded")
        assert "`documents[0]`" in error["message"]
        rig = pooling_rig(EMBEDDER)
        more = {"truncate_prompt_tokens": 5, "truncation_side": "left"}
        scores(rig.post("/score", {"queries": "012345", "documents": "abcdef", **more}))
        assert rig.submitted.prompts == [framed("345"), framed("def")]


class TestWrittenPrompts:
    """A model that reads a pair as one prompt, as a decoder does."""

    @staticmethod
    def write(query, document, instruction):
        return f"{instruction or 'fit?'} Q={query} D={document} ->"

    def rig(self, **more):
        return pooling_rig(CROSS_ENCODER, relevance, score_prompt=self.write, **more)

    def test_what_is_read(self):
        rig = self.rig()
        found = scores(rig.post("/score", {"queries": "q", "documents": ["a", "b"]}))
        prompts = [list(f"fit? Q=q D={text} ->".encode()) for text in "ab"]
        assert rig.submitted.prompts == prompts
        assert rig.submitted.segments == []
        assert found == pytest.approx([1 / (1 + np.exp(-draw(ids, 1)[0])) for ids in prompts], abs=1e-6)

    def test_the_instruction(self):
        rig = self.rig()
        scores(rig.post("/score", {"queries": ["q", "r"], "documents": ["a", "b"], "instruction": "legal?"}))
        assert [bytes(ids) for ids in rig.submitted.prompts] == [b"legal? Q=q D=a ->", b"legal? Q=r D=b ->"]

    def test_a_document_gives_way(self):
        rig = self.rig(max_model_len=32)
        scores(rig.post("/score", {"queries": "q", "documents": ["d" * 99], "max_tokens_per_doc": 4096}))
        assert [bytes(ids) for ids in rig.submitted.prompts] == [b"fit? Q=q D=" + b"d" * 18 + b" ->"]
        rig = self.rig()
        more = {"max_tokens_per_doc": 2, "max_tokens_per_query": 3}
        scores(rig.post("/score", {"queries": "qqqq", "documents": ["dddd"], **more}))
        assert [bytes(ids) for ids in rig.submitted.prompts] == [b"fit? Q=qqq D=dd ->"]

    def test_what_is_too_long_is_refused(self):
        rig = self.rig(max_model_len=32)
        assert_refused(rig, rig.post("/score", {"queries": "q", "documents": "d" * 99}), code="context_length_exceeded")
        rig = self.rig(max_model_len=32)
        body = {"queries": "q" * 40, "documents": "d", "max_tokens_per_doc": 9}
        assert_refused(rig, rig.post("/score", body), code="context_length_exceeded")


@pytest.mark.parametrize("profile", [CROSS_ENCODER, EMBEDDER, LATE_INTERACTION])
def test_a_text_of_no_tokens_is_refused(profile):
    rig = pooling_rig(profile, framed=False)
    error = assert_refused(rig, rig.post("/score", {"queries": "", "documents": ["a", ""]}))
    assert "no tokens" in error["message"]


@pytest.mark.parametrize("profile", [CROSS_ENCODER, EMBEDDER, LATE_INTERACTION])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_number_that_is_not_finite_is_a_500(profile, number):
    def broken(ids, params):
        return np.full((1, 1 if profile is CROSS_ENCODER else SIZE), number, np.float32)

    rig = pooling_rig(profile, broken)
    reply = rig.post("/score", {"queries": "q", "documents": ["a", "b"]})
    assert reply.status_code == 500
    assert "finite" in reply.json()["error"]["message"]
    assert rig.counts.outcomes == {"engine_error": 1}


def test_a_score_that_overflows_is_a_500():
    def huge(ids, params):
        return np.full((1, SIZE), 3e38, np.float32)

    with np.errstate(over="ignore", invalid="ignore"):
        reply = pooling_rig(LATE_INTERACTION, huge).post("/score", {"queries": "q", "documents": ["a"]})
    assert reply.status_code == 500
    assert "finite" in reply.json()["error"]["message"]


def test_a_model_that_cannot_score_says_what_it_can():
    rig = pooling_rig(CLASSIFIER)
    reply = rig.post("/score", {"model": "tiny", "queries": "q", "documents": "a"})
    error = assert_refused(rig, reply, code="model_not_supported")
    assert "classify" in error["message"]


def test_the_fields_of_the_engine():
    rig = cross_rig(settings=ApiSettings(version="0.0", scheduling_policy="priority"))
    body = {"queries": "q", "documents": "a", "priority": 7, "cache_salt": "salt", "user": "me", "request_id": "mine"}
    scores(rig.post("/score", body, headers={"x-request-id": "label"}))
    asked = rig.submitted
    assert (asked.priority, asked.cache_salt, asked.label, asked.n) == (7, "salt", "label", 1)


def test_a_model_without_blocks_reads_its_window():
    rig = cross_rig(max_model_len=16, num_blocks=0)
    scores(rig.post("/score", {"queries": "q" * 6, "documents": "d" * 7}))
    rig = cross_rig(max_model_len=16, num_blocks=0)
    reply = rig.post("/score", {"queries": "q" * 6, "documents": "d" * 8})
    assert_refused(rig, reply, code="context_length_exceeded")


def test_long_bodies_are_read_in_a_thread():
    rig = cross_rig()
    scores(rig.post("/score", {"queries": "q", "documents": ["d" * 1000] * 20}))
    assert len(rig.submitted.prompts) == 20


def test_a_late_query_scores_what_waited_for_it_and_keeps_nothing_else():
    """The engine may answer in any order; a document's vectors go as soon as its query is there."""
    from tenure.api.rerank.scoring import PairedScores, max_similarity  # noqa: PLC0415

    def vectors(text):
        return tokens(text).astype(np.float32)

    found = PairedScores(max_similarity, 1, 3)
    found.take(2, vectors("b"))
    assert found.kept == 1
    found.take(0, vectors("q"))
    assert found.kept == 1, "the query alone"
    found.take(1, vectors("a"))
    found.take(3, vectors("c"))
    assert found.kept == 1
    assert found.values == pytest.approx([(tokens("q") @ tokens(t).T).max(axis=1).sum() for t in "abc"], abs=1e-5)
    paired = PairedScores(max_similarity, 2, 2)
    for index, text in ((3, "d"), (0, "a"), (1, "b"), (2, "c")):
        paired.take(index, vectors(text))
    assert paired.kept == 0
