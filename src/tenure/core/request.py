"""The scheduler's state of a request and of its items."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

from tenure.core.ledger import Holder, HolderKind
from tenure.core.lifecycle import FINAL, Event, State, step
from tenure.core.prefix_cache import BlockHash
from tenure.outcomes import Outcome
from tenure.pooling import PoolingParams
from tenure.sampling import SamplingParams, TokenLogprobs

MOST_EVICTIONS = 3
"""After so many an item is started with all the blocks that it can ever need, and is not evicted any more."""


@dataclass(slots=True, eq=False, repr=False)
class Item:
    """One sequence. The scheduler owns and changes it; `state` only ever through `apply`."""

    request: "Request"
    index: int
    prompt: Sequence[int]  # not empty; the choices of a prompt share it, so nobody changes it
    max_tokens: int  # what the request asks for; the scheduler lowers it to what fits
    number: int = 0  # set when its request is added, as `virtual_start` is
    virtual_start: int = 0  # when its turn comes, in the tokens of a fair share
    state: State = State.ADMITTED
    output: list[int] = field(default_factory=list)  # what was sampled so far
    followers: "list[Item]" = field(default_factory=list)
    """Other choices of the same prompt, which wait for it to be computed."""
    reached: int = 0  # most tokens ever computed: below it, work is done again after a preemption
    hashes: list[BlockHash] = field(default_factory=list)
    """Names of the full blocks of its text, as far as they were needed."""
    cached: int = 0  # prompt tokens that the prefix cache had when it first ran
    preemptions: int = 0  # while it ran
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Item {self.number}: {self.state}, {self.length} tokens>"

    @property
    def choice(self) -> int:
        """Which of the choices of its prompt it is."""
        return self.index % self.request.spec.n

    @property
    def claim(self) -> int:
        """The claim under which the blocks of its prompt are fetched; 0 for none."""
        claims = self.request.spec.claims
        return claims[self.index // self.request.spec.n] if claims else 0

    @property
    def prompt_length(self) -> int:
        return len(self.prompt)

    @property
    def length(self) -> int:
        """How many tokens are known: those of the prompt, and what was sampled so far."""
        return len(self.prompt) + len(self.output)

    def tokens_from(self, start: int) -> list[int]:
        """The known tokens from position `start` on."""
        return [*self.prompt[start:], *self.output[max(0, start - len(self.prompt)) :]]

    @property
    def holder(self) -> Holder:
        return Holder(HolderKind.ITEM, self.number)

    @property
    def age(self) -> tuple[int, int, int, int]:
        """Sort key: the smaller, the sooner it is served and the later it is evicted."""
        return (self.request.spec.priority, self.virtual_start, self.request.arrival, self.index)

    @property
    def sampling(self) -> SamplingParams:
        return self.request.spec.sampling

    @property
    def ended(self) -> bool:
        return self.state in FINAL

    @property
    def eviction_exempt(self) -> bool:
        """It was preempted `MOST_EVICTIONS` times, so it may not be again."""
        return self.preemptions >= MOST_EVICTIONS

    def apply(self, event: Event) -> None:
        self.state = step(self.state, event)
        if self.ended:
            del self.request.unfinished[self]

    def note_prompt_logprobs(self, start: int, new: list[TokenLogprobs | None] | None) -> None:
        """Keep those of `new`, predicted from position `start` on, that are not known from before a preemption.

        A row that starts at 0 reports position 0 as well (as None), a later one begins with position start + 1.
        """
        if new is not None:
            self.prompt_logprobs += new[len(self.prompt_logprobs) - (start + 1 if start else 0) :]


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """What a request asks for: `n` sequences for each of `prompts`. Times are in seconds, None: no limit."""

    prompts: Sequence[Sequence[int]]
    sampling: SamplingParams
    _: KW_ONLY
    n: int = 1
    text_bounds: Sequence[tuple[int, int]] = ()
    """Of each prompt: first tokens that are the first text of a pair, and last ones that no token attends to."""
    handover: bool = False
    """Another engine goes on: the blocks of an item that finishes pass to a ticket with its number."""
    claims: Sequence[int] = ()
    """For each prompt the claim under which its blocks are fetched, 0 for none; empty: nothing is fetched."""
    plan_ahead: bool = True
    """Each row that samples brings one token, so the next row is planned before its result; else after it."""
    pooling: PoolingParams | None = None
    priority: int = 0
    cache_salt: str = ""
    public_id: str = ""
    label: str = ""
    arrived_at: float = 0.0
    due: tuple[float | None, float | None] = (None, None)
    """When one of its items must have run, and when it must be over."""


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """One HTTP call: the owner of its items, and the holder of one outcome."""

    number: int
    spec: RequestSpec
    arrival: int = 0  # its place in the order of arrivals; set when it is added
    begun: bool = False  # some item has run
    stalled: bool = False  # its caller does not read: nothing of it is to run
    outcome: Outcome | None = None
    message: str = ""
    computed: int = 0
    leases: set[int] = field(default_factory=set)  # numbers of the leases that its items, or steps, hold
    items: list[Item] = field(default_factory=list)
    unfinished: dict[Item, None] = field(init=False)  # those that have not ended, in order

    def __post_init__(self) -> None:
        for prompt in self.spec.prompts:
            first, *others = (
                Item(self, len(self.items) + choice, prompt, self.spec.sampling.max_tokens)
                for choice in range(self.spec.n)
            )
            first.followers = others
            self.items += [first, *others]
        self.unfinished = dict.fromkeys(self.items)

    def __repr__(self) -> str:
        return f"<Request {self.number}: {self.items}, {len(self.leases)} leases>"

    @property
    def over(self) -> bool:
        """All items have ended and nothing is held any more."""
        return not self.leases and not self.unfinished
