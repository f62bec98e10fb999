"""What a tokenizer puts around a text, learned from the tokenizer itself."""

import pytest
from tokenizers import Tokenizer, models, processors

from tenure.text.special_tokens import Frame, read_frame

VOCABULARY = {"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "a": 3, "b": 4}


def backend(processor=None, model=None) -> Tokenizer:
    found = Tokenizer(model or models.WordLevel(VOCABULARY, unk_token="[UNK]"))
    if processor is not None:
        found.post_processor = processor
    return found


def template(single: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(single=single, special_tokens=[("[CLS]", 0), ("[SEP]", 1)])


@pytest.mark.parametrize(
    ("processor", "frame"),
    [
        (None, Frame()),
        (processors.BertProcessing(("[SEP]", 1), ("[CLS]", 0)), Frame((0,), (1,))),
        (processors.RobertaProcessing(("[SEP]", 1), ("[CLS]", 0)), Frame((0,), (1,))),
        (template("[CLS] $A"), Frame((0,), ())),
        (template("$A [SEP]"), Frame((), (1,))),
        (template("[CLS] [CLS] $A [SEP]"), Frame((0, 0), (1,))),
    ],
)
def test_the_frame_is_what_the_tokenizer_adds(processor, frame):
    tokenizer = backend(processor)
    assert read_frame(tokenizer) == frame
    assert frame.around([4]) == tokenizer.encode("b").ids
    assert frame.size == len(tokenizer.encode("b").ids) - 1


def test_a_vocabulary_without_letters_is_asked_for_a_piece_of_its_own():
    tokenizer = backend(template("[CLS] $A [SEP]"), models.BPE({"[CLS]": 0, "[SEP]": 1, "q": 2}, []))
    assert read_frame(tokenizer) == Frame((0,), (1,))


def test_a_tokenizer_that_makes_nothing_of_anything_has_a_frame_all_the_same():
    assert read_frame(backend(template("[CLS] $A [SEP]"), models.BPE({"[CLS]": 0, "[SEP]": 1}, []))).size == 2


def test_inside_takes_the_frame_off_where_there_is_one():
    frame = Frame((0,), (1,))
    assert frame.inside([0, 5, 6, 1]) == [5, 6]
    assert frame.inside([0, 1]) == []
    assert [frame.inside(ids) for ids in ([0], [1], [], [0, 5], [5, 1])] == [None] * 5
    assert Frame().inside([5]) == [5]
