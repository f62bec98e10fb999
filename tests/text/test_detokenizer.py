"""The text of an item: however it is split into tokens, the joined stream is the one-shot text cut at the stop."""

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tenure.outcomes import FinishReason
from tenure.sampling import TokenLogprobs
from tenure.source import ResolvedSource, SourceKind
from tenure.text.detokenizer import Delta, ItemText, TextOptions, display_token, text_with_offsets
from tenure.text.tokenizer import load_tokenizer
from tests.text.gguf_samples import demo_file

LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP


class Bytes:
    """A tokenizer whose token n has the bytes `pieces[n]`; the tokens in `special` are special."""

    def __init__(self, pieces, special=()):
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.special = special

    def token_bytes(self, token):
        return self.pieces[token]

    def is_special(self, token):
        return token in self.special


def run(pieces, finish=LENGTH, special=(), per_push=1, **options) -> tuple[list[Delta], ItemText]:
    """Push all pieces, `per_push` at a time, until the item ends."""
    item = ItemText(Bytes(pieces, special), TextOptions(**options))
    deltas = []
    for start in range(0, max(len(pieces), 1), per_push):
        tokens = list(range(start, min(start + per_push, len(pieces))))
        last = start + per_push >= len(pieces)
        deltas.append(item.push(tokens, finish_reason=finish if last else None))
        if item.ended:
            break
    return deltas, item


def texts(*arguments, **options) -> list[str]:
    return [delta.text for delta in run(*arguments, **options)[0]]


class TestCharacters:
    def test_a_character_split_over_tokens_is_sent_whole_with_its_last_token(self):
        emoji = "😀".encode()
        deltas, _ = run(["a", emoji[:2], emoji[2:3], emoji[3:] + b"!", "b"])
        assert [delta.text for delta in deltas] == ["a", "", "", "😀!", "b"]
        assert [delta.token_ids for delta in deltas] == [[0], [], [], [1, 2, 3], [4]]

    def test_a_token_may_end_one_character_and_begin_the_next(self):
        first, second = "日本".encode()[:4], "日本".encode()[4:]
        deltas, _ = run([first, second])
        assert [(delta.text, delta.token_ids) for delta in deltas] == [("日", []), ("本", [0, 1])]

    def test_a_character_cut_by_the_token_limit_becomes_a_replacement(self):
        assert texts(["a", "😀".encode()[:3]]) == ["a", "\ufffd"]
        assert texts(["č".encode()[:1]]) == ["\ufffd"]

    def test_invalid_bytes_in_the_middle_become_replacements(self):
        assert texts([b"\xe2\x82", b"A", b"\xff", b"\x80\x80", "é"]) == ["", "\ufffdA", "\ufffd", "\ufffd\ufffd", "é"]

    def test_text_is_kept_exactly(self):
        assert "".join(texts(["\r\n", "\x00", "\u2028", "\ufeff", "  "])) == "\r\n\x00\u2028\ufeff  "


class TestStopStrings:
    def test_no_part_of_one_is_sent_across_tokens(self):
        assert texts(["A", "B", "C", "D", "EF", "G", "HI", "J", "K"], stop=("DEFGHIJ",)) == [
            "A", "B", "C", "", "", "", "", "",
        ]  # fmt: skip

    def test_held_text_is_sent_when_it_turns_out_not_to_match(self):
        assert texts(["A", "D", "E", "X", "D"], stop=("DEF",)) == ["A", "", "", "DEX", "D"]

    def test_the_end_of_what_does_not_match_may_still_begin_a_match(self):
        assert texts(["aab", "a", "abc"], stop=("aabaabc",)) == ["", "", ""]
        assert texts(["aab", "aab", "aabc!"], stop=("aabaabc",)) == ["", "", "aab"]

    def test_a_stop_inside_a_token_cuts_the_token(self):
        deltas, item = run(["one. two", " three"], stop=(". ",))
        assert [(d.text, d.token_ids, d.finish_reason, d.stopped) for d in deltas] == [("one", [0], STOP, ". ")]
        assert item.completion_tokens == 1

    def test_the_one_that_completes_first_wins(self):
        deltas, _ = run(["abcdef"], stop=("bcde", "cd"))
        assert (deltas[0].text, deltas[0].stopped) == ("ab", "cd")

    def test_of_those_that_complete_together_the_one_that_starts_earliest_wins(self):
        deltas, _ = run(["abcdef"], stop=("d", "bcd", "cd"))
        assert (deltas[0].text, deltas[0].stopped) == ("a", "bcd")

    def test_included_exactly_through_the_stop_string(self):
        assert texts(["a", "<", "/s", ">b"], stop=("</s>",), include_stop_str_in_output=True) == ["a", "", "", "</s>"]

    def test_tokens_after_it_do_not_count_even_in_the_same_step(self):
        deltas, item = run(["a", "b", "c", "d"], stop=("b",), per_push=4)
        assert [(delta.text, delta.token_ids) for delta in deltas] == [("a", [0, 1])]
        assert item.completion_tokens == 2
        late = item.push([2, 3], finish_reason=LENGTH)
        assert (late.text, late.token_ids, late.finish_reason) == ("", [], None)
        assert item.completion_tokens == 2

    def test_it_may_span_characters_split_over_tokens(self):
        data = "č😀".encode()
        assert texts(["x", data[:1], data[1:4], data[4:], "y"], stop=("č😀",)) == ["x", "", "", ""]

    def test_the_finish_reason_is_stop_even_at_the_token_limit(self):
        deltas, _ = run(["a", "b"], stop=("b",))
        assert deltas[-1].finish_reason is STOP

    def test_a_replacement_character_at_the_very_end_can_complete_one(self):
        deltas, _ = run(["a", b"\xf0\x9f"], stop=("\ufffd",))
        assert [delta.text for delta in deltas] == ["a", ""]
        assert deltas[-1].stopped == "\ufffd"

    def test_before_min_tokens_it_is_ordinary_text(self):
        deltas, item = run(["x", "STOP", "y", "STOP", "z"], stop=("STOP",), min_tokens=3)
        assert "".join(delta.text for delta in deltas) == "xSTOPy"
        assert item.completion_tokens == 4

    def test_one_that_min_tokens_reaches_into_counts(self):
        assert "".join(texts(["x", "ST", "OP", "z"], stop=("STOP",), min_tokens=3)) == "x"
        assert "".join(texts(["x", "ST", "OP", "z"], stop=("STOP",), min_tokens=4)) == "xSTOPz"

    def test_one_that_overlaps_an_ignored_one_counts(self):
        assert "".join(texts(["aba", "ba", "z"], stop=("aba",), min_tokens=2)) == "ab"


class TestSpecialTokens:
    def test_their_text_is_dropped_but_not_their_ids(self):
        deltas, _ = run(["a", "<x>", "b"], special={1})
        assert [(delta.text, delta.token_ids) for delta in deltas] == [("a", [0]), ("", [1]), ("b", [2])]
        assert texts(["a", "<x>", "b"], special={1}, skip_special_tokens=False) == ["a", "<x>", "b"]

    def test_the_token_that_the_engine_stopped_at_has_no_text(self):
        for special in ((), {1}):
            deltas, item = run(["a", "<end>"], finish=STOP, special=special, skip_special_tokens=False)
            assert [(delta.text, delta.token_ids) for delta in deltas] == [("a", [0]), ("", [1])]
            assert (deltas[-1].finish_reason, deltas[-1].stopped, item.completion_tokens) == (STOP, None, 2)

    def test_unless_stop_strings_are_included(self):
        options = {"include_stop_str_in_output": True, "skip_special_tokens": False}
        assert texts(["a", "<end>"], finish=STOP, **options) == ["a", "<end>"]

    def test_one_between_the_bytes_of_a_character_goes_out_with_it(self):
        data = "é".encode()
        deltas, _ = run([data[:1], "<x>", data[1:]], special={1})
        assert [(delta.text, delta.token_ids) for delta in deltas] == [("", []), ("", []), ("é", [0, 1, 2])]


class TestAlignment:
    def test_logprobs_and_offsets_go_with_their_tokens(self):
        data = "😀".encode()
        item = ItemText(Bytes(["ab", data[:2], data[2:], "c"]), TextOptions())
        rows = [TokenLogprobs.of(-float(n), 1, [n], [-float(n)]) for n in range(4)]
        first = item.push([0, 1], rows[:2])
        rest = item.push([2, 3], rows[2:], LENGTH)
        assert (first.text, first.token_ids, first.logprobs, first.text_offsets) == ("ab", [0], rows[:1], [0])
        assert (rest.text, rest.token_ids, rest.logprobs) == ("😀c", [1, 2, 3], rows[1:])
        assert rest.text_offsets == [2, 2, 3]

    def test_an_item_without_tokens_still_finishes(self):
        deltas, item = run([])
        assert [(delta.text, delta.token_ids, delta.finish_reason) for delta in deltas] == [("", [], LENGTH)]
        assert deltas[0]
        assert item.completion_tokens == 0

    def test_display_of_part_of_a_character(self):
        display = display_token(Bytes([b"\xf0\x9f"]), 0)
        assert (display.text, display.bytes) == ("\ufffd", [0xF0, 0x9F])
        assert display_token(Bytes(["a"]), 0, as_id=True).text == "token_id:0"

    def test_echoed_prompt(self):
        data = "č".encode()
        pieces = ["<s>", "ab", data[:1], data[1:], "c"]
        assert text_with_offsets(Bytes(pieces, {0}), range(5)) == ("abčc", [0, 0, 2, 2, 3])


def test_czech_emoji_and_cjk_through_the_demo_tokenizer():
    path = demo_file()
    tokenizer = load_tokenizer(ResolvedSource(SourceKind.GGUF, path, "demo"))
    text = "Žluťoučký kůň 😀👩‍👩‍👧 pěl 日本語のテスト。 konec"
    item = ItemText(tokenizer, TextOptions(stop=("のテ",)))
    sent, ids = "", tokenizer.encode(text)
    for token in ids:
        delta = item.push([token])
        assert "\ufffd" not in delta.text
        sent += delta.text
    assert sent == text[: text.index("のテ")]
    assert item.ended


def oracle(pieces: list[bytes], stops, include: bool, min_tokens: int) -> tuple[str, str | None, int]:
    """One shot: the whole text, cut at the first match that counts; (text, stop string, tokens that count)."""
    whole = b"".join(pieces).decode("utf-8", errors="replace")
    produced, data = [], b""
    for count, piece in enumerate(pieces, 1):
        data += piece
        produced.append((len(decodable(data)), count))
    produced.append((len(whole), len(pieces)))
    for end in range(1, len(whole) + 1):
        count = next(count for length, count in produced if length >= end)
        matches = [stop for stop in stops if whole[:end].endswith(stop)]
        if matches and count >= min_tokens:
            longest = max(matches, key=len)
            return whole[: end if include else end - len(longest)], longest, count
    return whole, None, len(pieces)


def decodable(data: bytes) -> str:
    """The characters that are certain whatever bytes follow: without a valid beginning of a character at the end."""
    for cut in range(1, min(4, len(data) + 1)):
        try:
            data[-cut:].decode("utf-8")
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and error.start == 0:
                return data[:-cut].decode("utf-8", errors="replace")
    return data.decode("utf-8", errors="replace")


LETTERS = st.text(alphabet="aab<é日😀", max_size=24) | st.text(max_size=12)


@st.composite
def items(draw):
    data = draw(LETTERS.map(str.encode) | st.binary(max_size=12))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=10)))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    whole = data.decode("utf-8", errors="replace")
    inside = st.tuples(st.integers(0, 23), st.integers(1, 6)).map(lambda at: whole[at[0] : at[0] + at[1]])
    stops = draw(st.lists((inside | st.text(alphabet="ab<é日😀", max_size=4)).filter(bool), max_size=4))
    return pieces, tuple(stops)


@settings(max_examples=300, deadline=None)
@given(item=items(), include=st.booleans(), min_tokens=st.integers(0, 6), per_push=st.integers(1, 3))
@example(item=([b"\xf0", b"\x9f\x98", b"\x80"], ("😀",)), include=False, min_tokens=0, per_push=1)
def test_the_joined_stream_is_the_one_shot_text(item, include, min_tokens, per_push):
    pieces, stops = item
    deltas, state = run(
        pieces, per_push=per_push, stop=stops, include_stop_str_in_output=include, min_tokens=min_tokens
    )
    text, stopped, count = oracle(pieces, stops, include, min_tokens)
    assert "".join(delta.text for delta in deltas) == text
    assert (deltas[-1].stopped, state.completion_tokens) == (stopped, count)
    assert [token for delta in deltas for token in delta.token_ids] == list(range(count))
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason is (LENGTH if stopped is None else STOP)


@settings(max_examples=300, deadline=None)
@given(item=items(), per_push=st.integers(1, 3))
def test_a_token_goes_out_with_its_last_character_and_offsets_say_where_it_begins(item, per_push):
    pieces, stops = item
    deltas, _ = run(pieces, per_push=per_push, stop=stops)
    sent = 0
    for delta in deltas[:-1]:
        sent += len(delta.text)
        for token in delta.token_ids:
            assert len(b"".join(pieces[: token + 1]).decode("utf-8", errors="replace")) <= sent
    offsets = [offset for delta in deltas for offset in delta.text_offsets]
    assert offsets == [len(decodable(b"".join(pieces[:token]))) for token in range(len(offsets))]


@settings(max_examples=300, deadline=None)
@given(item=items(), per_push=st.integers(1, 3))
@example(item=([b" a", b" st", b"ar"], (" star",)), per_push=1)
@example(item=([b"x\xe6", b"\x97\xa5a", b"b"], ("ab!",)), per_push=1)
def test_text_waits_for_whole_tokens_where_that_is_asked_for(item, per_push):
    """And is the same in the end."""
    pieces, stops = item
    deltas, _ = run(pieces, per_push=per_push, stop=stops, whole_tokens=True)
    plain, _ = run(pieces, per_push=per_push, stop=stops)
    for delta in deltas[:-1]:
        assert delta.text == b"".join(pieces[token] for token in delta.token_ids).decode("utf-8", errors="replace")
    assert "".join(delta.text for delta in deltas) == "".join(delta.text for delta in plain)
    assert [token for delta in deltas for token in delta.token_ids] == [t for delta in plain for t in delta.token_ids]


@pytest.mark.parametrize("stop", [(), ("a" * 400 + "b", "zz")])
def test_a_token_costs_the_same_however_long_the_text(stop):
    item = ItemText(Bytes(["aaaa"]), TextOptions(stop=stop))

    def spend(tokens: int) -> float:
        started = time.process_time()
        for _ in range(tokens):
            item.push([0])
        return time.process_time() - started

    early = spend(3000)
    spend(20000)
    assert spend(3000) < 5 * early + 0.02
