"""Long texts in pieces: the same tokens as at once, whatever the tokenizer makes of spaces; and an end at any time."""

import random

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from tenure.errors import CallerError
from tenure.source import ResolvedSource, SourceKind
from tenure.text.splitting import LONGEST_PIECE, PIECE_CHARACTERS, has_tokens_across_spaces, split_text
from tenure.text.tokenizer import load_tokenizer
from tests.text.gguf_samples import demo_file

WORDS = ["the", "quick", "fox's", "don't", "123,456.78", "naïve", "日本", "😀", "a\tb", "\n", "", "end.", "(x)", "<s>"]
LETTERS = sorted(set("".join(WORDS)) | set("▁ xy"))


def word_piece() -> Tokenizer:
    vocabulary = ["[UNK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "the", "qu", "##ick", "end"]
    backend = Tokenizer(models.WordPiece({token: i for i, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return backend


def unigram() -> Tokenizer:
    entries = [
        ("<unk>", 0.0),
        *((letter, -5.0) for letter in LETTERS),
        ("▁the", -1.0),
        ("▁quick", -1.5),
        ("▁end", -2.0),
    ]
    backend = Tokenizer(models.Unigram(entries, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    return backend


def sentence_piece(*more: tuple[str, str]) -> Tokenizer:
    """As Llama's: the text is one word, with a space ahead. `more` are merges."""
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "x"), ("▁", "▁"), *more]
    vocabulary = dict.fromkeys(["<unk>", *LETTERS, *("".join(merge) for merge in merges)])
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, merges, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return backend


TOKENIZERS = {
    "word_piece": word_piece(),
    "unigram": unigram(),
    "sentence_piece": sentence_piece(),
    "across_spaces": sentence_piece(("▁x", "▁x")),
}


def long_texts() -> list[str]:
    draw = random.Random(1)
    return [
        " ".join(draw.choices(WORDS, k=16_000)),
        "x " * PIECE_CHARACTERS,
        "the\n" * 20_000,
        "the  quick   fox  " * 4_000,
        "。\n".join("日本" * 10 for _ in range(3_000)),
    ]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_tokens_are_those_of_the_whole(name):
    backend = TOKENIZERS[name]
    may_cut = not has_tokens_across_spaces(backend.get_vocab())
    assert may_cut == (name != "across_spaces")

    def encode(text):
        return backend.encode(text, add_special_tokens=False).ids

    for text in long_texts():
        found = list(split_text(text, encode, may_cut=may_cut))
        assert [token for piece in found for token in encode(piece)] == encode(text)
        if may_cut and text.count(" ") > len(text) // 20:
            assert all(len(piece) <= PIECE_CHARACTERS for piece in found)


@pytest.fixture(scope="module")
def demo():
    return load_tokenizer(ResolvedSource(SourceKind.GGUF, demo_file(), "demo"))


def test_the_demo_model_reads_long_texts_as_at_once(demo):
    backend = demo._vocabulary.backend
    for text in long_texts():
        assert demo.encode(text) == backend.encode(text).ids
        assert demo.encode_plain(["a", text]) == [backend.encode(part).ids for part in ("a", text)]


def test_whoever_waits_may_give_up_in_the_middle(demo):
    looks = []

    def between():
        looks.append(1)
        if len(looks) == 2:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        demo.encode("the quick fox " * 100_000, between=between)
    looks.clear()
    with pytest.raises(InterruptedError):
        demo.encode_plain(["the quick fox " * 100_000], between)


def test_a_text_that_cannot_be_cut_is_read_whole_up_to_a_limit(demo):
    text = "x" * (PIECE_CHARACTERS * 2)
    assert demo.encode(text) == demo._vocabulary.backend.encode(text).ids
    for call in (demo.encode, lambda text: demo.encode_plain([text])):
        with pytest.raises(CallerError, match="without a space"):
            call("x" * (LONGEST_PIECE * 2))
