"""The sampler's work in torch's own operations, for devices and installations without native kernels.

Shape suffixes: R rows, V vocabulary. `kernels/sampling.c` does the same. A filter is expressed as the least probability
that is kept, so tokens that tie with the last kept one are kept too.
"""

import torch
from torch import Tensor

from tenure.kernels.paged_attention import IntArray
from tenure.kernels.sampling import ADJUSTED_NOT_FINITE, NOT_FINITE, NOTHING_LEFT
from tenure.model_runner.slots import Slots


def sample(logits_RV: Tensor, slots: Slots, slots_R: IntArray, uniforms_R: Tensor) -> Tensor:
    """The token of each row, for the occupant of its slot, or one of the negative numbers of `kernels.sampling`."""
    raw_top_R = logits_RV.amax(-1)
    logits_RV = logits_RV.float().clone()
    for row, slot in enumerate(slots_R.tolist()):
        adjust(logits_RV[row], slots, slot)
    top_R = logits_RV.amax(-1)
    lines_R = slots.lines[slots_R]
    columns = (torch.from_numpy(lines_R[name].copy()).to(logits_RV.device) for name in ("min_p", "top_k", "top_p"))
    temperature_R = torch.from_numpy(lines_R["temperature"]).float().to(logits_RV.device)
    scaled_RV = (logits_RV - top_R[:, None]) / torch.where(temperature_R > 0, temperature_R, 1.0)[:, None]
    p_RV = torch.softmax(scaled_RV.nan_to_num(nan=0.0), dim=-1)
    keep_likely(p_RV, *columns)
    tokens_R = torch.where(temperature_R > 0, draw(p_RV, uniforms_R), logits_RV.argmax(-1))
    tokens_R[~top_R.isfinite()] = ADJUSTED_NOT_FINITE
    tokens_R[top_R == -torch.inf] = NOTHING_LEFT
    tokens_R[~raw_top_R.isfinite()] = NOT_FINITE
    return tokens_R


def adjust(logits_V: Tensor, slots: Slots, slot: int) -> None:
    """Apply, in place: allowed tokens, biases, `min_tokens`, bad words, penalties."""
    sampling, prompt_length, length = slots.sampling[slot], int(slots.prompt_lengths[slot]), int(slots.lengths[slot])
    prompt = torch.from_numpy(slots.tokens[slot, :prompt_length].astype("int64"))
    output = torch.from_numpy(slots.tokens[slot, prompt_length:length].astype("int64"))

    def within(ids: Tensor | tuple[int, ...] | list[int]) -> Tensor:
        ids = torch.as_tensor(ids, dtype=torch.int64)
        return ids[(ids >= 0) & (ids < len(logits_V))].to(logits_V.device)

    if sampling.allowed_token_ids:
        kept_ids = within(sampling.allowed_token_ids)
        kept = logits_V[kept_ids]
        logits_V.fill_(-torch.inf)[kept_ids] = kept
    for token, bias in sampling.logit_bias:
        logits_V[within([token])] += bias
    if len(output) < sampling.min_tokens:
        logits_V[within(sampling.eos_token_ids + sampling.stop_token_ids)] = -torch.inf
    said = tuple(output.tolist()) if sampling.bad_words else ()
    logits_V[within([w[-1] for w in sampling.bad_words if w and said[len(said) - len(w) + 1 :] == w[:-1]])] = -torch.inf
    if (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (1.0, 0.0, 0.0):
        seen = torch.bincount(within(torch.cat([prompt, output])), minlength=len(logits_V)).nonzero()[:, 0]
        logits_V[seen] = torch.where(
            logits_V[seen] > 0,
            logits_V[seen] / sampling.repetition_penalty,
            logits_V[seen] * sampling.repetition_penalty,
        )
        times_V = torch.bincount(within(output), minlength=len(logits_V))
        logits_V -= sampling.frequency_penalty * times_V + sampling.presence_penalty * (times_V > 0)


def keep_likely(p_RV: Tensor, min_p_R: Tensor, top_k_R: Tensor, top_p_R: Tensor) -> None:
    """Set to 0, in place, what the filters drop: `min_p` first, `top_k` of the rest, `top_p` of what is left then.

    `min_p` is relative to the greatest probability, `top_k` 0 and `top_p` 1 are off. `top_p` keeps the fewest best
    tokens whose mass reaches that share. The best token is always kept.
    """
    if not bool(((min_p_R > 0) | (top_k_R > 0) | (top_p_R < 1)).any()):
        return
    ranked_RV = p_RV.sort(-1, descending=True).values
    last_R = torch.where(top_k_R > 0, top_k_R, p_RV.shape[-1]).clamp(max=p_RV.shape[-1]) - 1
    least_R = torch.maximum(min_p_R.to(p_RV.dtype) * ranked_RV[:, 0], ranked_RV.gather(1, last_R[:, None])[:, 0])
    ranked_RV = ranked_RV.where(ranked_RV >= least_R[:, None], 0.0)
    better_RV = ranked_RV.cumsum(-1, dtype=torch.float64) - ranked_RV
    kept_RV = (better_RV < top_p_R[:, None] * ranked_RV.sum(-1, dtype=torch.float64)[:, None]) | (top_p_R[:, None] >= 1)
    kept_RV &= ranked_RV >= least_R[:, None]
    least_R = ranked_RV.gather(1, kept_RV.sum(-1).clamp(min=1)[:, None] - 1)[:, 0]
    p_RV.masked_fill_(p_RV < least_R[:, None], 0.0)


def draw(p_RV: Tensor, uniforms_R: Tensor) -> Tensor:
    """The token at which the cumulative distribution passes `uniforms_R`, per row; never one of probability 0.

    `p_RV` is not negative, has some positive value in each row and need not sum to 1.
    """
    cumulative_RV = p_RV.cumsum(-1, dtype=torch.float64)
    whole_R = cumulative_RV[:, -1]
    target_R = torch.minimum(uniforms_R * whole_R, torch.nextafter(whole_R, torch.zeros_like(whole_R)))
    return (cumulative_RV <= target_R[:, None]).sum(-1)
