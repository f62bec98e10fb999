"""The capacity of one engine, for the scheduler."""

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The capacity of one engine. An encoder has no KV cache, so no blocks."""

    max_model_len: int
    num_slots: int
    num_blocks: int = 0
    block_size: int = 0
    set_aside: int = 0
    """Blocks that no item may count on, since transfers between engines may hold them."""

    @property
    def paged(self) -> bool:
        """Whether there is a KV cache, so that prompts can be computed in chunks."""
        return self.block_size > 0

    @property
    def capacity(self) -> int:
        """Most tokens of one item, prompt and output together."""
        return (
            min(self.max_model_len, (self.num_blocks - self.set_aside) * self.block_size)
            if self.paged
            else self.max_model_len
        )

    def blocks_for(self, tokens: int) -> int:
        """The number of blocks for so many tokens."""
        return -(-tokens // self.block_size) if self.paged else 0
