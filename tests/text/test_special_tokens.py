"""What a tokenizer puts around a text, learned from the tokenizer itself."""

import pytest
from tokenizers import Tokenizer, models, processors

from tenure.text.special_tokens import SpecialTokens, read_special_tokens

VOCABULARY = {"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "a": 3, "b": 4}


def backend(processor=None, model=None) -> Tokenizer:
    found = Tokenizer(model or models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    if processor is not None:
        found.post_processor = processor
    return found


def template(single: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(single=single, special_tokens=[("[CLS]", 0), ("[SEP]", 1)])


@pytest.mark.parametrize(
    ("processor", "special"),
    [
        (None, SpecialTokens()),
        (processors.BertProcessing(("[SEP]", 1), ("[CLS]", 0)), SpecialTokens((0,), (1,))),
        (processors.RobertaProcessing(("[SEP]", 1), ("[CLS]", 0)), SpecialTokens((0,), (1,))),
        (template("[CLS] $A"), SpecialTokens((0,), ())),
        (template("$A [SEP]"), SpecialTokens((), (1,))),
        (template("[CLS] [CLS] $A [SEP]"), SpecialTokens((0, 0), (1,))),
    ],
)
def test_the_frame_is_what_the_tokenizer_adds(processor, special):
    tokenizer = backend(processor)
    assert read_special_tokens(tokenizer) == special
    assert special.around([4]) == tokenizer.encode("b").ids
    assert special.size == len(tokenizer.encode("b").ids) - 1


class WithoutCopies:
    """A tokenizer of so many tokens that nobody copies them while others wait."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.encode, self.post_process = tokenizer.encode, tokenizer.post_process

    def get_vocab(self):
        raise AssertionError("copied")


def test_the_vocabulary_is_not_copied_where_a_letter_will_do():
    assert read_special_tokens(WithoutCopies(backend(template("[CLS] $A")))) == SpecialTokens((0,), ())


def test_a_vocabulary_without_letters_is_asked_for_a_piece_of_its_own():
    tokenizer = backend(template("[CLS] $A [SEP]"), models.BPE({"[CLS]": 0, "[SEP]": 1, "q": 2}, []))
    assert read_special_tokens(tokenizer) == SpecialTokens((0,), (1,))


def test_a_tokenizer_that_makes_nothing_of_anything_has_a_frame_all_the_same():
    assert read_special_tokens(backend(template("[CLS] $A [SEP]"), models.BPE({"[CLS]": 0, "[SEP]": 1}, []))).size == 2


def test_inside_takes_the_frame_off_where_there_is_one():
    special = SpecialTokens((0,), (1,))
    assert special.inside([0, 5, 6, 1]) == [5, 6]
    assert special.inside([0, 1]) == []
    assert [special.inside(ids) for ids in ([0], [1], [], [0, 5], [5, 1])] == [None] * 5
    assert SpecialTokens().inside([5]) == [5]
