"""What no server may take: bodies and heads that must be refused, each with the status that it gets.

The kinds are those of the known faults of inference servers: empty prompts, numbers that are none, ids beyond the
vocabulary, limits far out of range, lone surrogates, JSON of the wrong shape, deep nesting, HTTP that is none.
"""

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.storm.connection import post
from benchmarks.storm.questions import COMPLETIONS, Question

_Changes = tuple[dict[str, Any], ...]

_DEEP = b'{"user":' + b"[" * 3000 + b"]" * 3000 + b"}"
_GENERATION: _Changes = (
    *({"temperature": float(value)} for value in ("nan", "inf", "-1", "3")),
    *({"temperature": "NaN"}, {"temperature": []}),
    *({"top_p": 0}, {"min_p": float("-inf")}, {"presence_penalty": 9}, {"repetition_penalty": -1}),
    *({"n": value} for value in (0, -1, 512, 100000, 1.5)),
    *({"max_tokens": value} for value in (-1, 1.5, "many")),
    *({"logprobs": 10**6}, {"logprobs": -5}, {"prompt_logprobs": 10**9}, {"best_of": 5}),
    *({"logit_bias": {"99999999": 1}}, {"logit_bias": {"x": 1}}, {"stop": ["x"] * 5000}, {"stop": [""]}),
    *({"stream": "yes"}, {"seed": 2**70}, {"priority": "high"}, {"min_tokens": -1}),
    *({"response_format": {"type": "json_object"}}, {"cache_salt": "\ud800"}),
)
_PROMPTS: _Changes = (
    {"prompt": []},
    {"prompt": [[]]},
    {"prompt": [10**9]},
    {"prompt": [1, "a"]},
    {"prompt": "a\ud800"},
)
_MESSAGES: _Changes = ({"messages": []}, {"messages": "hi"}, {"messages": [{"role": "user", "content": "\udc00"}]})
_INPUTS: _Changes = (
    {"input": []},
    {"input": [1, "a"]},
    {"input": [[-1]]},
    {"encoding_format": "hex"},
    {"dimensions": 0},
)
_TEXTS: _Changes = ({"texts": []}, {"texts": [1]}, {"embedding_types": ["hex"]}, {"truncate": "MIDDLE"})
_DOCUMENTS: _Changes = (
    {"documents": []},
    {"top_n": 0},
    {"top_n": -1},
    {"top_n": True},
    {"query": None},
    {"documents": ["\ud800"]},
)
_PAIRS: _Changes = (
    {"text_2": []},
    {"text_1": None},
    {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]},
    {"items": ["x"]},
)
_ANY_BODY = (b"", b"[]", b"null", b"123", b'"x"', b"{", b"\xff\xfe", b"{'a': 1}", b'{"model": "\\ud800"}', _DEEP)


@dataclass(frozen=True)
class Refusal:
    """Bytes to send, and the status that must come."""

    name: str
    data: bytes
    status: int
    label: str = ""
    """Under which the server counts the request; None of these has one that it does not count."""
    counted: bool = True


def bad_request(question: Question, label: str, random: Random) -> Refusal:
    """`question`, made wrong in one of the ways that its route knows."""
    path, headers = question.path, {"x-request-id": label}
    way = random.randrange(10)
    if way == 0:
        raw = random.choice(_ANY_BODY)
        return Refusal(f"{path} {raw[:20]!r}", post(path, raw, headers), 400, label)
    if way == 1:
        body = question.body | {"model": "nobody"}
        return Refusal(f"{path} unknown model", post(path, body, headers), 404, label)
    if way == 2:
        return _bad_head(question, label, random)
    if way == 3:
        return Refusal(f"{path} too large", post(path, b" " * 3_000_000, headers), 413, label)
    changes = random.choice(_changes(path))
    name = f"{path} {json.dumps(changes)[:60]}"
    return Refusal(name, post(path, question.body | changes, headers), 400, label)


def _changes(path: str) -> _Changes:
    """Fields that the route refuses, whatever else a body holds."""
    if path.endswith("completions"):
        return (*_GENERATION, *(_PROMPTS if path == COMPLETIONS else _MESSAGES))
    if path.endswith("/embed"):
        return _TEXTS
    if path.endswith("rerank"):
        return _DOCUMENTS
    if path.endswith("score"):
        return _PAIRS
    return _INPUTS if path == "/v1/embeddings" else _INPUTS[:3]


def _bad_head(question: Question, label: str, random: Random) -> Refusal:
    """A head that is wrong, over a body that is right. A label that cannot be carried is none: it is counted as ''."""
    path, body = question.path, question.body
    status, changes = random.choice(
        (
            (415, {"content-type": ""}),
            (415, {"content-type": "text/plain"}),
            (400, {"x-request-timeout": "soon"}),
            (400, {"x-request-timeout": "-1"}),
            (400, {"x-data-parallel-rank": "9"}),
            (400, {"x-data-parallel-rank": "first"}),
            (400, {"x-request-id": "l" * 300}),
            (400, {"x-request-id": "caf\u00e9"}),
        )
    )
    name = f"{path} {json.dumps(changes)[:60]}"
    data = post(path, body, {"x-request-id": label} | changes)
    return Refusal(name, data, status, "" if "x-request-id" in changes else label)


def bad_http(path: str, label: str, random: Random) -> Refusal:
    """Bytes that are no request, or one that ends in the middle; those with a good head are counted."""
    head = f"POST {path} HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\n".encode()
    named = head + f"x-request-id: {label}\r\n".encode()
    choices = (
        Refusal("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400, counted=False),
        Refusal("no version", f"POST {path}\r\n\r\n".encode(), 400, counted=False),
        Refusal("two lengths", head + b"content-length: 5\r\ncontent-length: 6\r\n\r\n", 400, counted=False),
        Refusal("length below 0", head + b"content-length: -1\r\n\r\n", 400, counted=False),
        Refusal(
            "length and chunks", head + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n", 400, counted=False
        ),
        Refusal("large head", head + b"x-large: " + b"x" * 100_000 + b"\r\n\r\n", 431, counted=False),
        Refusal("many headers", head + b"x: y\r\n" * 500 + b"\r\n", 431, counted=False),
        Refusal("bad header", head + b"na me: x\r\n\r\n", 400, counted=False),
        Refusal("wrong method", b"DELETE" + named[4:] + b"\r\n", 405, label),
        Refusal("bad chunks", named + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n", 400, label),
        Refusal("no route", post("/v1/nothing", {}, {}), 404, counted=False),
    )
    return random.choice(choices)
