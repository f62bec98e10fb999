"""The server is ready when every engine and every API process has said so, in whatever order."""

from collections.abc import Sequence
from itertools import permutations

import msgspec
import pytest

from tenure.process.reports import Loaded, Serving
from tenure.server.readiness import Readiness
from tenure.wire.messages import ModelCard
from tests.wire.samples import CARD

CARDS = [msgspec.structs.replace(CARD, num_blocks=number) for number in (10, 11)]


class Told:
    def __init__(self) -> None:
        self.cards: list[Sequence[ModelCard]] = []

    def __call__(self, cards: Sequence[ModelCard]) -> None:
        self.cards.append(cards)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_all_must_be_there(order: Sequence[int]) -> None:
    """The cards are in the order of the engines, however they came."""
    told = Told()
    readiness = Readiness(engines=2, workers=2, complete=told)
    for number in order:
        assert told.cards == []
        if number < 2:
            readiness.note_report(number, Loaded(card=CARDS[number]))
        else:
            readiness.note_report(number - 2, Serving())
    assert told.cards == [CARDS]


def test_an_engine_that_loads_again_is_no_news() -> None:
    told = Told()
    readiness = Readiness(engines=1, workers=1, complete=told)
    readiness.note_report(0, Loaded(card=CARDS[0]))
    readiness.note_report(0, Serving())
    readiness.note_report(0, Loaded(card=CARDS[0]))
    assert len(told.cards) == 1


def test_an_api_process_that_is_back_is() -> None:
    told = Told()
    readiness = Readiness(engines=1, workers=2, complete=told)
    readiness.note_report(0, Loaded(card=CARDS[0]))
    readiness.note_report(0, Serving())
    readiness.left(0)  # it died before the other was there
    readiness.note_report(1, Serving())
    assert told.cards == []
    readiness.note_report(0, Serving())
    assert len(told.cards) == 1
    readiness.left(1)
    readiness.note_report(1, Serving())
    assert len(told.cards) == 2
