"""Pairs of texts: as Transformers' own tokenizers join, type and cut them."""

import threading
import time
import warnings
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tenure.errors import CallerError
from tenure.source import ResolvedSource, SourceKind
from tenure.text.pairs import cut, longest_first
from tenure.text.tokenizer import load_tokenizer

WORDS = ["hello", "world", "what", "is", "a", "panda", "the", "bear", "of", "china", "##s"]
TEXTS = [
    "",
    "a",
    "what is a panda",
    "hello world the bear of china " * 3,
    "pandas [SEP] the unknown",
    "Hello, WORLD of 中国 bears",
]


def bert_folder(folder: Path) -> Path:
    """A small tokenizer with BERT's template."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, ","]
    with transformers() as library:
        tokenizer = library.BertTokenizer(vocab={token: number for number, token in enumerate(tokens)})
        tokenizer.save_pretrained(folder)
    return folder


def xlm_r_folder(folder: Path) -> Path:
    """A small tokenizer with XLM-R's template, which has one token type."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *(f"▁{word}" for word in WORDS), "▁", *"abcdefghijklmnop", "<mask>"]
    with transformers() as library:
        tokenizer = library.XLMRobertaTokenizer(vocab=[(piece, -1.0 - number) for number, piece in enumerate(pieces)])
        tokenizer.save_pretrained(folder)
    return folder


class transformers:
    """The library, whose import takes seconds and warns."""

    def __enter__(self):
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("ignore")
        import transformers as library  # noqa: PLC0415

        return library

    def __exit__(self, *error):
        self._warnings.__exit__(*error)


@pytest.fixture(scope="module", params=[bert_folder, xlm_r_folder])
def pair_of_tokenizers(request, tmp_path_factory):
    folder = request.param(tmp_path_factory.mktemp("tokenizer"))
    with transformers() as library:
        other = library.AutoTokenizer.from_pretrained(folder)
    return load_folder(folder), other


def load_folder(folder):
    return load_tokenizer(ResolvedSource(SourceKind.FOLDER, folder, folder.name))


def encode_pair(tokenizer, first, second, limit=None, side="right"):
    """Two texts as one sequence of at most `limit` tokens, and how many of its first tokens have token type 0."""
    one, two = tokenizer.encode_plain([first, second])
    if limit is not None:
        for_one, for_two = longest_first(len(one), len(two), limit - tokenizer.pair_template.special_tokens)
        one, two = cut(one, for_one, side), cut(two, for_two, side)
    return tokenizer.pair_template.join(one, two)


def typed(ids, first_segment):
    return [int(place >= first_segment > 0) for place in range(len(ids))]


def test_the_same_ids_and_types_as_transformers(pair_of_tokenizers):
    own, other = pair_of_tokenizers
    for first in TEXTS:
        for second in TEXTS:
            ids, first_segment = encode_pair(own, first, second)
            expected = other([first], [second], return_token_type_ids=True)  # alone, an empty text would be no text
            assert ids == expected["input_ids"][0], (first, second)
            assert typed(ids, first_segment) == expected["token_type_ids"][0], (first, second)


@pytest.mark.parametrize("side", ["left", "right"])
def test_cut_as_transformers_cuts(pair_of_tokenizers, side):
    own, other = pair_of_tokenizers
    other.truncation_side = side
    special = own.pair_template.special_tokens
    for first in TEXTS:
        for second in TEXTS:
            for limit in range(special, special + 14):
                ids, first_segment = encode_pair(own, first, second, limit, side)
                options = {"truncation": "longest_first", "max_length": limit, "return_token_type_ids": True}
                expected = other([first], [second], **options)
                assert ids == expected["input_ids"][0], (first, second, limit)
                assert typed(ids, first_segment) == expected["token_type_ids"][0], (first, second, limit)


def test_the_shapes_that_are_known(tmp_path):
    bert, xlm_r = load_folder(bert_folder(tmp_path / "bert")), load_folder(xlm_r_folder(tmp_path / "xlm-r"))
    ids, first_segment = encode_pair(bert, "hello world", "panda")
    assert [bert.token_piece(token) for token in ids] == ["[CLS]", "hello", "world", "[SEP]", "panda", "[SEP]"]
    assert first_segment == 4
    ids, first_segment = encode_pair(xlm_r, "hello", "panda")
    assert [xlm_r.token_piece(token) for token in ids] == ["<s>", "▁hello", "</s>", "</s>", "▁panda", "</s>"]
    assert first_segment == 0, "one token type for all"


def test_a_tokenizer_without_a_rule_for_pairs_puts_them_together(tmp_path):
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<s>": 2, "?": 3}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    assert encode_pair(load_folder(tmp_path), "a a", "b")[0] == [0, 0, 1]
    backend.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B:1", [("<s>", 2)])
    backend.save(str(tmp_path / "tokenizer.json"))
    assert encode_pair(load_folder(tmp_path), "a a", "b") == ([2, 0, 0, 2, 1], 4)


def test_a_text_that_is_no_unicode_is_refused(tmp_path):
    with pytest.raises(CallerError, match="surrogate"):
        load_folder(bert_folder(tmp_path)).encode_plain(["hello", "\ud800"])


@pytest.mark.parametrize(
    ("lengths", "kept"),
    [
        ((3, 4), (3, 4)),
        ((3, 40), (3, 7)),
        ((40, 3), (7, 3)),
        ((40, 50), (5, 5)),
        ((0, 11), (0, 10)),
        ((11, 0), (10, 0)),
    ],
)
def test_the_longer_text_gives_way(lengths, kept):
    assert longest_first(*lengths, 10) == kept
    assert sum(longest_first(*lengths, 9)) == min(9, sum(lengths))


def test_other_threads_run_while_many_texts_are_encoded(tmp_path):
    bert = load_folder(bert_folder(tmp_path))
    texts = ["hello world the bear of china " * 400] * 100
    worker = threading.Thread(target=bert.encode_plain, args=(texts,))
    worker.start()
    turns = 0
    while worker.is_alive():
        time.sleep(0)
        turns += 1
    worker.join()
    assert turns > 100, "this thread hardly had a turn"
