"""Attention behind a seam: a back end prepares what a step's layers share, then attends once per layer.

Legend: T rows, S sequences, N query heads, C key-value heads, H head size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np
import torch

from tenure.errors import CallerError
from tenure.kernels import paged_attention
from tenure.kernels.paged_attention import AttentionShape
from tenure.layers.batch import IntArray, PackedBatch


class StepAttention(Protocol):
    """Causal attention of one packed batch over a paged cache."""

    def attend(
        self, window: int | None, q_TNH: torch.Tensor, kv_T2CH: torch.Tensor, cache: torch.Tensor
    ) -> torch.Tensor:
        """Write the rows' keys and values to a layer's cache, then attend; the result has shape (T, N * H).

        `window` is one of those that the step was prepared for: how many tokens a row sees, itself included.
        """
        ...


class AttentionBackend(Protocol):
    """One way to compute attention for a model."""

    def begin(self, batch: PackedBatch, windows: Sequence[int | None]) -> StepAttention:
        """Prepare a step whose layers have these windows (None sees everything)."""
        ...


@dataclass(frozen=True, slots=True)
class _Plan:
    prefills: Sequence[paged_attention.Prefill]
    decodes: Sequence[paged_attention.Decode]


class TorchAttention:
    """Torch's own operations: single-row sequences together, the others one after the other."""

    def __init__(self, shape: AttentionShape) -> None:
        self._shape = shape

    def begin(self, batch: PackedBatch, windows: Sequence[int | None]) -> StepAttention:
        plans = {window: self._plan(batch, window) for window in windows}
        rows = paged_attention.cache_rows(batch.slot_mapping_T, batch.block_size, self._shape.num_kv_heads)
        return _TorchStep(self._shape.scale, rows, plans)

    def _plan(self, batch: PackedBatch, window: int | None) -> _Plan:
        counts_S = np.diff(batch.query_starts_S)
        prefills = [
            paged_attention.plan_prefill(
                (int(batch.query_starts_S[s]), int(batch.query_starts_S[s + 1])),
                int(batch.context_lengths_S[s]),
                batch.block_tables_SB[s],
                batch.block_size,
                window,
                self._shape,
            )
            for s in np.flatnonzero(counts_S > 1)
        ]
        decodes_S = np.flatnonzero(counts_S == 1)
        return _Plan(prefills, self._plan_decodes(batch, decodes_S, window) if len(decodes_S) else [])

    def _plan_decodes(
        self, batch: PackedBatch, sequences_S: IntArray, window: int | None
    ) -> list[paged_attention.Decode]:
        contexts_S = batch.context_lengths_S[sequences_S]
        visible_S = contexts_S if window is None else np.minimum(contexts_S, window + batch.block_size)
        groups = paged_attention.group_decodes(visible_S, self._shape.bytes_per_token)
        whole = len(groups) == 1 and len(sequences_S) == len(batch.context_lengths_S)
        return [
            paged_attention.plan_decode(
                None if whole else batch.query_starts_S[sequences_S[group]],
                contexts_S[group],
                batch.block_tables_SB[sequences_S[group]],
                batch.block_size,
                window,
                self._shape,
            )
            for group in groups
        ]


class _TorchStep:
    def __init__(self, scale: float, cache_rows: torch.Tensor, plans: Mapping[int | None, _Plan]) -> None:
        self._scale = scale
        self._cache_rows = cache_rows
        self._plans = plans

    def attend(
        self, window: int | None, q_TNH: torch.Tensor, kv_T2CH: torch.Tensor, cache: torch.Tensor
    ) -> torch.Tensor:
        paged_attention.write(kv_T2CH, cache, self._cache_rows)
        plan = self._plans[window]
        if plan.decodes and plan.decodes[0].rows_S is None:
            return paged_attention.run_decode(plan.decodes[0], q_TNH, cache, self._scale).flatten(1)
        out_TNH = torch.empty(q_TNH.shape, dtype=q_TNH.dtype, device=q_TNH.device)
        for prefill in plan.prefills:
            paged_attention.run_prefill(prefill, q_TNH, kv_T2CH, cache, out_TNH, self._scale)
        for decode in plan.decodes:
            assert decode.rows_S is not None
            out_TNH.index_copy_(0, decode.rows_S, paged_attention.run_decode(decode, q_TNH, cache, self._scale))
        return out_TNH.flatten(1)


ATTENTION_BACKENDS: Mapping[str, Callable[[AttentionShape], AttentionBackend]] = MappingProxyType(
    {"torch": TorchAttention}
)


def attention_backend(shape: AttentionShape, backend: str | None = None) -> AttentionBackend:
    """The back end named, else the best for this device."""
    name = backend or "torch"
    if name not in ATTENTION_BACKENDS:
        raise CallerError(f"no attention back end {name!r} (there are: {', '.join(ATTENTION_BACKENDS)})")
    return ATTENTION_BACKENDS[name](shape)
