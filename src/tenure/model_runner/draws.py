"""Drawing from filtered distributions, the same way every time.

Shape suffixes: R rows, W vocabulary padded to whole blocks, N blocks, K candidates.

A draw is a pure function of (seed, choice, output position) and of the row's own distribution: one number in (0, 1)
comes from a counter-based hash and is looked up in the cumulative distribution, in the order of the vocabulary. No
generator is shared, so neither the batch around a row nor its place in it matters; every reduction here runs along
a row, in an order that depends on the row's width alone.

A filter is expressed as the least probability that is kept, so tokens that tie with the last kept one are kept too,
and no order among equals has to be invented.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 64
"""Tokens per block of the two-level sums and searches."""

Words = NDArray[np.uint64]

_CANDIDATES = (64, 1024)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: Words, choices: Words, positions: Words) -> NDArray[np.float64]:
    """One number in the open interval (0, 1) for each (seed, choice, output position), evenly spread.

    The three are mixed one after the other with the finalizer of SplitMix64 (Steele, Lea and Flood 2014).
    """
    mixed = _mix(seeds + _GOLDEN)
    mixed = _mix(mixed + (choices + np.uint64(1)) * _GOLDEN)
    mixed = _mix(mixed + (positions + np.uint64(1)) * _GOLDEN)
    # 52 bits and a half: one more bit would round the greatest value up to 1
    numbers: NDArray[np.float64] = ((mixed >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return numbers


def _mix(value: Words) -> Words:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def keep_likely(p_RW: Tensor, min_p_R: Tensor, top_k_R: Tensor, top_p_R: Tensor) -> None:
    """Set to 0, in place, what the filters drop: `min_p` first, `top_k` of the rest, `top_p` of what is left then.

    `min_p` is relative to the greatest probability, `top_k` 0 and `top_p` 1 are off. `top_p` keeps the fewest best
    tokens whose mass reaches that share. The best token is always kept.
    """
    filtered = torch.nonzero((min_p_R > 0) | (top_k_R > 0) | (top_p_R < 1))[:, 0]
    if not len(filtered):
        return
    whole = len(filtered) == len(p_RW)
    p_FW = p_RW if whole else p_RW[filtered]
    least_F = _least_kept(p_FW, min_p_R[filtered], top_k_R[filtered], top_p_R[filtered])
    p_FW.masked_fill_(p_FW < least_F[:, None], 0.0)
    if not whole:
        p_RW[filtered] = p_FW


def _least_kept(p_RW: Tensor, min_p_R: Tensor, top_k_R: Tensor, top_p_R: Tensor) -> Tensor:
    width = p_RW.shape[-1]
    floor_R = min_p_R.to(p_RW.dtype)
    if bool((floor_R > 0).any()):
        floor_R = floor_R * p_RW.view(len(p_RW), -1, BLOCK).amax(-1).amax(-1)
    least_R = floor_R.clone()
    open_O = torch.nonzero((top_k_R > 0) | (top_p_R < 1))[:, 0]
    for count in (*(few for few in _CANDIDATES if few < width), width):
        if not len(open_O):
            break
        p_OW = p_RW if len(open_O) == len(p_RW) else p_RW[open_O]
        best_OK = _best(p_OW, count)
        least_O = _least_of_best(p_OW, best_OK, floor_R[open_O], top_k_R[open_O], top_p_R[open_O])
        least_R[open_O] = least_O
        # the last candidate's value may go on, and so may what is kept, beyond the candidates
        open_O = open_O[((least_O <= best_OK[:, -1]) | (top_k_R[open_O] > count)) & (count < width)]
    return least_R


def _least_of_best(p_RW: Tensor, best_RK: Tensor, floor_R: Tensor, top_k_R: Tensor, top_p_R: Tensor) -> Tensor:
    """The least kept probability; right if some candidate is less than it and `top_k` of them were at hand."""
    ranked = top_k_R > 0
    kth_R = best_RK.gather(1, (top_k_R.clamp(min=1, max=best_RK.shape[-1]) - 1)[:, None])[:, 0]
    floor_R = torch.where(ranked, torch.maximum(floor_R, kth_R), floor_R)
    kept_RK = torch.ones_like(best_RK, dtype=torch.bool)
    if bool((top_p_R < 1).any()):
        better_RK = best_RK.cumsum(-1, dtype=torch.float64) - best_RK
        kept_RK = (better_RK < (top_p_R * _mass(p_RW, floor_R))[:, None]) | (top_p_R >= 1)[:, None]
    kept_RK &= best_RK >= floor_R[:, None]
    last_R = kept_RK.sum(-1).clamp(min=1) - 1
    return best_RK.gather(1, last_R[:, None])[:, 0]


def _mass(p_RW: Tensor, floor_R: Tensor) -> Tensor:
    """The sum of each row's probabilities that are not less than its floor."""
    kept_RW = p_RW.masked_fill(p_RW < floor_R[:, None], 0.0) if bool((floor_R > 0).any()) else p_RW
    return kept_RW.view(len(p_RW), -1, BLOCK).sum(-1).cumsum(-1, dtype=torch.float64)[:, -1]


def _best(p_RW: Tensor, count: int) -> Tensor:
    """The `count` greatest values of each row, greatest first."""
    rows, width = p_RW.shape
    if count == width:
        return p_RW.sort(-1, descending=True).values
    if count * BLOCK * 2 < width:
        # the n greatest values lie in the n blocks with the greatest maxima: far fewer values to order
        p_RNB = p_RW.view(rows, -1, BLOCK)
        blocks_RK = p_RNB.amax(-1).topk(count, sorted=False).indices
        p_RW = p_RNB.gather(1, blocks_RK[:, :, None].expand(-1, -1, BLOCK)).view(rows, -1)
    return p_RW.topk(count).values


def draw(p_RW: Tensor, uniform_R: Tensor) -> Tensor:
    """The token at which the cumulative distribution passes `uniform_R`, per row; never one of probability 0.

    `p_RW` is not negative, has some positive value in each row and need not sum to 1. W is a multiple of `BLOCK`.
    """
    p_RNB = p_RW.view(len(p_RW), -1, BLOCK)
    mass_RN = p_RNB.sum(-1)
    cumulative_RN = mass_RN.cumsum(-1, dtype=torch.float64)
    target_R = uniform_R * cumulative_RN[:, -1]
    block_R = _first_above(cumulative_RN, target_R)
    before_R = (cumulative_RN - mass_RN).gather(1, block_R[:, None])[:, 0]
    p_RB = p_RNB[torch.arange(len(p_RW), device=p_RW.device), block_R]
    return block_R * BLOCK + _first_above(p_RB.cumsum(-1, dtype=torch.float64), target_R - before_R)


def _first_above(cumulative_RN: Tensor, target_R: Tensor) -> Tensor:
    """The first place whose cumulative mass exceeds the target, so one with mass of its own."""
    total_R = cumulative_RN[:, -1]
    below_total_R = torch.nextafter(total_R, torch.zeros_like(total_R))
    target_R = torch.minimum(target_R, below_total_R).clamp(min=0.0)
    return (cumulative_RN <= target_R[:, None]).sum(-1)
