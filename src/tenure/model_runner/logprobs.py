"""Logprobs of tokens in the model's own distribution.

Shape suffixes: R rows, V vocabulary, K best alternatives. Raw logits come in, before any adjustment or temperature.
Rank 1 is best; tokens of equal logit share the rank and are listed by id, so that the report of a row does not
depend on what the rows around it ask for.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tenure.sampling import MINUS_INFINITY, TokenLogprobs


def token_logprobs(
    logits_RV: Tensor, tokens: Sequence[int], best: Sequence[int], extra_ids: Sequence[Sequence[int]]
) -> list[TokenLogprobs]:
    """Report token `tokens[r]` of each row, `best[r]` alternatives (-1: all), and the `extra_ids` not among these.

    Logits are finite or minus infinity, with a finite one in each row.
    """
    logprobs_RV = torch.log_softmax(logits_RV.float(), dim=-1)
    chosen_R = logprobs_RV.gather(1, torch.tensor(tokens, device=logits_RV.device)[:, None])
    ranks = ((logprobs_RV > chosen_R).sum(-1) + 1).tolist()
    chosen = _readable(chosen_R[:, 0])
    alternatives = _best_ids(logprobs_RV, best)
    extra_ids = [_wanted(extra, ids, logits_RV.shape[-1]) for extra, ids in zip(extra_ids, alternatives, strict=True)]
    reports = []
    for row, (ids, extra) in enumerate(zip(alternatives, extra_ids, strict=True)):
        listed = ids + list(extra)
        values = _readable(logprobs_RV[row, torch.tensor(listed, device=logits_RV.device)]) if listed else []
        reports.append(TokenLogprobs.of(chosen[row], ranks[row], listed, values))
    return reports


def _wanted(extra: Sequence[int], listed: list[int], vocabulary: int) -> list[int]:
    if not extra:
        return []
    present = set(listed)
    return [token for token in dict.fromkeys(extra) if 0 <= token < vocabulary and token not in present]


def _readable(logprobs: Tensor) -> list[float]:
    values: list[float] = logprobs.clamp(min=MINUS_INFINITY).tolist()
    return values


def _best_ids(logprobs_RV: Tensor, best: Sequence[int]) -> list[list[int]]:
    vocabulary = logprobs_RV.shape[-1]
    counts = [vocabulary if count < 0 else min(count, vocabulary) for count in best]
    most = max((count for count in counts if count < vocabulary), default=0)
    if most:
        values_RK, ids_RK = (found.cpu().numpy() for found in logprobs_RV.topk(most, dim=-1))
    found: list[list[int]] = []
    for row, count in enumerate(counts):
        if count == 0:
            found.append([])
        elif count == vocabulary:
            found.append(logprobs_RV[row].sort(descending=True, stable=True).indices.tolist())
        else:
            found.append(_first_of_equals(logprobs_RV[row], values_RK[row, :count], ids_RK[row, :count]))
    return found


def _first_of_equals(logprobs_V: Tensor, values_K: NDArray[np.float32], ids_K: NDArray[np.int64]) -> list[int]:
    """The ids of the best values, equals by id; of those that tie with the last one, the first by id."""
    last = values_K[-1]
    better = values_K > last
    equal_ids = torch.nonzero(logprobs_V == float(last))[: len(ids_K) - int(better.sum()), 0].cpu().numpy()
    order = np.lexsort((ids_K[better], -values_K[better]))
    ids: list[int] = [*ids_K[better][order].tolist(), *equal_ids.tolist()]
    return ids
