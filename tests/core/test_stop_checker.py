import pytest

from tenure.core.request import Item, Request, RequestSpec
from tenure.core.stop_checker import finish_of, repeats
from tenure.outcomes import FinishReason
from tenure.sampling import RepetitionDetection, SamplingParams

EOS, STOP = 0, 5
PROMPT = [9, EOS, STOP]


def item(produced: list[int], **sampling: object) -> Item:
    given = {"max_tokens": 4, "eos_token_ids": (EOS,), "stop_token_ids": (STOP,)} | sampling
    made = Request(1, RequestSpec([PROMPT], SamplingParams(**given))).items[0]
    made.output += produced
    return made


@pytest.mark.parametrize(
    ("produced", "sampling", "expected"),
    [
        ([7], {}, (None, None)),
        ([7, 7, 7, 7], {}, (FinishReason.LENGTH, None)),
        ([7, EOS], {}, (FinishReason.STOP, None)),
        ([7, STOP], {}, (FinishReason.STOP, STOP)),
        ([7, 7, 7, EOS], {}, (FinishReason.STOP, None)),
        ([EOS], {"ignore_eos": True}, (None, None)),
        ([STOP], {"ignore_eos": True}, (FinishReason.STOP, STOP)),
        ([EOS], {"min_tokens": 1}, (None, None)),
        ([7, EOS], {"min_tokens": 1}, (FinishReason.STOP, None)),
        ([STOP], {"min_tokens": 1}, (None, None)),
        ([EOS], {"ignore_eos": True, "stop_token_ids": (EOS,)}, (FinishReason.STOP, EOS)),
        ([], {"max_tokens": 0}, (FinishReason.LENGTH, None)),
        ([], {}, (None, None)),
        ([7], {"max_tokens": 1}, (FinishReason.LENGTH, None)),
        ([7, 7], {"repetition_detection": RepetitionDetection(max_size=1)}, (FinishReason.REPETITION, None)),
        ([9], {"repetition_detection": RepetitionDetection(max_size=4)}, (None, None)),
    ],
)
def test_why_an_item_ends(
    produced: list[int], sampling: dict[str, object], expected: tuple[FinishReason | None, int | None]
) -> None:
    assert finish_of(item(produced, **sampling)) == expected


@pytest.mark.parametrize(
    ("tokens", "rule", "expected"),
    [
        ([1, 1], RepetitionDetection(max_size=1), True),
        ([1, 2], RepetitionDetection(max_size=1), False),
        ([1, 2, 1, 2], RepetitionDetection(max_size=1), False),
        ([1, 2, 1, 2], RepetitionDetection(max_size=2), True),
        ([3, 1, 2, 1, 2], RepetitionDetection(max_size=3), True),
        ([1, 2, 1, 2, 1], RepetitionDetection(max_size=2), True),
        ([1, 2, 1, 2, 3], RepetitionDetection(max_size=2), False),
        ([1, 1], RepetitionDetection(min_size=2, max_size=3), False),
        ([1, 1, 1, 1], RepetitionDetection(min_size=2, max_size=3), True),
        ([1, 2, 1, 2], RepetitionDetection(max_size=2, min_count=3), False),
        ([1, 2, 1, 2, 1, 2], RepetitionDetection(max_size=2, min_count=3), True),
        ([], RepetitionDetection(max_size=2), False),
    ],
)
def test_what_is_a_repetition(tokens: list[int], rule: RepetitionDetection, expected: bool) -> None:
    assert repeats(tokens, rule) is expected
