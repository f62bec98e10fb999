"""A server without engines: the real guard, routes and handlers around a scripted engine and a byte tokenizer."""

import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import httpx

from tenure.api.app import build_app
from tenure.api.common.context import AppContext
from tenure.api.operations.cancel_by_name import end_named
from tenure.checkpoints.profile import ModelProfile
from tenure.client import EndOfGeneration, GenerationFailed, ServedModel, ServedModels, Watcher
from tenure.client.engine import client_left
from tenure.config import ApiSettings, HttpLimits, KeyRing
from tenure.errors import Refusal
from tenure.observe.counters import CountersSnapshot, WorkStage
from tenure.observe.request_observer import RequestObserver
from tenure.outcomes import FinishReason, Outcome
from tenure.prompts.chat_template import ChatTemplate
from tenure.prompts.text_model import GenerationDefaults, ScorePrompt, TextModel
from tenure.sampling import TokenLogprobs
from tenure.text.pairs import PairTemplate
from tenure.text.special_tokens import SpecialTokens
from tenure.wire.messages import CancelByName, CancelledByName, Ended, ItemOutput, ModelCard, Submit

BEGIN, END, WITHOUT_TOKEN, VOCABULARY = 256, 257, 258, 260
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
TEMPLATE = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{% if add_generation_prompt %}>{% endif %}"


def no_stop() -> None: ...


class ByteTokenizer:
    """One token per byte; 256 begins and 257 ends a text, 258 is no token, 259 has no text."""

    vocabulary_size = VOCABULARY
    without_token = frozenset({WITHOUT_TOKEN})
    eos_token_ids = (END,)
    truncation_side = "right"
    chat_template = TEMPLATE

    def __init__(self, begins: bool = False, ends: bool = False) -> None:
        self.bos_token_id = BEGIN if begins else None
        before, after = ((BEGIN,) if begins else ()), ((END,) if ends else ())
        self.special_tokens = SpecialTokens(before, after)
        self.pair_template = PairTemplate(before, after, after, typed_between=len(after), typed=ends)
        self.encoded_by: set[int] = set()
        """Identities of the threads that encoded something."""

    def encode(self, text: str, add_special_tokens: bool = True, between: Callable[[], None] = no_stop) -> list[int]:
        (own,) = self.encode_plain([text], between)
        return self.special_tokens.around(own) if add_special_tokens else own

    def encode_plain(self, texts: Sequence[str], between: Callable[[], None] = no_stop) -> list[list[int]]:
        self.encoded_by.add(threading.get_ident())
        return [list(text.encode()) for text in texts]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        kept = [i for i in ids if not (skip_special_tokens and self.is_special(i))]
        return b"".join(map(self.token_bytes, kept)).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        if token < 256:
            return bytes([token])
        return {BEGIN: b"<begin>", END: b"<end>"}.get(token, b"")

    def token_piece(self, token: int) -> str:
        return self.token_bytes(token).decode("latin-1")

    longest_token = 10

    def is_special(self, token: int) -> bool:
        return token in (BEGIN, END)


def row(token: int, logprob: float = -0.5, *others: tuple[int, float]) -> TokenLogprobs:
    """The logprobs of one token, which is the best one; `others` follow it."""
    pairs = [(token, logprob), *others]
    return TokenLogprobs.of(logprob, 1, [pair[0] for pair in pairs], [pair[1] for pair in pairs])


def output(index: int, text: str | bytes | list[int], finish: FinishReason | None = None, **more) -> ItemOutput:
    """What one step produced for an item, its tokens written as text."""
    tokens = list(text.encode()) if isinstance(text, str) else list(text)
    return ItemOutput(request=1, index=index, tokens=tokens, finish_reason=finish, **more)


@dataclass
class FakeHandle:
    batches: list[list[ItemOutput]]
    failure: Exception | None
    finished: list[int] = field(default_factory=list)
    watcher: Watcher | None = None

    def watch(self, watcher: Watcher) -> None:
        self.watcher = watcher
        watcher.admitted(time.monotonic())

    async def receive(self) -> list[ItemOutput]:
        await anyio.lowlevel.checkpoint()
        if self.batches:
            outputs = self.batches.pop(0)
            for output in outputs if self.watcher is not None else ():
                self.watcher.output(output, time.monotonic())
            return outputs
        raise self.failure or EndOfGeneration

    def end(self) -> None:
        if self.watcher is not None:
            self.watcher.ended(Ended(request=1, outcome=Outcome.OK, queue_seconds=0.0), time.monotonic())

    def finish_item(self, index: int) -> None:
        self.finished.append(index)


Script = Callable[[Submit], list[list[ItemOutput]]]


def say_hello(submit: Submit) -> list[list[ItemOutput]]:
    """Every item says `Hi`, one token per step, and ends at the end token."""
    items = range(len(submit.prompts) * submit.n)
    logprobs = submit.sampling.logprobs is not None
    prompts = [submit.prompts[index // submit.n] for index in items]
    prompt_logprobs = [None] * len(prompts)
    if submit.sampling.prompt_logprobs is not None:
        prompt_logprobs = [[None, *(row(token) for token in prompt[1:])] for prompt in prompts]
    if submit.sampling.max_tokens == 0:
        return [[output(index, "", LENGTH, prompt_logprobs=prompt_logprobs[index]) for index in items]]
    steps = []
    for token, finish in ((ord("H"), None), (ord("i"), None), (END, STOP)):
        rows = [row(token)] if logprobs else None
        first = token == ord("H")
        steps.append(
            [
                output(i, [token], finish, logprobs=rows, prompt_logprobs=prompt_logprobs[i] if first else None)
                for i in items
            ]
        )
    return steps


class FakeEngine:
    """Admits everything, unless it is given a refusal, and plays its script."""

    outstanding_tokens = 0
    open_requests = 0

    def __init__(self, script: Script = say_hello, max_model_len: int = 2048, num_blocks: int = 4096) -> None:
        self.script = script
        self.card: ModelCard | None = ModelCard(
            name="tiny",
            served_names=("tiny", "alias"),
            source="/models/tiny.gguf",
            vocabulary_size=VOCABULARY,
            max_model_len=max_model_len,
            block_size=16,
            num_blocks=num_blocks,
            dtype="float32",
        )
        self.submitted: list[Submit] = []
        self.handles: list[FakeHandle] = []
        self.refusal: Refusal | None = None
        self.failure: GenerationFailed | None = None
        self.open_scopes = 0
        self.cancelled_for: list[Outcome] = []

    @property
    def ready(self) -> bool:
        return self.card is not None

    @asynccontextmanager
    async def open(self, submit: Submit, cause: Callable[[], Outcome] = client_left) -> AsyncIterator[FakeHandle]:
        self.submitted.append(submit)
        if self.refusal is not None:
            raise self.refusal
        handle = FakeHandle(self.script(submit), self.failure)
        self.handles.append(handle)
        self.open_scopes += 1
        try:
            yield handle
        except anyio.get_cancelled_exc_class():
            self.cancelled_for.append(cause())
            raise
        finally:
            handle.end()
            self.open_scopes -= 1

    async def cancel_by_name(self, names: CancelByName) -> CancelledByName | None:
        """It knows no request by name."""
        return CancelledByName(sequence=0, requests=[], unreached=names.ids)

    async def ledger(self, timeout: float = 1.0, *, holders: bool = False) -> None:
        return None


@dataclass
class Counts:
    """Counts what the guard tells it."""

    arrivals: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    histograms: dict = field(default_factory=dict)
    moves: list[tuple] = field(default_factory=list)

    @property
    def open(self) -> int:
        return self.arrivals - sum(self.outcomes.values())

    def snapshot(self) -> CountersSnapshot:
        """What handlers read."""
        return CountersSnapshot(self.arrivals, self.open, dict(self.outcomes), {}, [], self.histograms)

    def arrive(self, route: str) -> None:
        self.arrivals += 1

    def leave(self, route: str, model: str, outcome: Outcome) -> None:
        self.outcomes[outcome.value] = self.outcomes.get(outcome.value, 0) + 1

    def move(self, model: str, before: WorkStage, after: WorkStage | None) -> None:
        self.moves.append((model, before, after))

    def observe(self, histogram: str, value: float, model: str = "") -> None:
        self.seconds.setdefault(histogram, []).append(value)


class Rig:
    """The application and one scripted engine. `post` and `get` are whole HTTP exchanges."""

    def __init__(
        self,
        script: Script = say_hello,
        *,
        begins: bool = False,
        defaults: GenerationDefaults | None = None,
        settings: ApiSettings | None = None,
        tasks: Sequence[str] = ("generate",),
        profile: ModelProfile | None = None,
        tokenizer: ByteTokenizer | None = None,
        score_prompt: ScorePrompt | None = None,
        engine: FakeEngine | None = None,
        keys: Sequence[str] = (),
        limits: HttpLimits | None = None,
        was_ready: bool = True,
        **card,
    ) -> None:
        self.engine = engine or FakeEngine(script, **card)
        self.counts = Counts()
        text = TextModel(
            name="tiny",
            tokenizer=tokenizer or ByteTokenizer(begins),
            template=ChatTemplate(TEMPLATE, {}),
            eos_token_ids=(END,),
            defaults=defaults or GenerationDefaults(),
            created=1700000000,
            profile=profile or ModelProfile(tasks=tuple(tasks)),
            score_prompt=score_prompt,
        )
        self.context = AppContext(
            models=ServedModels([ServedModel(("tiny", "alias"), [self.engine], text.profile.tasks)]),
            texts={"tiny": text},
            settings=settings or ApiSettings(version="0.0"),
            counts=self.counts.snapshot,
            epoch="e1",
            started_at=0.0,
            was_ready=lambda: self.was_ready,
            process="abcdef01",
            end_named=lambda names: end_named(self.app.open_exchanges, self.observer.ended, names),
        )
        self.was_ready = was_ready
        self.observer = RequestObserver(self.counts)
        self.app = build_app(self.context, self.observer, limits or HttpLimits(), KeyRing(tuple(keys)))

    @property
    def submitted(self) -> Submit:
        """The one request that the engine was asked for."""
        (submit,) = self.engine.submitted
        return submit

    def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-type": "application/json", **(headers or {})}
        return self.request("POST", path, content=content, headers=given)

    def chat(self, text: str = "hi", headers: dict[str, str] | None = None, **fields) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": text}], **fields}
        return self.post("/v1/chat/completions", body, headers)

    def complete(self, prompt: object = "hi", **fields) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": prompt, **fields})

    def request(self, method: str, path: str, **more) -> httpx.Response:
        async def exchange() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.request(method, path, **more)

        reply = anyio.run(exchange)
        assert self.engine.open_scopes == 0
        assert self.counts.open == 0
        return reply


def events(reply: httpx.Response) -> list[object]:
    """The events of a stream: decoded JSON, and `[DONE]` as it is."""
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in reply.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return ["[DONE]" if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


def undated(event: object, kind: str, prefix: str) -> object:
    """An event without what differs from run to run, and without its kind and model; checks those keys."""
    if event == "[DONE]":
        return event
    assert isinstance(event, dict)
    kept = dict(event)
    assert kept.pop("id").startswith(prefix)
    assert kept.pop("object") == kind
    assert kept.pop("model") == "tiny"
    assert isinstance(kept.pop("created"), int)
    return kept


def assert_refused(rig: Rig, reply: httpx.Response, status: int = 400, code: str = "invalid_request") -> dict:
    """The reply is a valid error envelope and the engine was not asked; returns the error."""
    assert reply.status_code == status, reply.text
    assert set(reply.json()) == {"error"}
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert error["message"]
    assert rig.engine.submitted == []
    return error
