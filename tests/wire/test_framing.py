"""Whatever way bytes arrive, whole messages come out in order; anything else ends the connection, never the process."""

from collections.abc import Sequence
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.wire import messages as wire
from tenure.wire.framing import MAX_FRAME_BYTES, Channel, FrameTooLarge, PeerGone
from tests.tasks import run
from tests.wire.samples import FROM_ENGINE, OUTPUT, SMALLEST, TO_ENGINE
from tests.wire.streams import BrokenStream, ScriptedStream

EITHER = wire.ToEngine | wire.FromEngine


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def encoded(*messages: msgspec.Struct) -> bytes:
    return b"".join(frame(msgspec.msgpack.encode(message)) for message in messages)


async def send(stream: ScriptedStream, message: msgspec.Struct) -> None:
    channel: Channel[Any] = Channel(stream, EITHER)
    await channel.send_frames(channel.encode(message))


async def received(chunks: Sequence[bytes], kind: object = EITHER) -> tuple[list[Any], list[int], PeerGone]:
    """All messages until the channel ends, how many came with each call, and why it ended."""
    channel: Channel[Any] = Channel(ScriptedStream(chunks), kind)
    found: list[Any] = []
    calls: list[int] = []
    while True:
        try:
            messages = await channel.receive()
        except PeerGone as gone:
            return found, calls, gone
        found += messages
        calls.append(len(messages))


def arrivals(chunks: Sequence[bytes], kind: object = EITHER) -> tuple[list[Any], list[int], PeerGone]:
    result = []

    async def scenario() -> None:
        result.append(await received(chunks, kind))

    run(scenario)
    return result[0]


def test_every_message_has_a_sample() -> None:
    assert {type(message) for message in TO_ENGINE} == set(get_args(wire.ToEngine))
    assert {type(message) for message in FROM_ENGINE} == set(get_args(wire.FromEngine))


@pytest.mark.parametrize("message", [*TO_ENGINE, *FROM_ENGINE, *SMALLEST], ids=lambda message: type(message).__name__)
def test_what_is_sent_is_what_arrives(message: msgspec.Struct) -> None:
    """With all fields set, numbers at the ends of their range among them, and with all defaults."""

    async def scenario() -> None:
        stream = ScriptedStream()
        await send(stream, message)
        assert (await received([bytes(stream.sent)]))[0] == [message]

    run(scenario)


def newer(value: Any) -> Any:
    """As a newer peer might send it: with a field more in each object."""
    if isinstance(value, dict):
        # The one plain map takes whatever keys it is given.
        return {key: item if key == "finish_reasons" else newer(item) for key, item in value.items()} | {"newer": [{}]}
    return [newer(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("message", [*TO_ENGINE, *FROM_ENGINE], ids=lambda message: type(message).__name__)
def test_fields_of_a_newer_peer_are_ignored(message: msgspec.Struct) -> None:
    fields = newer(msgspec.to_builtins(message, builtin_types=(bytes,)))
    assert arrivals([frame(msgspec.msgpack.encode(fields))])[0] == [message]


def test_elements_of_a_newer_peer_are_ignored() -> None:
    """In the objects that travel as arrays."""
    output = [*msgspec.to_builtins(OUTPUT, builtin_types=(bytes,)), "newer"]
    output[3] = [[*logprobs, "newer"] for logprobs in output[3]]
    fields = {"type": "StepOutput", "step": 1, "outputs": [output]}
    assert arrivals([frame(msgspec.msgpack.encode(fields))])[0] == [wire.StepOutput(step=1, outputs=[OUTPUT])]


def test_fields_that_an_older_peer_does_not_know_have_their_defaults() -> None:
    older = {"type": "StepOutput", "step": 3, "outputs": [[7, 0, [1, 2]]]}
    assert arrivals([frame(msgspec.msgpack.encode(older))])[0] == [
        wire.StepOutput(step=3, outputs=[wire.ItemOutput(7, 0, [1, 2])])
    ]


def test_frames_cut_at_every_byte() -> None:
    messages = [TO_ENGINE[2], FROM_ENGINE[4], TO_ENGINE[0]]
    data = encoded(*messages)

    async def scenario() -> None:
        for cut in range(1, len(data)):
            found, _, _ = await received([data[:cut], data[cut:]])
            assert found == messages, cut
        found, calls, _ = await received([bytes([byte]) for byte in data])
        assert (found, calls) == (messages, [1, 1, 1])

    run(scenario)


def test_all_that_one_read_brought_comes_at_once() -> None:
    half = encoded(FROM_ENGINE[0])
    chunks = [encoded(*FROM_ENGINE[:5]) + half[:10], half[10:] + encoded(*FROM_ENGINE[5:])]
    found, calls, _ = arrivals(chunks, wire.FromEngine)
    assert found == [*FROM_ENGINE[:5], FROM_ENGINE[0], *FROM_ENGINE[5:]]
    assert calls == [5, len(FROM_ENGINE) - 4]


def test_a_peer_that_leaves_within_a_frame() -> None:
    """What was complete is given out first; what was not is never."""
    data = encoded(*TO_ENGINE[:3])

    async def scenario() -> None:
        for end in range(len(data)):
            found, _, gone = await received([data[:end]] if end else [])
            assert found == list(TO_ENGINE[: len(found)])
            assert len(encoded(*found)) <= end
            assert "gone" in str(gone)

    run(scenario)


def test_a_frame_that_is_too_large_is_refused_when_it_is_announced() -> None:
    """The rest of it is not waited for."""
    announcement = (MAX_FRAME_BYTES + 1).to_bytes(4, "big")
    _, _, gone = arrivals([announcement, *[b"x" * 1000] * 3])
    assert f"{MAX_FRAME_BYTES + 1} bytes was announced" in str(gone)


def test_a_message_that_is_too_large_is_not_sent() -> None:
    async def scenario() -> None:
        stream = ScriptedStream()
        huge = wire.Unready(reason="x" * MAX_FRAME_BYTES)
        with pytest.raises(FrameTooLarge, match="larger than a frame"):
            await send(stream, huge)
        assert not stream.sent

    run(scenario)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"GET / HTTP/1.1\r\n",
        msgspec.msgpack.encode({"type": "Sumbit", "request": 1}),
        msgspec.msgpack.encode({"request": 1}),
        msgspec.msgpack.encode({"type": "Admitted", "request": "1"}),
        msgspec.msgpack.encode({"type": "Admitted", "request": 1.5}),
        msgspec.msgpack.encode({"type": "Admitted", "request": None}),
        msgspec.msgpack.encode({"type": "Ended", "request": 1, "outcome": "fine"}),
        msgspec.msgpack.encode([1, 2, 3]),
        b"\x82\xa4type\xa7Unready\xa6reason\xa1\xff",
        b"\x83\xa4type\xa7Unready\xa6reason\xa0\xa1x" + b"\x91" * 100_000 + b"\xc0",
        msgspec.msgpack.encode({"type": "Admitted", "request": 1}) + b"\x00",
    ],
)
def test_what_is_no_message_ends_the_connection(payload: bytes) -> None:
    found, _, gone = arrivals([encoded(FROM_ENGINE[2]), frame(payload)])
    assert found == [FROM_ENGINE[2]]
    assert "no message" in str(gone)


@pytest.mark.parametrize(
    "message",
    [message for message in TO_ENGINE if type(message) not in map(type, FROM_ENGINE)],
    ids=lambda message: type(message).__name__,
)
def test_a_message_of_the_other_direction_is_none(message: msgspec.Struct) -> None:
    found, _, gone = arrivals([encoded(message)], wire.FromEngine)
    assert found == []
    assert "no message" in str(gone)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=60))
def test_garbage_never_does_worse_than_end_the_connection(data: bytes, payload: bytes) -> None:
    arrivals([data] if data else [])
    arrivals([frame(payload)])


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_damaged_messages_never_do_worse_than_end_the_connection(data: st.DataObject) -> None:
    whole = bytearray(encoded(data.draw(st.sampled_from([*TO_ENGINE, *FROM_ENGINE]))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(4, len(whole) - 1))] = data.draw(st.integers(0, 255))
    arrivals([bytes(whole)])


def test_sending_to_a_peer_that_is_gone() -> None:
    async def scenario() -> None:
        with pytest.raises(PeerGone):
            await send(BrokenStream(), TO_ENGINE[0])

    run(scenario)


def test_a_number_that_the_wire_cannot_carry_is_the_senders_error() -> None:
    async def scenario() -> None:
        stream = ScriptedStream()
        with pytest.raises(OverflowError):
            await send(stream, wire.FinishItem(request=2**64, index=0))
        assert not stream.sent

    run(scenario)
