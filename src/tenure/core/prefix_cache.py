"""The prefix cache: which block holds which prefix of a text.

A block is named by a hash over all tokens up to its end, so equal names mean equal beginnings. The cache is one more
holder of a block. It may let go of a block only while it is the sole holder: those blocks are `idle`, least recently
used first. The ledger owns this object and tells it when a block becomes idle or is taken up again.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

BlockHash = bytes


def chain_hashes(
    seed: bytes, salt: str, tokens: Sequence[int], block_size: int, known: Sequence[BlockHash] = ()
) -> list[BlockHash]:
    """Names of the full blocks of a text, each covering everything before it: the `known` ones, and those of the
    `tokens` that follow them.

    `seed` keeps names of different servers apart; `salt` keeps callers apart who must not see each other's timing.
    """
    hashes = list(known)
    parent = hashes[-1] if hashes else blake2b(salt.encode(), key=seed[:64], digest_size=16).digest()
    for end in range(block_size, len(tokens) + 1, block_size):
        block = array("I", tokens[end - block_size : end])
        parent = blake2b(block.tobytes(), key=parent, digest_size=16).digest()
        hashes.append(parent)
    return hashes


class PrefixCache:
    """Names of blocks, both ways, and the order in which idle ones may be forgotten."""

    def __init__(self) -> None:
        self._block_of: dict[BlockHash, int] = {}
        self._hash_of: dict[int, BlockHash] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._hash_of

    def __len__(self) -> int:
        return len(self._hash_of)

    @property
    def idle(self) -> int:
        """The number of blocks that only the cache holds."""
        return len(self._idle)

    @property
    def blocks(self) -> frozenset[int]:
        return frozenset(self._hash_of)

    def match(self, hashes: Sequence[BlockHash]) -> list[int]:
        """The blocks of the longest cached prefix."""
        found: list[int] = []
        for name in hashes:
            block = self._block_of.get(name)
            if block is None:
                break
            found.append(block)
        return found

    def publish(self, name: BlockHash, block: int) -> bool:
        """Hold `block` under `name`; False when another block has that name already, or the block another name."""
        if name in self._block_of or block in self._hash_of:
            return False
        self._block_of[name] = block
        self._hash_of[block] = name
        return True

    def mark_idle(self, block: int) -> None:
        """The cache has become the sole holder of the block."""
        self._idle[block] = None

    def mark_used(self, block: int) -> None:
        """The block has another holder again."""
        self._idle.pop(block, None)

    def evict(self) -> int:
        """Forget the idle block that was used least recently; raises KeyError when none is idle."""
        block, _ = self._idle.popitem(last=False)
        del self._block_of[self._hash_of.pop(block)]
        return block

    def is_idle(self, block: int) -> bool:
        return block in self._idle
