"""One vector from the hidden states of each text, and vectors of length 1.

Legend: T rows, S texts, D size of a vector.
"""

import numpy as np
import torch
import torch.nn.functional as F

from tenure.layers.text_batch import TextBatch


def first_rows(x_TD: torch.Tensor, batch: TextBatch) -> torch.Tensor:
    """The first token's, shape (S, D)."""
    return _rows(x_TD, batch.starts_S)


def last_rows(x_TD: torch.Tensor, batch: TextBatch) -> torch.Tensor:
    """The last token's, shape (S, D)."""
    return _rows(x_TD, batch.starts_S + batch.lengths_S - 1)


def mean_rows(x_TD: torch.Tensor, batch: TextBatch) -> torch.Tensor:
    """The mean over a text's tokens, shape (S, D)."""
    return _bags(x_TD, batch, "mean")


def max_rows(x_TD: torch.Tensor, batch: TextBatch) -> torch.Tensor:
    """The maximum over a text's tokens, number by number, shape (S, D)."""
    return _bags(x_TD, batch, "max")


def unit_rows(x_TD: torch.Tensor) -> torch.Tensor:
    """Vectors of length 1. Squares are summed in float64, where those of no finite vector overflow."""
    wide_TD = x_TD.double()
    lengths_T1: torch.Tensor = torch.linalg.vector_norm(wide_TD, dim=-1, keepdim=True)
    return (wide_TD / lengths_T1.clamp_min(1e-12)).float()


def finite_texts(x_TD: torch.Tensor, batch: TextBatch) -> list[bool]:
    """For each text, whether all numbers of all its rows are finite."""
    if bool(torch.isfinite(x_TD.sum())):
        return [True] * len(batch.starts_S)
    finite_T = torch.isfinite(x_TD).all(dim=1).cpu().numpy()
    return [bool(finite_T[start : start + length].all()) for start, length in _spans(batch)]


def split_rows(x_TD: torch.Tensor, batch: TextBatch) -> list[torch.Tensor]:
    """The rows of each text, views of `x_TD`."""
    return [x_TD[start : start + length] for start, length in _spans(batch)]


def _spans(batch: TextBatch) -> list[tuple[int, int]]:
    return list(zip(batch.starts_S.tolist(), batch.lengths_S.tolist(), strict=True))


def _rows(x_TD: torch.Tensor, rows_S: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> torch.Tensor:
    return x_TD.index_select(0, torch.from_numpy(rows_S).to(x_TD.device))


def _bags(x_TD: torch.Tensor, batch: TextBatch, mode: str) -> torch.Tensor:
    # An embedding bag reads each row once, for all texts in one operation.
    packed_S = np.argsort(batch.starts_S)
    starts_S = torch.from_numpy(batch.starts_S[packed_S]).to(x_TD.device)
    rows_T = torch.arange(len(x_TD), device=x_TD.device)
    pooled_SD = F.embedding_bag(rows_T, x_TD, starts_S, mode=mode)
    return pooled_SD.index_select(0, torch.from_numpy(np.argsort(packed_S)).to(x_TD.device))
