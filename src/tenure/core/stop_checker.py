"""The stop checker: whether an item ends with its newest token, and why."""

from collections.abc import Sequence

from tenure.core.request import Item
from tenure.outcomes import FinishReason
from tenure.sampling import RepetitionDetection


def finish_of(item: Item) -> tuple[FinishReason | None, int | None]:
    """The finish reason of an item whose newest tokens are known, and its stop token; (None, None) while it goes on."""
    if item.request.spec.pooling is not None:
        return FinishReason.STOP, None  # a pooling item ends with its prompt
    sampling = item.sampling
    produced = len(item.output)
    if produced:
        token = item.output[-1]
        if token in sampling.eos_token_ids and not sampling.ignore_eos and produced > sampling.min_tokens:
            return FinishReason.STOP, None
        if token in sampling.stop_token_ids and produced > sampling.min_tokens:
            return FinishReason.STOP, token
        if sampling.repetition_detection is not None and repeats(item.output, sampling.repetition_detection):
            return FinishReason.REPETITION, None
    if produced >= item.max_tokens:
        return FinishReason.LENGTH, None
    return None, None


def repeats(tokens: Sequence[int], rule: RepetitionDetection) -> bool:
    """True when `tokens` ends in `rule.min_count` copies of one pattern of an allowed size."""
    for size in range(rule.min_size, rule.max_size + 1):
        needed = size * rule.min_count
        if len(tokens) < needed:
            return False
        if tokens[-1] != tokens[-1 - size]:
            continue  # most sizes are ruled out by one token
        tail = tokens[len(tokens) - needed :]
        if tail[size:] == tail[:-size]:
            return True
    return False
