"""What the scheduler knows of a request and of its items."""

from collections.abc import Sequence

from tenure.core.ledger import Holder, HolderKind, Lease
from tenure.core.lifecycle import FINAL, Event, State, step
from tenure.core.plan import Start
from tenure.core.prefix_cache import BlockHash
from tenure.outcomes import Outcome
from tenure.pooling import PoolingParams
from tenure.sampling import SamplingParams, TokenLogprobs

MOST_EVICTIONS = 3
"""After so many an item is started with all the blocks that it can ever need, and is not evicted any more."""


class Item:
    """One sequence. The scheduler owns and changes it; `state` only ever through `apply`."""

    __slots__ = (
        "cached",
        "choice",
        "first_segment",
        "followers",
        "hashes",
        "index",
        "max_tokens",
        "number",
        "preemptions",
        "prompt_length",
        "prompt_logprobs",
        "reached",
        "reported",
        "request",
        "run",
        "state",
        "tokens",
        "turn",
    )

    def __init__(self, number: int, request: "Request", index: int, choice: int, prompt: Sequence[int]) -> None:
        self.number = number
        self.request = request
        self.index = index
        self.choice = choice
        self.turn = 0  # when its turn comes, in the tokens of a fair share; set by the scheduler
        self.first_segment = 0
        self.tokens = list(prompt)
        self.prompt_length = len(prompt)
        self.max_tokens = request.sampling.max_tokens  # the scheduler lowers it to what fits
        self.state = State.ADMITTED
        self.run: Run | None = None
        self.followers: list[Item] = []  # other choices of the same prompt, which wait for it to be computed
        self.reached = 0  # most tokens ever computed: below it, work is done again after a preemption
        self.hashes: list[BlockHash] = []  # names of the full blocks of its text, as far as they were needed
        self.cached = 0  # prompt tokens that the prefix cache had when it first ran
        self.preemptions = 0
        self.prompt_logprobs: list[TokenLogprobs | None] = []
        self.reported = False

    def __repr__(self) -> str:
        return f"<Item {self.number}: {self.state}, {len(self.tokens)} tokens, {self.run or 'not running'}>"

    @property
    def holder(self) -> Holder:
        return Holder(HolderKind.ITEM, self.number)

    @property
    def age(self) -> tuple[int, int, int, int]:
        """Sort key: the smaller, the sooner it is served and the later it is evicted."""
        return (self.request.priority, self.turn, self.request.arrival, self.index)

    @property
    def sampling(self) -> SamplingParams:
        return self.request.sampling

    @property
    def ended(self) -> bool:
        return self.state in FINAL

    @property
    def secured(self) -> bool:
        """It was evicted so often that it is not to be again."""
        return self.preemptions >= MOST_EVICTIONS

    def apply(self, event: Event) -> None:
        self.state = step(self.state, event)

    def note_prompt_logprobs(self, start: int, new: list[TokenLogprobs | None] | None) -> None:
        """Keep those of `new`, predicted from position `start` on, that are not known from before a preemption.

        A row that starts at 0 reports position 0 as well (as None), a later one begins with position start + 1.
        """
        if new is not None:
            self.prompt_logprobs += new[len(self.prompt_logprobs) - (start + 1 if start else 0) :]


class Run:
    """One stay of an item in a slot, from its start to its end or eviction: the lease, and how far it has come."""

    __slots__ = ("computed", "item", "lease", "pending", "planned", "published", "told_blocks")

    def __init__(self, item: Item, lease: Lease, cached: int) -> None:
        self.item = item
        self.lease = lease
        self.computed = cached  # tokens whose keys and values stand in the blocks
        self.planned = cached  # the same, with the steps in flight
        self.pending = 0  # samples in flight
        self.published = len(lease.blocks)  # full blocks that the prefix cache has been told of
        self.told_blocks = 0  # how much of the block table the executor knows

    def __repr__(self) -> str:
        return f"<Run of item {self.item.number}: {self.computed} tokens computed, {self.planned} planned>"

    def introduction(self) -> Start:
        """What the executor must know before the first row."""
        item, lease = self.item, self.lease
        return Start(
            lease.slot,
            lease.generation,
            list(item.tokens),
            item.prompt_length,
            item.choice,
            item.sampling,
            item.request.pooling,
            item.first_segment,
        )

    @property
    def length(self) -> int:
        """Tokens known, with the samples in flight."""
        return len(self.item.tokens) + self.pending

    @property
    def remaining(self) -> int:
        """Tokens still to be planned. The last token that may be sampled is never computed."""
        last = self.item.prompt_length + max(0, self.item.max_tokens - 1)
        return min(self.length, last) - self.planned

    @property
    def prefilling(self) -> bool:
        """More than the one token of a decode step is left."""
        return self.planned < self.item.prompt_length or self.remaining > 1

    @property
    def current(self) -> bool:
        """The item has not left or been evicted since."""
        return self.item.run is self


class Request:
    """One HTTP call: the owner of its items, and the holder of one outcome."""

    __slots__ = (
        "arrival",
        "arrived_at",
        "begin_by",
        "begun",
        "cache_salt",
        "computed",
        "end_by",
        "items",
        "label",
        "leases",
        "message",
        "number",
        "outcome",
        "pooling",
        "priority",
        "public_id",
        "queue_seconds",
        "sampling",
        "stalled",
    )

    def __init__(
        self,
        number: int,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams,
        *,
        n: int = 1,
        priority: int = 0,
        cache_salt: str = "",
        pooling: PoolingParams | None = None,
        segments: Sequence[int] = (),
        public_id: str = "",
        label: str = "",
        arrived_at: float = 0.0,
        begin_by: float | None = None,
        end_by: float | None = None,
    ) -> None:
        self.number = number
        self.sampling = sampling
        self.priority = priority
        self.cache_salt = cache_salt
        self.pooling = pooling
        self.public_id = public_id
        self.label = label
        self.arrived_at = arrived_at
        self.begin_by = begin_by  # when one of its items must have run, if ever
        self.end_by = end_by  # when it must be over, if ever
        self.begun = False  # some item has run
        self.stalled = False  # its caller does not read: nothing of it is to run
        self.queue_seconds: float | None = None  # until its first row, if it had one; noted by the loop at its end
        self.arrival = 0  # set by the scheduler
        self.outcome: Outcome | None = None
        self.message = ""
        self.computed = 0
        self.leases: set[int] = set()  # numbers of the leases that are not free yet
        self.items: list[Item] = []
        for prompt in prompts:
            group = [Item(0, self, len(self.items) + choice, choice, prompt) for choice in range(n)]
            group[0].followers = group[1:]
            self.items += group
        for item, first_segment in zip(self.items, segments, strict=False):  # pairs are pooled: one item a prompt
            item.first_segment = first_segment

    def __repr__(self) -> str:
        return f"<Request {self.number}: {self.items}, {len(self.leases)} leases>"

    @property
    def over(self) -> bool:
        """All items have ended and nothing is held any more."""
        return not self.leases and all(item.ended for item in self.items)
