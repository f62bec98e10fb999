"""Models, health, load, ledger, metrics and the API's description."""

import json
import re

import anyio
import msgspec
import pytest

from tenure.api.app import route_table
from tenure.client import ServedModel, ServedModels
from tenure.wire import messages as wire
from tests.api.generation_rig import FakeEngine, Rig
from tests.api.test_route_walk import ALL, EXAMPLES

LEDGER = wire.EngineLedger(
    model="tiny",
    index=0,
    epoch="engine-1",
    answering=True,
    conserved=True,
    blocks=wire.BlockCounts(total=10, free=6, cached=3, leased=1, quarantined=0),
    slots=wire.SlotCounts(total=4, free=3, leased=1),
    permits=wire.PermitCounts(wire.PermitCount(0), wire.PermitCount(1, 8), wire.PermitCount(5, 100)),
    items=wire.ItemCounts(waiting=0, fetching_kv=0, running=1, preempted=0, stalled=0),
    finish_reasons={"stop": 4},
    holders=[wire.HolderRow(holder="item 7", request="cmpl-1", label="l", state="running", blocks=1, age_s=0.3)],
    tokens=wire.TokenCounts(computed=12),
)


class AnsweringEngine(FakeEngine):
    """An engine that tells its ledger."""

    def __init__(self, ledger=LEDGER):
        super().__init__()
        self._ledger = ledger

    async def ledger(self, timeout=1.0, *, holders=False):
        return self._ledger if holders else msgspec.structs.replace(self._ledger, holders=[])


@pytest.fixture
def rig():
    return Rig()


def with_engine(engine):
    rig = Rig()
    object.__setattr__(
        rig.context.models, "models", ServedModels([ServedModel(("tiny", "alias"), [engine], ("generate",))]).models
    )
    return rig


def test_models_lists_every_name_in_the_shape_that_clients_read(rig):
    reply = rig.request("GET", "/v1/models")
    assert reply.status_code == 200
    body = reply.json()
    assert body["object"] == "list"
    assert [entry["id"] for entry in body["data"]] == ["tiny", "alias"]
    entry = body["data"][0]
    permission = entry.pop("permission")
    assert entry == {
        "id": "tiny",
        "object": "model",
        "created": 1700000000,
        "owned_by": "tenure",
        "root": "tiny",
        "parent": None,
        "max_model_len": 2048,
        "tasks": ["generate"],
    }
    assert permission[0]["object"] == "model_permission"
    assert body["data"][1]["root"] == "tiny"


def test_models_tell_nothing_of_this_machine(rig):
    assert "/" in rig.engine.card.source
    assert rig.engine.card.source not in rig.request("GET", "/v1/models").text


def test_one_model_is_found_by_any_of_its_names(rig):
    assert rig.request("GET", "/v1/models/alias").json()["id"] == "alias"


@pytest.mark.parametrize("name", ["nope", "org/nope"])
def test_an_unknown_model_is_a_404(rig, name):
    reply = rig.request("GET", f"/v1/models/{name}")
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(("method", "path"), [("GET", "/health"), ("GET", "/ping"), ("POST", "/ping")])
def test_health_is_503_until_the_server_was_ready_and_then_means_live(rig, method, path):
    rig.was_ready = False
    reply = rig.request(method, path)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_unavailable")
    rig.was_ready, rig.engine.card = True, None
    reply = rig.request(method, path)
    assert (reply.status_code, reply.content) == (200, b"")


def test_ready_follows_the_engines(rig):
    assert rig.request("GET", "/ready").status_code == 200
    rig.engine.card = None
    reply = rig.request("GET", "/ready")
    assert reply.status_code == 503
    assert int(reply.headers["retry-after"]) >= 1
    assert reply.json()["error"]["code"] == "engine_unavailable"


@pytest.mark.parametrize(
    "path", [route.path for route in route_table().routes if "GET" in route.methods and "{" not in route.path]
)
def test_head_is_answered_where_get_is(rig, path):
    assert rig.request("HEAD", path).status_code == 200


def test_version_and_load(rig):
    assert rig.request("GET", "/version").json() == {"version": "0.0"}
    assert rig.request("GET", "/load").json() == {"server_load": 0}


def test_the_ledger_has_the_documented_keys():
    body = with_engine(AnsweringEngine()).request("GET", "/ledger").json()
    assert body.pop("uptime_s") > 0
    assert body == {
        "conserved": True,
        "epoch": "e1",
        "http": {"open": 0, "arrivals": 0, "outcomes": {}},
        "engines": [
            {
                "model": "tiny",
                "index": 0,
                "epoch": "engine-1",
                "answering": True,
                "blocks": {"total": 10, "free": 6, "cached": 3, "leased": 1, "quarantined": 0},
                "slots": {"total": 4, "free": 3, "leased": 1},
                "permits": {
                    "requests": {"held": 0},
                    "items": {"held": 1, "limit": 8},
                    "tokens": {"held": 5, "limit": 100},
                },
                "items": {
                    "waiting": 0,
                    "awaiting_prefill": 0,
                    "fetching_kv": 0,
                    "running": 1,
                    "preempted": 0,
                    "stalled": 0,
                },
                "finish_reasons": {"stop": 4},
                "holders": [
                    {
                        "holder": "item 7",
                        "request": "cmpl-1",
                        "label": "l",
                        "state": "running",
                        "blocks": 1,
                        "age_s": 0.3,
                    }
                ],
                "conserved": True,
                "tokens": {"computed": 12, "cached": 0, "recomputed": 0, "sampled": 0, "wasted": 0},
                "steps": 0,
                "preemptions": 0,
                "unmatched_messages": 0,
                "figures": msgspec.json.decode(msgspec.json.encode(LEDGER.figures)),
            }
        ],
    }


def test_the_ledger_marks_an_engine_that_does_not_answer(rig):
    rig.chat()
    body = rig.request("GET", "/ledger").json()
    (engine,) = body["engines"]
    assert engine["answering"] is False
    assert engine["permits"] == {
        "requests": {"held": 0},
        "items": {"held": 0, "limit": 0},
        "tokens": {"held": 0, "limit": 0},
    }
    assert engine["finish_reasons"] == {"stop": 0, "length": 0, "repetition": 0}
    answering = with_engine(AnsweringEngine()).request("GET", "/ledger").json()["engines"][0]
    assert set(engine) == set(answering)
    assert body["http"] == {"open": 0, "arrivals": 1, "outcomes": {"ok": 1}}


def test_the_duration_of_a_request_is_noted_however_it_ends(rig):
    rig.complete()
    rig.complete(temperature=-1)
    rig.post("/v1/completions", b"{}", {"content-type": "text/plain"})
    rig.request("GET", "/v1/models")
    assert rig.counts.outcomes == {"ok": 1, "invalid": 2}
    assert len(rig.counts.seconds["request_seconds"]) == 3


def test_every_route_is_described(rig):
    document = rig.request("GET", "/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    for route in route_table().routes:
        operations = document["paths"][route.path.replace(":path", "")]
        assert set(operations) == {method.lower() for method in route.methods}
        for operation in operations.values():
            assert {"200", "405", "500"} <= set(operation["responses"])
            assert "429" in operation["responses"]
            assert ("409" in operation["responses"]) == route.work
            assert ("504" in operation["responses"]) == route.body


class SilentEngine(FakeEngine):
    """Does not answer."""

    def __init__(self):
        super().__init__()
        self.card = None

    async def cancel_by_name(self, names):
        return None


def test_the_document_tells_which_routes_need_an_engine():
    rig = Rig(engine=SilentEngine(), profile=ALL, was_ready=False)
    paths = rig.request("GET", "/openapi.json").json()["paths"]
    examples = {**EXAMPLES, "/v1/requests/cancel": {"ids": ["some"]}}
    for route in route_table().routes:
        path = re.sub(r"\{(\w+)(:path)?\}", "tiny", route.path)
        for method in route.methods:
            reply = rig.request(method, path, json=examples.get(route.path))
            described = paths[route.path.replace(":path", "")][method.lower()]["responses"]
            assert (reply.status_code == 503) == ("503" in described), (method, path)


async def endless():
    """A body that is never complete."""
    yield b"{"
    await anyio.sleep_forever()


def test_every_body_may_take_longer_than_its_request_has(rig):
    headers = {"content-type": "application/json", "x-request-timeout": "0.01"}
    for route in route_table().routes:
        if route.body:
            reply = rig.request("POST", route.path, content=endless(), headers=headers)
            assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded"), route.path


def test_every_reference_in_the_document_leads_somewhere(rig):
    text = rig.request("GET", "/openapi.json").text
    schemas = json.loads(text)["components"]["schemas"]
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert names
    assert names <= set(schemas)
    assert "x-whole-number" not in text
    assert "x-replace" not in text


def test_the_document_tells_how_rerank_routes_err(rig):
    document = rig.request("GET", "/openapi.json").json()
    for path, fields in (("/score", {"error"}), ("/v2/rerank", {"error", "detail", "message"})):
        refused = document["paths"][path]["post"]["responses"]["400"]["content"]["application/json"]["schema"]
        assert set(document["components"]["schemas"][refused["$ref"].rpartition("/")[2]]["required"]) == fields


def test_the_document_tells_the_ranges(rig):
    schemas = rig.request("GET", "/openapi.json").json()["components"]["schemas"]
    fields = schemas["ChatRequest"]["properties"]
    assert fields["temperature"]["minimum"] == 0
    assert fields["temperature"]["maximum"] == 2
    assert fields["top_p"]["exclusiveMinimum"] == 0
    assert fields["n"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert schemas["ErrorEnvelope"]["required"] == ["error"]


def test_the_docs_page_needs_nothing_from_elsewhere(rig):
    reply = rig.request("GET", "/docs")
    assert reply.headers["content-type"].startswith("text/html")
    assert "openapi.json" in reply.text
    assert not re.search(r"https?://", reply.text)


def test_unknown_paths_and_methods_have_the_envelope(rig):
    reply = rig.request("GET", "/v1/nothing")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "route_not_found")
    assert reply.json()["detail"] == reply.json()["message"] == reply.json()["error"]["message"]
    reply = rig.request("GET", "/v1/completions")
    assert (reply.status_code, reply.json()["error"]["code"]) == (405, "method_not_allowed")
    assert rig.counts.arrivals in (0, 1)
