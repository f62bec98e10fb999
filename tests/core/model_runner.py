"""A scripted runner with simulated KV memory.

Each position of a block holds the fingerprint of the text that its keys and values were computed from. A row checks,
for every position it attends to, that the fingerprint is the one of its own text, and draws its token from what it
read there: whoever is given a wrong block produces wrong text and is told so at once.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from tenure.core.limits import Limits
from tenure.core.plan import Row, RowResult, Start, StepPlan, StepResult
from tenure.pooling import Pooled
from tenure.sampling import SamplingParams, TokenLogprobs

VOCABULARY = 24
EMPTY = 1
BURSTS = 1000
"""From this seed on, rows that sample bring 0 to 3 tokens."""
_GARBAGE = -1

Key = tuple[int, int]
"""(slot, generation)"""


def follow(text: int, token: int) -> int:
    """The fingerprint of a text that goes on with `token`."""
    return hash((text, token))


def draw(seed: int, choice: int, position: int, text: int) -> int:
    """The token at `position`, sampled after `text`."""
    return hash((seed, choice, position, text)) % VOCABULARY


def pooled(text: int) -> Pooled:
    """What is made of a text with this fingerprint."""
    return Pooled(1, str(text).encode())


def logprobs_at(position: int, token: int) -> TokenLogprobs:
    return TokenLogprobs.of(-float(position), 1, [token], [-float(position)])


def prompt_logprobs(prompt: Sequence[int]) -> list[TokenLogprobs | None]:
    return [logprobs_at(position, token) if position else None for position, token in enumerate(prompt)]


class Occupant:
    """What the runner remembers of a slot."""

    def __init__(self, start: Start) -> None:
        self.key: Key = (start.slot, start.generation)
        self.tokens = list(start.tokens)
        self.prompt_length = start.prompt_length
        self.choice = start.choice
        self.sampling: SamplingParams = start.sampling
        self.pooling = start.pooling
        self.blocks: list[int] = []
        self.planned: int | None = None
        self.pending = 0
        self.failed = False
        self.bursts = start.sampling.seed >= BURSTS
        self.drawn = 0  # how often something was drawn, or nothing


class ScriptedRunner:
    """Runs plans in order; `broken` names the (step, row) pairs that fail."""

    def __init__(self, limits: Limits, broken: Iterable[tuple[int, int]] = ()) -> None:
        self._limits = limits
        self._broken = frozenset(broken)
        self._slots: dict[int, Occupant] = {}
        self._memory = [[0] * limits.block_size for _ in range(limits.num_blocks)]
        self._flights: deque[StepPlan] = deque()

    @property
    def in_flight(self) -> list[StepPlan]:
        return list(self._flights)

    def write(self, block: int, texts: Sequence[int]) -> None:
        """Write the fingerprints of positions into a block, as a transfer does."""
        assert block not in self._writers(), "a transfer and a step write to the same block"
        self._memory[block][:] = texts

    def read(self, block: int) -> list[int]:
        return list(self._memory[block])

    def launch(self, plan: StepPlan) -> None:
        """Check that `plan` makes sense on top of all earlier ones, and let it wait for `land`."""
        for start in plan.starts:
            assert start.slot not in self._busy_slots(), "a slot changed hands during a step"
            self._slots[start.slot] = Occupant(start)
        assert len({row.slot for row in plan.rows}) == len(plan.rows), "an item has two rows"
        assert {start.slot for start in plan.starts} <= {row.slot for row in plan.rows}
        writers = self._writers()
        for row in plan.rows:
            self._board(row, writers)
        self._flights.append(plan)

    def land(self) -> StepResult:
        plan = self._flights.popleft()
        return StepResult(
            plan.number, [self._run(row, (plan.number, index) in self._broken) for index, row in enumerate(plan.rows)]
        )

    def _busy_slots(self) -> set[int]:
        return {row.slot for plan in self._flights for row in plan.rows}

    def _writers(self) -> dict[int, Key]:
        """Blocks that a step in flight writes to, and for whom."""
        size = self._limits.block_size
        if not self._limits.paged:
            return {}
        return {
            self._slots[row.slot].blocks[position // size]: (row.slot, row.generation)
            for plan in self._flights
            for row in plan.rows
            for position in range(row.start, row.start + row.count)
        }

    def _board(self, row: Row, writers: dict[int, Key]) -> None:
        occupant, size = self._slots[row.slot], self._limits.block_size
        assert occupant.key == (row.slot, row.generation), "a row for an occupant that is gone"
        first = occupant.planned is None
        if self._limits.paged:
            assert row.start % size == 0 if first else row.start == occupant.planned, "positions are not contiguous"
        else:
            assert first, "a text was read twice"
            assert (row.start, row.count) == (0, len(occupant.tokens)), "a text was not read in one piece"
        assert row.count > 0
        assert not (occupant.bursts and occupant.pending), "planned on top of what nobody can know"
        occupant.blocks += row.new_blocks
        occupant.planned = row.start + row.count
        assert len(set(occupant.blocks)) == len(occupant.blocks), "a block appears twice in a block table"
        assert len(occupant.blocks) * size >= occupant.planned or not size, "the block table is too short"
        assert occupant.planned <= min(len(occupant.tokens) + occupant.pending, self._limits.capacity)
        last = occupant.prompt_length + max(0, occupant.sampling.max_tokens - 1)
        most = self._limits.capacity - (occupant.pooling is None)
        assert occupant.planned <= min(last, most), "a token is computed that nobody needs"
        for block in row.new_blocks:
            assert writers.get(block, occupant.key) == occupant.key, "a block was handed out while it is written"
        occupant.pending += row.samples

    def _run(self, row: Row, broken: bool) -> RowResult:
        occupant = self._slots[row.slot]
        if broken:
            occupant.failed = True
        text = _GARBAGE if occupant.failed else self._compute(occupant, row)
        if occupant.failed:
            self._spoil(occupant, row)
        tokens = self._draw(occupant, text) if row.samples else []
        occupant.pending -= row.samples
        occupant.planned = row.start + row.count - 1 if row.samples and not tokens else occupant.planned
        first = len(occupant.tokens) - len(tokens)
        return RowResult(
            row.slot,
            row.generation,
            tokens,
            [logprobs_at(position, token) for position, token in enumerate(tokens, first)] or None,
            self._prompt_logprobs(occupant, row),
            "broken" if broken else None,
            pooled(text) if occupant.pooling and row.start + row.count == occupant.prompt_length else None,
        )

    def _draw(self, occupant: Occupant, text: int) -> list[int]:
        occupant.drawn += 1
        first = len(occupant.tokens)
        for _ in range(hash((occupant.key, occupant.drawn)) % 4 if occupant.bursts else 1):
            token = draw(occupant.sampling.seed, occupant.choice, len(occupant.tokens), text)
            occupant.tokens.append(token)
            text = follow(text, token)
        return occupant.tokens[first:]

    def _compute(self, occupant: Occupant, row: Row) -> int:
        """Write the row's positions; returns the fingerprint that a sample after them is drawn from."""
        text = EMPTY
        for position, token in enumerate(occupant.tokens[: row.start + row.count]):
            text = follow(text, token)
            if not self._limits.paged:
                continue
            block, offset = self._place(occupant, position)
            if position >= row.start:
                self._memory[block][offset] = text
            assert self._memory[block][offset] == text, f"position {position} holds another text"
        if not self._limits.paged:
            return text
        block, offset = self._place(occupant, row.start + row.count - 1)
        return self._memory[block][offset]

    def _spoil(self, occupant: Occupant, row: Row) -> None:
        for position in range(row.start, row.start + row.count if self._limits.paged else 0):
            block, offset = self._place(occupant, position)
            self._memory[block][offset] = _GARBAGE

    def _place(self, occupant: Occupant, position: int) -> tuple[int, int]:
        return occupant.blocks[position // self._limits.block_size], position % self._limits.block_size

    def _prompt_logprobs(self, occupant: Occupant, row: Row) -> list[TokenLogprobs | None] | None:
        if occupant.sampling.prompt_logprobs is None or row.start >= occupant.prompt_length:
            return None
        everything = prompt_logprobs(occupant.tokens[: occupant.prompt_length])
        return everything[row.start + 1 if row.start else 0 : row.start + row.count + 1]
