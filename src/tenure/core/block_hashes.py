"""The hashes of an item's blocks in the prefix cache, and which items use the cache."""

from tenure.core.ledger import Ledger
from tenure.core.prefix_cache import BlockHash, chain_hashes
from tenure.core.request import Item
from tenure.core.runs import Run


class BlockHashes:
    """`seed` keys the hashes; `block_size` is 0 for a model without a KV cache."""

    def __init__(self, seed: bytes, block_size: int, *, enabled: bool) -> None:
        self._seed = seed
        self._block_size = block_size
        self._enabled = enabled and block_size > 0

    def shared(self, item: Item) -> bool:
        """Whether the item uses and feeds the cache.

        An item that reports prompt logprobs cannot: they come from computing every prompt token.
        """
        pooling = item.request.spec.pooling
        every_token = item.sampling.prompt_logprobs is not None or (pooling is not None and pooling.task.every_token)
        return self._enabled and not every_token

    def of(self, item: Item, count: int) -> list[BlockHash]:
        """The names of the first `count` full blocks of the item's text."""
        if count > len(item.hashes):
            salt, known = item.request.spec.cache_salt, item.hashes
            tokens = item.tokens_from(len(known) * self._block_size)
            item.hashes = chain_hashes(self._seed, salt, tokens, self._block_size, known)
        return item.hashes[:count]

    def of_prompt(self, item: Item) -> list[BlockHash]:
        """The names that the other choices of its prompt have too, as far as they are known."""
        return item.hashes[: item.prompt_length // self._block_size] if self._enabled else []

    def usable(self, item: Item) -> list[BlockHash]:
        """The names of the blocks that may be taken from the cache: at least one token is always left to compute."""
        return self.of(item, (item.length - 1) // self._block_size) if self.shared(item) else []

    def publish(self, run: Run, ledger: Ledger) -> None:
        """Add the blocks of a run that are complete now to the prefix cache."""
        if not self.shared(run.item):
            return
        complete = run.computed // self._block_size
        for index, name in enumerate(self.of(run.item, complete)[run.published :], run.published):
            ledger.publish(run.lease, index, name)
        run.published = complete
