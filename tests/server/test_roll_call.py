"""The server is ready when every engine and every API process has said so, in whatever order."""

from collections.abc import Sequence
from itertools import permutations

import msgspec
import pytest

from tenure.server.roll_call import RollCall
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
    roll_call = RollCall(engines=2, workers=2, complete=told)
    for number in order:
        assert told.cards == []
        if number < 2:
            roll_call.loaded(number, CARDS[number])
        else:
            roll_call.serves(number - 2)
    assert told.cards == [CARDS]


def test_an_engine_that_loads_again_is_no_news() -> None:
    told = Told()
    roll_call = RollCall(engines=1, workers=1, complete=told)
    roll_call.loaded(0, CARDS[0])
    roll_call.serves(0)
    roll_call.loaded(0, CARDS[0])
    assert len(told.cards) == 1


def test_an_api_process_that_is_back_is() -> None:
    told = Told()
    roll_call = RollCall(engines=1, workers=2, complete=told)
    roll_call.loaded(0, CARDS[0])
    roll_call.serves(0)
    roll_call.left(0)  # it died before the other was there
    roll_call.serves(1)
    assert told.cards == []
    roll_call.serves(0)
    assert len(told.cards) == 1
    roll_call.left(1)
    roll_call.serves(1)
    assert len(told.cards) == 2
