"""A model whose next token depends on every token before it, as read back from the paged cache.

It writes each token id where the batch says its key and value go. The hidden state of a position is a key computed
from all tokens up to it, found through the block table; the logits are the row of a fixed table that the key names.
So a wrong block, slot, position or context length shows as a wrong token, and nothing depends on the batch around.
"""

import torch
from torch import Tensor

from tenure.core.plan import Row, Start, StepPlan
from tenure.kv.cache import CacheShape, KVCache
from tenure.layers.batch import PackedBatch
from tenure.model_runner.decoder_runner import DecoderRunner, Head
from tenure.model_runner.sampler import Sampler
from tenure.model_runner.sampling_head import SamplingHead
from tenure.pooling import PoolingParams
from tenure.sampling import SamplingParams

VOCABULARY = 67
BLOCK_SIZE = 4
NUM_BLOCKS = 64
TABLE = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(11)) * 2


def key_of(tokens: list[int]) -> int:
    return sum((position + 1) * token for position, token in enumerate(tokens)) % VOCABULARY


def next_token(tokens: list[int]) -> int:
    """The greedy continuation."""
    return int(TABLE[key_of(tokens)].argmax())


def continued(tokens: list[int], count: int) -> list[int]:
    """The `count` greedy tokens that follow."""
    tokens = list(tokens)
    first = len(tokens)
    while len(tokens) < first + count:
        tokens.append(next_token(tokens))
    return tokens[first:]


class HistoryModel:
    """Counts what it is asked for; logits of the keys in `broken` are NaN.

    `fails` is raised by the next pass before it begins, `head_fails` by the next logits.

    Tokens in `overflowing` are infinite in the cache once a pass has read them.
    """

    def __init__(self) -> None:
        self.logits_rows: list[int] = []
        self.forward_rows: list[int] = []
        self.broken: set[int] = set()
        self.overflowing: set[int] = set()
        self.fails: BaseException | None = None
        self.head_fails: BaseException | None = None

    def forward(self, batch: PackedBatch, cache: KVCache) -> Tensor:
        if self.fails:
            failure, self.fails = self.fails, None
            raise failure
        stored = cache.layers[0].view(cache.num_blocks, -1)  # a token per place, whatever the layout within a block
        stored[batch.slot_mapping_T // BLOCK_SIZE, batch.slot_mapping_T % BLOCK_SIZE] = batch.token_ids_T.float()
        self.forward_rows.append(len(batch.token_ids_T))
        keys = []
        for sequence, context in enumerate(batch.context_lengths_S.tolist()):
            first, last = batch.query_starts_S[sequence : sequence + 2].tolist()
            blocks = batch.block_tables_SB[sequence].tolist()
            tokens = [int(stored[blocks[at // BLOCK_SIZE], at % BLOCK_SIZE]) for at in range(context)]
            assert batch.positions_T[first:last].tolist() == list(range(context - (last - first), context))
            keys += [key_of(tokens[: at + 1]) for at in batch.positions_T[first:last].tolist()]
        lost = torch.isin(batch.token_ids_T, torch.tensor(sorted(self.overflowing), dtype=torch.int64))
        stored[batch.slot_mapping_T[lost] // BLOCK_SIZE, batch.slot_mapping_T[lost] % BLOCK_SIZE] = torch.inf
        return torch.tensor(keys)[:, None]

    def states(self, hidden_RD: Tensor) -> Tensor:
        """What an embedder gives: the same rows as the logits."""
        return self.logits(hidden_RD)

    def logits(self, hidden_RD: Tensor) -> Tensor:
        if self.head_fails:
            failure, self.head_fails = self.head_fails, None
            raise failure
        self.logits_rows.append(len(hidden_RD))
        logits_RV = TABLE[hidden_RD[:, 0]].clone()
        logits_RV[[key in self.broken for key in hidden_RD[:, 0].tolist()]] = torch.nan
        return logits_RV


class Bench:
    """An runner on a `HistoryModel`, and short hands for plans."""

    def __init__(
        self, max_slots: int = 4, max_model_len: int = 400, model: HistoryModel | None = None, head: Head | None = None
    ) -> None:
        self.model = model or HistoryModel()
        self.cache = KVCache(CacheShape((None,), 1, 1, torch.float32), NUM_BLOCKS * 2, BLOCK_SIZE)
        head = head or SamplingHead(self.model, Sampler())
        self.runner = DecoderRunner(self.model, self.cache, head, max_slots, max_model_len)
        self.number = 0

    def launch(self, starts: list[Start], rows: list[Row]) -> None:
        self.number += 1
        self.runner.launch(StepPlan(self.number, starts, rows))

    def land(self):
        return self.runner.land()

    def step(self, starts: list[Start], rows: list[Row]):
        self.launch(starts, rows)
        return self.land().rows


def params(**fields: object) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 50, "temperature": 0.0, **fields})  # type: ignore[arg-type]


def start(
    slot: int,
    tokens: list[int],
    *,
    generation: int = 1,
    prompt_length: int | None = None,
    choice: int = 0,
    sampling: SamplingParams | None = None,
    pooling: PoolingParams | None = None,
) -> Start:
    length = len(tokens) if prompt_length is None else prompt_length
    return Start(slot, generation, tokens, length, choice, sampling or params(), pooling)


def row(
    slot: int, first: int, count: int, blocks: list[int] | None = None, *, generation: int = 1, samples: bool = True
) -> Row:
    return Row(slot, generation, first, count, blocks or [], samples)
