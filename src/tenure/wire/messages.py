"""The messages between API processes and engines: two closed unions of frozen structs, one per direction.

`ServerLedger` is made of it: the page that commands read over HTTP.

New fields go last and have defaults. `request` is a number that the API process draws; it is unique among the
requests of its connection. A caller's string identifies nothing; only `CancelByName` looks requests up by labels.
"""

import msgspec
from msgspec import UNSET, UnsetType

from tenure.outcomes import FinishReason, Outcome
from tenure.pooling import Pooled, PoolingParams
from tenure.sampling import SamplingParams, TokenLogprobs
from tenure.token_lists import TokenLists
from tenure.wire.token_masks import TokenMasks

PROTOCOL_VERSION = 1


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True, gc=False):
    """Base of all wire messages; the tag is the class name."""


# API process -> engine


class Hello(Message, frozen=True):
    """First message on a connection."""

    worker: int
    version: int = PROTOCOL_VERSION
    process: str = ""
    """The name of this incarnation of the API process in the ids of its requests."""


class Submit(Message, frozen=True):
    """Ask for one request to be admitted, whole or not at all; answered by `Admitted` or `Refused`.

    Items are numbered prompt * n + choice. Each prompt leaves room for one token in window and block pool; the engine
    lowers `sampling.max_tokens` per prompt to what is left of both.
    """

    prompts: TokenLists
    sampling: SamplingParams
    request: int = 0
    """The client's number for it."""
    public_id: str = ""
    """The id in the response, such as `chatcmpl-5f0c...`; made by the server."""
    n: int = 1
    label: str = ""
    """The caller's `X-Request-Id`, to be shown."""
    priority: int = 0
    cache_salt: str = ""
    pooling: PoolingParams | None = None
    """The prompts are read and not continued; `sampling.max_tokens` is 0 and `n` is 1."""
    segments: list[int] = []
    """Per prompt, how many of its first tokens are the first text of a pair; empty when no prompt is a pair."""
    begin_within: float | None = None
    """Seconds from its arrival at the engine within which one of its items must have run; None waits for ever."""
    end_within: float | None = None
    """Seconds from its arrival at the engine within which it must be over; None: no limit."""
    unattended: list[int] = []
    """Per prompt, how many of its last tokens no token attends to; empty when all are attended to."""
    masks: TokenMasks | None = None
    """What `sampling` would have of long lists of tokens."""
    handover: bool = False
    """Another engine goes on: the first output of each item has a ticket for its prompt."""
    tickets: list[str] = []
    """Per prompt, one for its keys and values, computed by another engine, or ""; empty when there is none."""


class Cancel(Message, frozen=True):
    """End a request; answered by its `Ended`, once nothing is held. Unknown requests are counted and ignored."""

    request: int
    outcome: Outcome


class FinishItem(Message, frozen=True):
    """One item needs no further tokens (a stop string matched); its request goes on to end as `ok`."""

    request: int
    index: int


class Stall(Message, frozen=True):
    """The reader of the request does not keep up: no more steps for it until `Resume`."""

    request: int


class Resume(Message, frozen=True):
    request: int


class CancelByName(Message, frozen=True):
    """End every request with one of these public ids, or with one of these labels and `owner`.

    An API process asks an engine, and the engine asks the others: for ids those that they name, for labels all. Each is
    answered by `CancelledByName` with the same `sequence`, once nothing is held of any of the requests.
    """

    sequence: int
    ids: list[str]
    labels: list[str] = []
    owner: str = ""


class CancelledRequest(msgspec.Struct, frozen=True, gc=False):
    """How a cancelled request has ended, now or before the cancel."""

    id: str
    outcome: Outcome
    seconds: float
    """From the cancel until nothing was held; 0 when it had ended before."""


class CancelledByName(Message, frozen=True):
    """How the known ones of the named requests have ended."""

    sequence: int
    requests: list[CancelledRequest]
    unreached: list[str] = []
    """Ids of API processes that are not connected; `requests` has those of them that the engine remembers."""


class ReleaseTickets(Message, frozen=True):
    """These came with a request that does not enter: whoever holds blocks for them may let go. Not answered."""

    tickets: list[str]


class AskLedger(Message, frozen=True):
    """Answered by `LedgerReply` with the same `sequence`: at once, or with `holders` when the running step is over."""

    sequence: int
    holders: bool = False


_Named = CancelByName | CancelledByName | ReleaseTickets
ToEngine = Hello | Submit | Cancel | FinishItem | Stall | Resume | _Named | AskLedger


# Engine -> API process


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """The model of an engine, and its capacity."""

    name: str
    served_names: tuple[str, ...]
    source: str
    vocabulary_size: int
    max_model_len: int
    """Tokens in the window, prompt and output together."""
    block_size: int
    num_blocks: int
    dtype: str
    tasks: tuple[str, ...] = ("generate",)
    load_seconds: float = 0.0
    most_items: int = 2**31
    """Limit for all open requests together, hence for each."""
    most_prompt_tokens: int = 2**31


class Ready(Message, frozen=True):
    """The model is loaded; requests are admitted from now on."""

    card: ModelCard
    epoch: str
    """Random id of this incarnation of the engine."""


class Unready(Message, frozen=True):
    """The engine is up but admits nothing, because it loads, or speaks another version of the protocol."""

    reason: str


class Admitted(Message, frozen=True):
    request: int


class Refused(Message, frozen=True):
    """The request was not admitted and holds nothing. `code` is the error code of the API envelope."""

    request: int
    outcome: Outcome
    code: str
    message: str
    retry_after: float | None = None
    """Seconds; None when unknown, or when waiting would not help."""


LOGPROB_BYTES = 64
"""What a logprob takes up, with all that is made of it."""


class ItemOutput(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one step produced for one item.

    Large ones come in parts: each has some of the prompt's logprobs, or some rows of the pooled vectors, and only the
    last one has tokens or a finish reason.
    """

    request: int
    index: int
    tokens: list[int]
    logprobs: list[TokenLogprobs] | None = None
    """One per token, when asked for."""
    finish_reason: FinishReason | None = None
    stop_token: int | None = None
    """The `stop_token_ids` member that ended the item; None at an end token of the model."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Comes with the first output when asked for: one per prompt token, None for the first."""
    cached_tokens: int = 0
    """Prompt tokens taken from the prefix cache; set on the first output of an item."""
    pooled: Pooled | None = None
    """The answer to a pooling item, with its finish reason."""
    ticket: str = ""
    """With the finish reason, where the request asks for a handover."""

    @property
    def size(self) -> int:
        """An upper estimate of what its logprobs and vectors take up, in bytes."""
        size = 0 if self.pooled is None else len(self.pooled.data)
        for reported in (*(self.logprobs or ()), *(self.prompt_logprobs or ())):
            size += LOGPROB_BYTES * (1 + reported.count) if reported is not None else 0
        return size


class StepOutput(Message, frozen=True):
    """Outputs of one step for the requests of this connection; many, or large ones, come in several of these."""

    step: int
    outputs: list[ItemOutput]


class Ended(Message, frozen=True):
    """The terminal message of an admitted request: it holds nothing any more."""

    request: int
    outcome: Outcome
    message: str = ""
    queue_seconds: float | None = None
    """From its admission to the first step with a row of it; None when there was none."""


class Heartbeat(Message, frozen=True):
    """Sent by the I/O thread once a second."""

    outstanding_tokens: int = 0
    """Prompt tokens of all open requests."""


class BlockCounts(msgspec.Struct, frozen=True, gc=False):
    total: int = 0
    free: int = 0
    cached: int = 0
    leased: int = 0
    quarantined: int = 0


class SlotCounts(msgspec.Struct, frozen=True, gc=False):
    total: int = 0
    free: int = 0
    leased: int = 0


class PermitCount(msgspec.Struct, frozen=True, gc=False):
    """`limit` is absent for the permits of requests, which are bounded by their items alone."""

    held: int = 0
    limit: int | UnsetType = UNSET


class PermitCounts(msgspec.Struct, frozen=True, gc=False):
    requests: PermitCount = PermitCount()
    items: PermitCount = PermitCount(limit=0)
    tokens: PermitCount = PermitCount(limit=0)


class ItemCounts(msgspec.Struct, frozen=True, gc=False):
    waiting: int = 0
    awaiting_prefill: int = 0
    fetching_kv: int = 0
    running: int = 0
    preempted: int = 0
    stalled: int = 0


class HolderRow(msgspec.Struct, frozen=True, gc=False):
    """An item that has not ended, as `/ledger` shows it; one that waits has no blocks."""

    holder: str
    request: str
    label: str
    state: str
    blocks: int
    age_s: float


class TokenCounts(msgspec.Struct, frozen=True, gc=False):
    """Tokens since the engine started, by what became of them."""

    computed: int = 0
    cached: int = 0
    recomputed: int = 0
    sampled: int = 0
    wasted: int = 0


class HistogramCounts(msgspec.Struct, frozen=True, gc=False):
    """`counts` has one entry per bound and a last one for what lies beyond; not cumulative."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = (0,)
    sum: float = 0.0


class StatsSnapshot(msgspec.Struct, frozen=True, gc=False):
    """Measurements of the engine loop; totals since the engine started, but for `queued_requests`."""

    queued_requests: int = 0
    """Admitted requests that have had no row in a step yet."""
    prompt_tokens: int = 0
    """Of sequences whose first output has come; each prompt once, however many choices it has."""
    queried_tokens: int = 0
    """Tokens that were looked up in the prefix cache; the scheduler counts them, the loop leaves this 0."""
    queue_seconds: HistogramCounts = HistogramCounts()
    prefill_seconds: HistogramCounts = HistogramCounts()
    decode_seconds: HistogramCounts = HistogramCounts()
    inference_seconds: HistogramCounts = HistogramCounts()
    step_seconds: HistogramCounts = HistogramCounts()
    step_rows: HistogramCounts = HistogramCounts()
    step_tokens: HistogramCounts = HistogramCounts()
    sequence_prompt_tokens: int = 0
    """The same with the prompt of every sequence."""
    sequence_cached_tokens: int = 0
    """Of these found in the prefix cache."""
    iteration_tokens: HistogramCounts = HistogramCounts()
    """Of each step with outputs: tokens sampled, and those of prompts whose first output it is."""
    request_preemptions: HistogramCounts = HistogramCounts()
    """Of the sequences of a request that ended as ok."""


class EngineLedger(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's entry in `GET /ledger`; that of one that does not answer is empty."""

    model: str
    index: int
    epoch: str = ""
    answering: bool
    blocks: BlockCounts = BlockCounts()
    slots: SlotCounts = SlotCounts()
    permits: PermitCounts = PermitCounts()
    items: ItemCounts = ItemCounts()
    finish_reasons: dict[str, int]
    holders: list[HolderRow] = []
    conserved: bool = True
    tokens: TokenCounts = TokenCounts()
    steps: int = 0
    preemptions: int = 0
    unmatched_messages: int = 0
    figures: StatsSnapshot = StatsSnapshot()


class HttpLedger(msgspec.Struct, frozen=True):
    """Requests on work routes: `open` is `arrivals` less the sum of `outcomes`."""

    open: int
    arrivals: int
    outcomes: dict[str, int]


class ServerLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `GET /ledger`.

    `conserved`: in every engine that answers, the counts of blocks and slots add up to their totals.
    """

    conserved: bool
    epoch: str
    uptime_s: float
    http: HttpLedger
    engines: list[EngineLedger]


class LedgerReply(Message, frozen=True):
    sequence: int
    ledger: EngineLedger


FromEngine = (
    Ready | Unready | Admitted | Refused | StepOutput | Ended | CancelByName | CancelledByName | Heartbeat | LedgerReply
)
