"""What the handlers need besides the request: a value that the server builds once and nobody changes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tenure.api.notices import Notices
from tenure.client import Fleet
from tenure.outcomes import Outcome
from tenure.text.chat_template import ChatTemplate
from tenure.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ApiSettings:
    """Limits and switches of the HTTP surface."""

    version: str
    max_n: int = 128
    max_logprobs: int = 20
    """-1 lets a request ask for the whole vocabulary."""
    max_prompts: int = 1024
    thread_above: int = 8192
    """Bytes of a body, or of a response with logprobs, from which the work on it leaves the event loop."""
    seed: int | None = None
    """Of requests that give none; None draws one for each."""


@dataclass(frozen=True)
class GenerationDefaults:
    """The sampling values of a model's `generation_config.json`; None where it says nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    """Its `max_new_tokens`: how long a chat answer may be when the request says nothing."""


@dataclass(frozen=True)
class TextModel:
    """The text side of a served model."""

    name: str
    """Its first served name: what `model` says in replies."""
    tokenizer: Tokenizer
    template: ChatTemplate | None = None
    eos_token_ids: tuple[int, ...] = ()
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)
    created: int = 0
    """Unix seconds, as `/v1/models` reports it."""


@dataclass(frozen=True)
class Window:
    """How much of a model is there for one item: the card's figures, as validation needs them."""

    max_model_len: int
    pool_tokens: int
    vocabulary_size: int

    @property
    def capacity(self) -> int:
        """Tokens, prompt and output together, that one item can ever hold."""
        return min(self.max_model_len, self.pool_tokens)


class OutcomeCount(Protocol):
    """How many requests on a route for a model ended in one way."""

    @property
    def route(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def outcome(self) -> Outcome: ...
    @property
    def count(self) -> int: ...


class HistogramCounts(Protocol):
    """Durations in seconds: `counts` has one entry per upper bound and a last one beyond; not cumulative."""

    @property
    def bounds(self) -> Sequence[float]: ...
    @property
    def counts(self) -> Sequence[int]: ...
    @property
    def sum(self) -> float: ...


class HttpCounts(Protocol):
    """Work requests, summed over all API processes: `arrivals` = `open` + the sum of `outcomes`."""

    @property
    def arrivals(self) -> int: ...
    @property
    def open(self) -> int: ...
    @property
    def outcomes(self) -> Mapping[str, int]: ...
    @property
    def by_model(self) -> Sequence[OutcomeCount]: ...
    @property
    def histograms(self) -> Mapping[str, HistogramCounts]: ...


@dataclass(frozen=True)
class AppContext:
    """Everything a handler may use."""

    fleet: Fleet
    texts: Mapping[str, TextModel]
    """By first served name."""
    settings: ApiSettings
    counts: Callable[[], HttpCounts]
    observe: Callable[[str, float], None]
    """Enter seconds into the histogram of that name."""
    epoch: str
    """Drawn anew by each start of the server."""
    started_at: float
    """Monotonic seconds."""
    draining: Callable[[], bool] = lambda: False
    notices: Notices = field(default_factory=Notices)
    document: bytes = b""
    """The OpenAPI document; `api.app` fills it in."""
