"""Attention behind a seam: a back end prepares what a step's layers share, then attends once per layer.

Legend: T rows, S sequences, N query heads, C key-value heads, M = N + 2 C (queries, then keys, then values), H head
size, P = H / 2 pairs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import torch

from tenure.kernels import native, paged_attention
from tenure.kernels.attention_plan import AttentionPlan, Heads, plan_attention
from tenure.kernels.native import NativeKernels
from tenure.kernels.paged_attention import AttentionShape, LayerGroup
from tenure.layers.backends import choose
from tenure.layers.batch import IntArray, PackedBatch
from tenure.layers.rope import rotate_

__all__ = [
    "ATTENTION_BACKENDS",
    "NATIVE_PAIRS",
    "NATIVE_ROWS",
    "AttentionBackend",
    "AttentionShape",
    "NativeAttention",
    "StepAttention",
    "TorchAttention",
    "attention_backend",
]

NATIVE_ROWS = 16
"""So many rows of one sequence, or fewer, go to the compiled kernels in any case; torch's own are faster with more."""
NATIVE_PAIRS = 8192
"""And so do rows that see few keys, all together: torch has to gather a sequence's keys first."""


class StepAttention(Protocol):
    """Causal attention of one packed batch over a paged cache."""

    def attend(self, window: int | None, heads_TMH: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        """Rotate queries and keys in place, write keys and values to a layer's cache, attend; shape (T, N * H).

        `window` is that of the layer's group, one of those that the step was prepared for.
        """
        ...


class AttentionBackend(Protocol):
    """One way to compute attention for a model."""

    def begin(self, batch: PackedBatch, rotations_T1P: torch.Tensor, groups: Mapping[int | None, int]) -> StepAttention:
        """Prepare a step of a model with so many layers of each window (None sees everything)."""
        ...


@dataclass(frozen=True, slots=True)
class TorchAttention:
    """Torch's own operations: single-row sequences together, the others one after the other."""

    shape: AttentionShape

    def begin(self, batch: PackedBatch, rotations_T1P: torch.Tensor, groups: Mapping[int | None, int]) -> StepAttention:
        plans = {window: self._plan(batch, LayerGroup(window, layers)) for window, layers in groups.items()}
        return _TorchStep(self.shape, rotations_T1P, plans)

    def _plan(self, batch: PackedBatch, group: LayerGroup) -> "_TorchPlan":
        counts_S = np.diff(batch.query_starts_S)
        decodes_S = np.flatnonzero(counts_S == 1)
        heads, heads_per_block = 2 * self.shape.num_kv_heads, group.heads_per_block(self.shape)
        return _TorchPlan(
            paged_attention.cache_rows(batch.slot_mapping_T, batch.block_size, heads, heads_per_block),
            [_plan_prefill(batch, s, group, self.shape) for s in np.flatnonzero(counts_S > 1).tolist()],
            self._plan_decodes(batch, decodes_S, group) if len(decodes_S) else [],
        )

    def _plan_decodes(
        self, batch: PackedBatch, sequences_S: IntArray, group: LayerGroup
    ) -> list[paged_attention.Decode]:
        contexts_S, window = batch.context_lengths_S[sequences_S], group.window
        visible_S = contexts_S if window is None else np.minimum(contexts_S, window + batch.block_size)
        groups = paged_attention.group_decodes(visible_S, self.shape.bytes_per_token)
        whole = len(groups) == 1 and len(sequences_S) == len(batch.context_lengths_S)
        return [
            paged_attention.plan_decode(
                None if whole else batch.query_starts_S[sequences_S[together]],
                contexts_S[together],
                batch.block_tables_SB[sequences_S[together]],
                batch.block_size,
                group,
                self.shape,
            )
            for together in groups
        ]


def _plan_prefill(
    batch: PackedBatch, sequence: int, group: LayerGroup, shape: AttentionShape
) -> paged_attention.Prefill:
    return paged_attention.plan_prefill(
        (int(batch.query_starts_S[sequence]), int(batch.query_starts_S[sequence + 1])),
        int(batch.context_lengths_S[sequence]),
        batch.block_tables_SB[sequence],
        batch.block_size,
        group,
        shape,
    )


class _TorchPlan(NamedTuple):
    """Of one group of layers."""

    cache_rows: torch.Tensor
    """Where the rows' keys and values go."""
    prefills: list[paged_attention.Prefill]
    decodes: list[paged_attention.Decode]


@dataclass(frozen=True, slots=True)
class _TorchStep:
    shape: AttentionShape
    rotations_T1P: torch.Tensor
    plans: Mapping[int | None, _TorchPlan]

    def attend(self, window: int | None, heads_TMH: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        shape = self.shape
        rotate_(heads_TMH[:, : shape.num_heads + shape.num_kv_heads], self.rotations_T1P)
        q_TNH, kv_T2CH = _split_heads(heads_TMH, shape)
        rows, prefills, decodes = self.plans[window]
        paged_attention.write(kv_T2CH, cache, rows)
        if decodes and decodes[0].rows_S is None:
            return paged_attention.run_decode(decodes[0], q_TNH, cache, shape.scale).flatten(1)
        out_TNH = torch.empty(q_TNH.shape, dtype=q_TNH.dtype, device=q_TNH.device)
        for prefill in prefills:
            paged_attention.run_prefill(prefill, q_TNH, kv_T2CH, cache, out_TNH, shape.scale)
        for decode in decodes:
            assert decode.rows_S is not None
            out_TNH.index_copy_(0, decode.rows_S, paged_attention.run_decode(decode, q_TNH, cache, shape.scale))
        return out_TNH.flatten(1)


def _split_heads(heads_TMH: torch.Tensor, shape: AttentionShape) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of queries (T, N, H), and of keys and values (T, 2, C, H)."""
    kv_T2CH = heads_TMH[:, shape.num_heads :].view(len(heads_TMH), 2, shape.num_kv_heads, shape.head_dim)
    return heads_TMH[:, : shape.num_heads], kv_T2CH


@dataclass(frozen=True, slots=True)
class NativeAttention:
    """The compiled kernels straight from the cache; torch's own operation for long pieces of a prompt."""

    shape: AttentionShape
    kernels: NativeKernels = field(default_factory=NativeKernels.load)

    def begin(self, batch: PackedBatch, rotations_T1P: torch.Tensor, groups: Mapping[int | None, int]) -> StepAttention:
        plans = {window: self._plan(batch, LayerGroup(window, layers)) for window, layers in groups.items()}
        return _NativeStep(self.shape, self.kernels, rotations_T1P, batch.slot_mapping_T, plans)

    def _plan(self, batch: PackedBatch, group: LayerGroup) -> "_NativePlan":
        heads = Heads.of(self.shape, batch.block_size, group)
        counts_S = np.diff(batch.query_starts_S)
        pairs_S = counts_S * (2 * batch.context_lengths_S - counts_S) // 2
        long_S = (counts_S > NATIVE_ROWS) & (pairs_S > NATIVE_PAIRS)
        short = np.flatnonzero(~long_S)
        plan = plan_attention(
            heads, batch.query_starts_S, batch.context_lengths_S, batch.block_tables_SB, short, group.window
        )
        prefills = [_plan_prefill(batch, s, group, self.shape) for s in np.flatnonzero(long_S).tolist()]
        return _NativePlan(heads, plan if len(short) else None, prefills)


class _NativePlan(NamedTuple):
    """Of one group of layers."""

    heads: Heads
    short: AttentionPlan | None
    """Of the rows that the compiled kernels attend for."""
    prefills: list[paged_attention.Prefill]


@dataclass(frozen=True, slots=True)
class _NativeStep:
    shape: AttentionShape
    kernels: NativeKernels
    rotations_T1P: torch.Tensor
    slot_mapping_T: torch.Tensor
    plans: Mapping[int | None, _NativePlan]

    def attend(self, window: int | None, heads_TMH: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        shape, (heads, short, prefills) = self.shape, self.plans[window]
        self.kernels.rotate_and_store(heads, heads_TMH, self.rotations_T1P, self.slot_mapping_T, cache)
        out_TNH = torch.empty((len(heads_TMH), shape.num_heads, shape.head_dim))
        if short is not None:
            self.kernels.attend(short, heads_TMH, cache, out_TNH)
        if prefills:
            q_TNH, kv_T2CH = _split_heads(heads_TMH, shape)
            for prefill in prefills:
                paged_attention.run_prefill(prefill, q_TNH, kv_T2CH, cache, out_TNH, shape.scale)
        return out_TNH.flatten(1)


ATTENTION_BACKENDS: Mapping[str, Callable[[AttentionShape], AttentionBackend]] = MappingProxyType(
    {"torch": TorchAttention, "native": NativeAttention}
)


def attention_backend(shape: AttentionShape, backend: str | None = None) -> AttentionBackend:
    """The back end named, else the best for this device."""
    return choose("attention", ATTENTION_BACKENDS, backend, native.can_attend(shape))(shape)
