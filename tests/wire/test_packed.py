"""What is packed to be sent is what comes out at the other end."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.admission import Gate, GateLimits
from tenure.errors import Refusal
from tenure.sampling import SamplingParams
from tenure.token_lists import TokenLists
from tenure.wire.token_masks import PackedSampling, TokenMasks, attach, detach

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=5)


@given(st.lists(IDS, max_size=5))
def test_lists_of_ids(lists: list[list[int]]) -> None:
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(TokenLists.of(lists)), type=TokenLists)
    assert packed == lists
    assert [packed[index] for index in range(-len(lists), len(lists))] == lists * 2
    assert packed.lengths() == list(map(len, lists))
    assert (len(packed), packed.total) == (len(lists), sum(map(len, lists)))


@pytest.mark.parametrize(
    "packed",
    [
        TokenLists([1, 2], b"\0" * 12),
        TokenLists([4], b"\0" * 12),
        TokenLists([3, 2, 3], b"\0" * 12),
        TokenLists([0], b""),
    ],
)
def test_what_is_packed_wrongly_is_not_admitted(packed: TokenLists) -> None:
    gate = Gate(GateLimits(items=9, tokens=99, capacity=50, vocabulary_size=9))
    assert isinstance(gate.ask(packed, 1), Refusal)
    assert isinstance(gate.ask(TokenLists.of([[0, -1]]), 1), Refusal)


def test_long_lists_of_sampling_parameters() -> None:
    sampling = SamplingParams(
        max_tokens=3,
        stop_token_ids=tuple(range(5)),
        allowed_token_ids=tuple(range(2000)),
        logit_bias=tuple((token, token / 7 - 100) for token in range(1400)),
    )
    packed = detach(sampling)
    without, masks = packed.params, packed.masks
    assert without == SamplingParams(max_tokens=3)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(masks), type=TokenMasks)
    assert attach(without, sent) == sampling


def test_short_lists_stay_where_they_are() -> None:
    sampling = SamplingParams(max_tokens=3, stop_token_ids=(1,), logit_bias=((1, 2.0),))
    assert detach(sampling) == PackedSampling(sampling)
    assert attach(sampling, None) is sampling
