"""How much fits into one engine: what the scheduler is told at its birth."""

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What fits into one engine. A model that reads each text in one piece keeps no cache: it has no blocks."""

    max_model_len: int
    num_slots: int
    num_blocks: int = 0
    block_size: int = 0

    @property
    def paged(self) -> bool:
        """Items keep their computed tokens in blocks, and so can be computed piece by piece."""
        return self.block_size > 0

    @property
    def capacity(self) -> int:
        """The most tokens that one item can have."""
        return min(self.max_model_len, self.num_blocks * self.block_size) if self.paged else self.max_model_len

    def blocks_for(self, tokens: int) -> int:
        """How many blocks so many tokens take."""
        return -(-tokens // self.block_size) if self.paged else 0
