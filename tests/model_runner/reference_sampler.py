"""A sampler in plain Python, one row at a time, written from the documented order of operations alone."""

import math
from collections.abc import Sequence

from tenure.sampling import SamplingParams

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def uniform(seed: int, choice: int, position: int) -> float:
    value = mix((seed + GOLDEN) & MASK)
    value = mix((value + (choice + 1) * GOLDEN) & MASK)
    value = mix((value + (position + 1) * GOLDEN) & MASK)
    return ((value >> 12) + 0.5) / 2**52


def adjusted(logits: Sequence[float], params: SamplingParams, prompt: list[int], output: list[int]) -> list[float]:
    logits = list(logits)
    if params.allowed_token_ids:
        logits = [logit if token in params.allowed_token_ids else -math.inf for token, logit in enumerate(logits)]
    for token, bias in params.logit_bias:
        logits[token] += bias
    for word in params.bad_words:
        head = list(word[:-1])
        if not head or output[-len(head) :] == head:
            logits[word[-1]] = -math.inf
    if len(output) < params.min_tokens:
        for token in params.eos_token_ids + params.stop_token_ids:
            logits[token] = -math.inf
    for token in {*prompt, *output}:
        logit = logits[token]
        logits[token] = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
    for token in set(output):
        logits[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
    return logits


def distribution(logits: Sequence[float], params: SamplingParams) -> list[float]:
    """Probabilities, not normalized, after temperature, min_p, top_k and top_p."""
    top = max(logits)
    weights = [math.exp((logit - top) / params.temperature) for logit in logits]
    weights = [weight if weight >= params.min_p * max(weights) else 0.0 for weight in weights]
    if params.top_k:
        least = sorted(weights, reverse=True)[min(params.top_k, len(weights)) - 1]
        weights = [weight if weight >= least else 0.0 for weight in weights]
    if params.top_p < 1:
        mass, least = 0.0, 0.0
        for weight in sorted(weights, reverse=True):
            if mass >= params.top_p * sum(weights):
                break
            mass, least = mass + weight, weight
        weights = [weight if weight >= least else 0.0 for weight in weights]
    return weights


def reference_token(
    logits: Sequence[float], params: SamplingParams, choice: int, prompt: list[int], output: list[int]
) -> int:
    logits = adjusted(logits, params, prompt, output)
    if params.temperature == 0:
        return logits.index(max(logits))
    weights = distribution(logits, params)
    target = uniform(params.seed, choice, len(output)) * sum(weights)
    for token, weight in enumerate(weights):
        target -= weight
        if target < 0:
            return token
    raise AssertionError("the distribution is empty")


def reference_logprob(logits: Sequence[float], token: int) -> tuple[float, int]:
    """Logprob and rank in the raw distribution."""
    top = max(logits)
    total = sum(math.exp(logit - top) for logit in logits)
    return logits[token] - top - math.log(total), 1 + sum(logit > logits[token] for logit in logits)
