"""Tickets as text: what is written is read, by who has the secret alone; and found in anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.errors import CallerError
from tenure.peers.secret import Secret, sign
from tenure.peers.ticket_text import MOST_CHARACTERS, Ticket, digest_of, find_texts, read_ticket, write_ticket

SECRET = Secret(b"a secret of this cluster")
TICKET = Ticket(b"n" * 16, "e1", "p.example:9000", "model", "layout", 40, digest_of([1, 2, 3]))
TEXT = write_ticket(TICKET, SECRET)


def test_what_is_written_is_read() -> None:
    assert read_ticket(TEXT, SECRET) == TICKET
    assert TEXT.isascii()
    assert len(TEXT) < MOST_CHARACTERS


@pytest.mark.parametrize("place", range(len(TEXT)))
def test_a_ticket_with_one_other_character_is_none(place: int) -> None:
    other = "A" if TEXT[place] != "A" else "B"
    with pytest.raises(CallerError, match="no ticket of this cluster"):
        read_ticket(TEXT[:place] + other + TEXT[place + 1 :], SECRET)


@pytest.mark.parametrize("text", ["", "tnr1..", "tnr1.é.x", TEXT + "A", TEXT + "\n", " " + TEXT, TEXT * 50, TEXT[:-1]])
def test_what_is_no_ticket(text: str) -> None:
    with pytest.raises(CallerError):
        read_ticket(text, SECRET)


def test_a_ticket_of_another_cluster_is_none() -> None:
    with pytest.raises(CallerError):
        read_ticket(TEXT, Secret(b"the secret of another"))


@pytest.mark.parametrize("around", [b"%s", b'{"ticket":"%s"', b"\xff\x00%s\xff", b"tnr1.tnr1.A.%s,", b"tnr1.%s"])
def test_a_ticket_is_found_in_a_body_that_cannot_be_read(around: bytes) -> None:
    assert find_texts(around % TEXT.encode()) == [TEXT]


def test_all_are_found_and_forged_ones_cannot_be_read() -> None:
    other = write_ticket(Ticket(b"m" * 16, "e1", "p:1", "model", "layout", 1, b""), SECRET)
    forged = write_ticket(TICKET, Secret(b"the secret of another"))
    assert find_texts(f"[{TEXT},{forged}, {other}]".encode()) == [TEXT, forged, other]
    with pytest.raises(CallerError):
        read_ticket(forged, SECRET)


@given(st.binary(max_size=300))
def test_nothing_is_found_in_nothing(body: bytes) -> None:
    for text in find_texts(b"tnr1." + body):
        with pytest.raises(CallerError):
            read_ticket(text, SECRET)


def test_digests_tell_prompts_apart() -> None:
    prompts = ([1, 2, 3], [1, 2], [3, 2, 1], [], [66051])
    assert len({digest_of(prompt) for prompt in prompts} | {digest_of([1, 2, 3], "salt")}) == 6


def test_a_secret_is_not_shown_and_not_short() -> None:
    assert "cluster" not in repr(SECRET)
    with pytest.raises(CallerError, match="16 bytes"):
        Secret(b"short")
    assert sign(b"key", b"ab", b"c") != sign(b"key", b"a", b"bc")
