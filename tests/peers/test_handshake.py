"""Two sides that have one secret know each other afterwards; nobody else gets anywhere."""

from collections.abc import Callable

import msgspec
import pytest

from tenure.peers.handshake import Exchange, Greeting, Introduced, NotAPeer, Seal, answer, initiate
from tenure.peers.secret import Secret

SECRET, ANOTHER = Secret(b"a secret of this cluster"), Secret(b"the secret of another")
D, P = Greeting("d", "model", "layout"), Greeting("p", "model", "layout")


def framed(greeting: Greeting) -> bytes:
    data = msgspec.msgpack.encode(greeting)
    return len(data).to_bytes(2, "big") + data


class Side:
    """Runs one side; `heard` is what it has not taken yet."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.said = b""
        self.heard = b""
        self.found: Introduced | None = None
        self._wants = next(exchange)

    def run(self, *, closed: bool = False) -> None:
        while self.found is None:
            if isinstance(self._wants, bytes):
                self.said += self._wants
                reply = b""
            elif not self.heard and not closed:
                return
            else:
                reply, self.heard = self.heard[: self._wants], self.heard[self._wants :]
            try:
                self._wants = self._exchange.send(reply) if isinstance(self._wants, int) else next(self._exchange)
            except StopIteration as end:
                self.found = end.value


def meet(ours: Exchange, theirs: Exchange, change: Callable[[bytes], bytes] = bytes) -> tuple[Introduced, Introduced]:
    """Let two sides talk; `change` is done to all that the second one says."""
    first, second = Side(ours), Side(theirs)
    for _ in range(6):
        first.run()
        second.heard, first.said = second.heard + first.said, b""
        second.run()
        first.heard, second.said = first.heard + change(second.said), b""
    assert first.found is not None
    assert second.found is not None
    return first.found, second.found


def test_both_know_each_other_and_what_they_say_is_sealed() -> None:
    ours, theirs = meet(initiate(D, SECRET), answer(P, SECRET))
    assert (ours.peer.engine, theirs.peer.engine) == ("p", "d")
    for text in (b"one", b"", b"three"):
        assert theirs.incoming.unwrap(ours.outgoing.wrap(text)) == text
        assert ours.incoming.unwrap(theirs.outgoing.wrap(text)) == text


@pytest.mark.parametrize("whose", ["initiator", "listener"])
def test_another_secret_gets_nowhere(whose: str) -> None:
    ours, theirs = (ANOTHER if whose == side else SECRET for side in ("initiator", "listener"))
    with pytest.raises(NotAPeer, match="another secret"):
        meet(initiate(D, ours), answer(P, theirs))


def test_what_was_said_once_is_of_no_use_another_time() -> None:
    """Neither to be an initiator, nor to be a listener."""
    first, second = Side(initiate(D, SECRET)), Side(answer(P, SECRET))
    first.run()
    second.heard = opening = first.said
    second.run()
    first.heard, first.said = second.said, b""
    first.run()
    proof = first.said
    replayed = Side(answer(P, SECRET))
    replayed.heard = opening + proof
    with pytest.raises(NotAPeer):
        replayed.run()


def test_a_side_that_is_sent_its_own_words_is_not_fooled() -> None:
    side = Side(initiate(D, SECRET))
    side.run()
    side.heard, side.said = side.said, b""
    side.run()
    side.heard = side.said
    with pytest.raises(NotAPeer):
        side.run()


def test_who_it_is_cannot_be_changed_on_the_way() -> None:
    def change(data: bytes) -> bytes:
        return data.replace(b"layout", b"LAYOUT")

    with pytest.raises(NotAPeer):
        meet(initiate(D, SECRET), answer(P, SECRET), change)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x00",
        b"\x00\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff" + bytes(70_000),
        b"\x00\x03\x93\x01\x02",
        framed(Greeting("x", "m", "l")),
        framed(Greeting("x", "m", "l", nonce=bytes(32), version=9)),
    ],
)
def test_anything_else_is_no_peer(said: bytes) -> None:
    side = Side(answer(P, SECRET))
    side.heard = said
    with pytest.raises(NotAPeer):
        side.run(closed=True)


def test_a_seal_takes_each_piece_once_and_in_its_place() -> None:
    key = bytes(32)
    sealed = list(map(Seal(key).wrap, (b"one", b"two")))
    assert Seal(key).unwrap(sealed[0]) == b"one"
    for wrong in (sealed[1], sealed[0][:-1], b"", bytes(16), sealed[0][:-1] + b"\x00"):
        with pytest.raises(NotAPeer):
            Seal(key).unwrap(wrong)
    receiver = Seal(key)
    receiver.unwrap(sealed[0])
    with pytest.raises(NotAPeer):
        receiver.unwrap(sealed[0])
