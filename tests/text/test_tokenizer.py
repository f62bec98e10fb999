"""Tokenizers: ids of hand-checked texts, agreement with independent implementations, exact bytes, broken models."""

import json
import re
import warnings
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from tenure.checkpoints.tokens import token_ids
from tenure.errors import CallerError, ResourceError
from tenure.prompts.chat_template import ChatTemplate
from tenure.source import ResolvedSource, SourceKind
from tenure.text.tokenizer import load_tokenizer
from tenure.text.vocabulary import BYTE_OF_CHARACTER
from tests.text.gguf_samples import (
    SENTENCEPIECE_TOKENS,
    SENTENCEPIECE_WORDS,
    byte_level_file,
    demo_file,
    sentencepiece_file,
    small_file,
)


def load_gguf(path):
    return load_tokenizer(ResolvedSource(SourceKind.GGUF, path, path.stem))


def load_folder(path):
    return load_tokenizer(ResolvedSource(SourceKind.FOLDER, path, path.name))


@pytest.fixture(scope="module")
def demo():
    return load_gguf(demo_file())


class TestDemoModel:
    def test_ids_checked_by_hand(self, demo):
        tokens = [demo.token_piece(token) for token in demo.encode("It's 2024: hello<|im_end|>\n")]
        assert tokens == ["It", "'s", "Ġ", "2", "0", "2", "4", ":", "Ġhello", "<|im_end|>", "Ċ"]
        # A digit of any script is a word of its own: the space before it stays alone.
        assert demo.encode("½ ٣٤") == [16738, 216, 164, 113, 164, 114]

    def test_special_tokens(self, demo):
        assert (demo.bos_token_id, demo.eos_token_ids) == (1, (2,))
        assert [bool(demo.token_piece(token)) for token in (49151, 49152)] == [True, False]
        assert demo.encode("hi", add_special_tokens=True) == demo.encode("hi", add_special_tokens=False)
        assert [demo.is_special(token) for token in (0, 2, 16, 17)] == [True, True, True, False]
        assert demo.token_bytes(2) == b"<|im_end|>"
        assert demo.template_variables == {
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
        }
        assert "<|im_start|>assistant" in demo.chat_template
        ids = demo.encode("a<|im_end|>b")
        assert demo.decode(ids) == "ab"
        assert demo.decode(ids, skip_special_tokens=False) == "a<|im_end|>b"

    def test_same_ids_as_transformers(self, demo):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from transformers import AutoTokenizer  # noqa: PLC0415 (takes seconds)

            path = demo_file()
            other = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        texts = [
            "Příliš žluťoučký kůň úpěl ďábelské ódy.",
            "日本語のテスト。한국어 emoji 👩‍👩‍👧 😀",
            "  leading,   inner\t\ttabs\r\n\r\nand trailing  ",
            "def f(x):\n    return x**2 + 3.14159e-10  # comment",
            "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
            "it'S they'll I'VE x1y22z333 1,234,567",
            "\x00\x01\x7f\u200b\ufeff",
        ]
        for text in texts:
            assert demo.encode(text) == other.encode(text, add_special_tokens=False), text

    @settings(max_examples=150, deadline=None)
    @given(
        text=st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"]) | st.just("\n"), max_size=60)
    )
    def test_bytes_of_the_tokens_are_the_bytes_of_the_text(self, demo, text):
        ids = demo.encode(text)
        assert b"".join(map(demo.token_bytes, ids)) == text.encode()
        assert demo.decode(ids, skip_special_tokens=False) == text

    def test_bytes_that_the_vocabulary_lacks_are_dropped_as_by_its_authors(self, demo):
        assert demo.encode("a\x04b") == demo.encode("a") + demo.encode("b")

    def test_ids_without_a_token_stand_for_nothing(self, demo):
        assert [demo.token_bytes(token) for token in (-1, 49152, 1 << 70)] == [b"", b"", b""]
        assert demo.decode([*demo.encode("a"), 60000, -5]) == "a"

    def test_a_long_text_has_the_ids_of_its_lines(self, demo):
        lines = ["Hello wörld 😀\n"] * 500
        assert demo.encode("".join(lines)) == demo.encode(lines[0]) * 500

    def test_a_lone_surrogate_is_the_callers_error(self, demo):
        with pytest.raises(CallerError, match="surrogate"):
            demo.encode("a\ud800")


DIGITS = ["1 2", "12 3", "123 4"]


class TestPreTokenizers:
    @pytest.mark.parametrize(
        ("pre", "text", "pieces"),
        [
            ("smollm", "12345", ["1", "2", "3", "4", "5"]),
            ("qwen2", "12345", ["1", "2", "3", "4", "5"]),
            ("gpt-2", "12345", ["1234", "5"]),
            ("llama-bpe", "12345", ["123", "4", "5"]),
            (None, "12345", ["123", "4", "5"]),
            # Llama 3 and Qwen 2 join punctuation with the newlines after it, and know contractions in capitals.
            ("smollm", "!\nIT'S", ["!", "Ċ", "I", "T", "'", "S"]),
            ("gpt-2", "!\nIT'S", ["!", "Ċ", "I", "T", "'", "S"]),
            ("qwen2", "!\nIT'S", ["!Ċ", "I", "T", "'S"]),
            ("llama-bpe", "!\nIT'S", ["!Ċ", "I", "T", "'S"]),
            # The default cuts before and after any punctuation, also where GPT-2 would join a space with it.
            ("gpt-2", "a !", ["a", "Ġ!"]),
            ("default", "a !", ["a", "Ġ", "!"]),
            # A word that is in the vocabulary needs no merges in Llama 3.
            ("llama-bpe", "xyz", ["xyz"]),
            ("qwen2", "xyz", ["x", "y", "z"]),
            # Qwen 2 composes characters first.
            ("qwen2", "e\u0301", ["Ã©"]),
            ("llama-bpe", "e\u0301", ["e", "Ì", "ģ"]),
        ],
    )
    def test_pieces_checked_by_hand(self, tmp_path, pre, text, pieces):
        merges = [*DIGITS, "! Ċ", "' S", "Ġ !", "Ã ©"]
        path = byte_level_file(tmp_path / "model.gguf", pre, merges, extra=("xyz",), add_bos_token=False)
        tokenizer = load_gguf(path)
        assert [tokenizer.token_piece(token) for token in tokenizer.encode(text)] == pieces

    def test_begin_and_end_tokens_come_as_the_file_says(self, tmp_path):
        def ids(name, pre, **keys):
            tokenizer = load_gguf(byte_level_file(tmp_path / name, pre, DIGITS, **keys))
            return [tokenizer.token_text(token) for token in tokenizer.encode("a")]

        assert ids("1", "gpt-2") == ["a"]
        assert ids("2", "llama-bpe") == ["<|begin|>", "a"]
        assert ids("3", "llama-bpe", add_bos_token=False) == ["a"]
        assert ids("4", "smollm", add_bos_token=True, add_eos_token=True) == ["<|begin|>", "a", "<|end|>"]

    def test_templates_get_the_special_tokens_that_are_named(self, tmp_path):
        path = byte_level_file(tmp_path / "m", "gpt-2", DIGITS, extra=("<pad>",), padding_token_id=261)
        assert load_gguf(path).template_variables == {
            "bos_token": "<|begin|>",
            "eos_token": "<|end|>",
            "pad_token": "<pad>",
        }

    def test_entries_that_fill_up_the_vocabulary_are_no_tokens(self, tmp_path):
        path = byte_level_file(tmp_path / "m", "gpt-2", DIGITS, extra=("[PAD261]", "<|more|>"), types={261: 5})
        assert load_gguf(path).without_token == {261}
        assert token_ids(ResolvedSource(SourceKind.GGUF, path, "m")) == set(range(263)) - {261}

    def test_all_marked_ends_are_ends(self, tmp_path):
        tokenizer = load_gguf(byte_level_file(tmp_path / "m", "gpt-2", DIGITS, extra=("<|eot|>",), eot_token_id=261))
        assert tokenizer.eos_token_ids == (1, 261)
        assert tokenizer.token_text(261) == "<|eot|>"
        assert tokenizer.is_special(261)


def reference_pieces(text: str) -> list[str]:
    """SentencePiece's rule, written naively: join the neighbours whose union scores best until none can be joined."""
    score = {word: -index for index, word in enumerate(SENTENCEPIECE_TOKENS[259:])}
    symbols = list(text.replace(" ", "▁"))
    symbols = ["▁", *symbols] if symbols else []
    while True:
        unions = [(score[a + b], -i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in score]
        if not unions:
            break
        at = -max(unions)[1]
        symbols[at : at + 2] = ["".join(symbols[at : at + 2])]
    known = set(SENTENCEPIECE_TOKENS)
    return [piece for s in symbols for piece in ([s] if s in known else [f"<0x{b:02X}>" for b in s.encode()])]


class TestSentencePiece:
    def test_pieces_checked_by_hand(self, tmp_path):
        tokenizer = load_gguf(sentencepiece_file(tmp_path / "m"))
        assert "▁the" in SENTENCEPIECE_WORDS
        ids = tokenizer.encode("the kingč")
        assert [tokenizer.token_piece(token) for token in ids] == ["<s>", "▁the", "▁king", "<0xC4>", "<0x8D>"]
        assert [tokenizer.token_bytes(token) for token in ids] == [b"<s>", b" the", b" king", b"\xc4", b"\x8d"]
        assert tokenizer.decode(ids) == "the kingč"
        assert tokenizer.eos_token_ids == (2,)
        assert tokenizer.is_special(0)

    def test_no_space_in_front_when_the_file_says_so(self, tmp_path):
        tokenizer = load_gguf(sentencepiece_file(tmp_path / "m", add_space_prefix=False, add_bos_token=False))
        ids = tokenizer.encode("the")
        assert b"".join(map(tokenizer.token_bytes, ids)) == b"the"
        assert tokenizer.decode(ids) == "the"

    def test_text_after_a_special_token_starts_anew(self, tmp_path):
        tokenizer = load_gguf(sentencepiece_file(tmp_path / "m", add_bos_token=False))
        assert [tokenizer.token_piece(token) for token in tokenizer.encode("the</s>the")] == ["▁the", "</s>", "▁the"]

    @settings(max_examples=100, deadline=None)
    @given(text=st.text(alphabet="the ingkž", max_size=30))
    def test_agrees_with_the_naive_rule(self, tmp_path_factory, text):
        path = tmp_path_factory.getbasetemp() / "sentencepiece.gguf"
        tokenizer = load_gguf(path if path.exists() else sentencepiece_file(path, add_bos_token=False))
        ids = tokenizer.encode(text)
        assert [tokenizer.token_piece(token) for token in ids] == reference_pieces(text)
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"pre": "ignore_progress-of"}, "pre-tokenizer 'ignore_progress-of' is not supported"),
        ({"merges": ["a"]}, "vocabulary is inconsistent"),
        ({"merges": []}, "merges is missing"),
        ({"eot_token_id": 99999}, "eot_token_id is 99999"),
        ({"tokenizer_model": "t5"}, "tokenizers of kind 't5' are not supported"),
        ({"tokenizer_model": "llama"}, "scores is missing"),
        ({"add_bos_token": 1}, "add_bos_token"),
    ],
)
def test_a_gguf_vocabulary_that_cannot_be_served_is_refused_by_name(tmp_path, change, complaint):
    path = byte_level_file(tmp_path / "model.gguf", **({"pre": "gpt-2", "merges": DIGITS} | change))
    with pytest.raises(ResourceError, match=re.escape(complaint)) as refusal:
        load_gguf(path)
    assert str(path) in str(refusal.value)


def test_a_gguf_file_without_a_vocabulary_is_refused(tmp_path):
    with pytest.raises(ResourceError, match="tokens is missing"):
        load_gguf(small_file(tmp_path / "model.gguf"))


def save_folder(folder, *, special_end=True, config=None, **files):
    """A byte-level tokenizer with <s> and </s>, and the given JSON files."""
    folder.mkdir(exist_ok=True)
    backend = Tokenizer(models.BPE({letter: index for index, letter in enumerate(BYTE_OF_CHARACTER)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>")])
    backend.add_tokens([AddedToken("</s>", special=special_end), AddedToken("naïve ")])
    backend.enable_truncation(3)
    backend.enable_padding(length=8)
    backend.save(str(folder / "tokenizer.json"))
    for name, content in {"tokenizer_config": config or {}, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


class TestFolder:
    def test_everything_is_read_from_its_file(self, tmp_path):
        config = {
            "bos_token": {"content": "<s>", "lstrip": False},
            "eos_token": "</s>",
            "chat_template": "TEMPLATE",
            "truncation_side": "left",
            "some_other_key": [1, 2],
        }
        folder = save_folder(tmp_path / "m", config=config, generation_config={"eos_token_id": [257, 65]})
        tokenizer = load_folder(folder)
        assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (256, (257, 65))
        assert (tokenizer.chat_template, tokenizer.truncation_side) == ("TEMPLATE", "left")
        assert [bool(tokenizer.token_piece(token)) for token in (258, 259)] == [True, False]
        (folder / "chat_template.jinja").write_text("FROM FILE")
        assert load_folder(folder).chat_template == "FROM FILE"

    def test_neither_truncates_nor_pads(self, tmp_path):
        tokenizer = load_folder(save_folder(tmp_path / "m"))
        assert tokenizer.decode(tokenizer.encode("longer than three")) == "longer than three"
        assert len(tokenizer.encode("ab")) == 2

    def test_bytes_of_added_tokens_are_their_text(self, tmp_path):
        tokenizer = load_folder(save_folder(tmp_path / "m"))
        ids = tokenizer.encode("naïve č<s>")
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == "naïve č<s>"
        assert [tokenizer.is_special(token) for token in (256, 257, 258)] == [True, True, False]

    def test_ends_of_the_model_configuration_count_when_generation_names_none(self, tmp_path):
        folder = save_folder(tmp_path / "m", config={"eos_token": "</s>"}, special_end=False)
        (folder / "config.json").write_text(json.dumps({"eos_token_id": 7, "bos_token_id": 256}))
        tokenizer = load_folder(folder)
        assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (256, (257, 7))
        assert tokenizer.is_special(257)
        assert tokenizer.decode([*tokenizer.encode("a"), 257]) == "a"

    def test_tokens_that_only_the_configuration_knows_are_added(self, tmp_path):
        entry = {"content": "<new>", "special": True}
        tokenizer = load_folder(save_folder(tmp_path / "m", config={"added_tokens_decoder": {"259": entry}}))
        assert tokenizer.encode("<new>") == [259]
        assert tokenizer.is_special(259)
        with pytest.raises(ResourceError, match="<new>"):
            load_folder(save_folder(tmp_path / "n", config={"added_tokens_decoder": {"999": entry}}))

    def test_ids_that_no_file_names_stand_for_nothing(self, tmp_path):
        folder = save_folder(tmp_path / "m")
        saved = json.loads((folder / "tokenizer.json").read_text())
        saved["model"]["vocab"]["far"] = 300
        saved["added_tokens"] = []
        (folder / "tokenizer.json").write_text(json.dumps(saved))
        tokenizer = load_folder(folder)
        assert tokenizer.without_token == frozenset(range(256, 300))
        assert tokenizer.token_piece(300) == "far"

    @pytest.mark.parametrize(
        ("kind", "asked", "around"),
        [
            ("LlamaTokenizer", {"add_eos_token": True}, ("<s>", "</s>")),
            ("LlamaTokenizerFast", {"add_bos_token": False, "add_eos_token": True}, ("", "</s>")),
            ("LlamaTokenizer", {"add_bos_token": False}, ("", "")),
            ("PreTrainedTokenizerFast", {"add_eos_token": True}, ("<s>", "</s>")),
            # Qwen's say so beside a tokenizer.json that adds what it means to add.
            ("Qwen2Tokenizer", {"add_bos_token": False, "add_eos_token": False}, ("<s>", "")),
            ("LlamaTokenizer", {}, ("<s>", "")),
        ],
    )
    def test_begin_and_end_tokens_come_as_the_configuration_asks(self, tmp_path, kind, asked, around):
        config = {"tokenizer_class": kind, "bos_token": "<s>", "eos_token": "</s>", **asked}
        folder = save_folder(tmp_path / "m", config=config)
        backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
        backend.post_processor = TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 256)])
        backend.save(str(folder / "tokenizer.json"))
        tokenizer = load_folder(folder)
        begin, end = around
        assert tokenizer.decode(tokenizer.encode("ab"), skip_special_tokens=False) == f"{begin}ab{end}"
        assert tokenizer.special_tokens.around(tokenizer.encode_plain(["ab"])[0]) == tokenizer.encode("ab")

    def test_templates_get_the_special_tokens_that_are_named(self, tmp_path):
        config = {"eos_token": "</s>", "pad_token": {"content": "<pad>"}, "cls_token": None}
        older = {"pad_token": "<other>", "unk_token": "<unk>", "cls_token": "a", "bos_token": {"content": "<s>"}}
        tokenizer = load_folder(save_folder(tmp_path / "m", config=config, special_tokens_map=older))
        expected = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>"}
        assert tokenizer.template_variables == expected
        assert ChatTemplate("{{ pad_token }}{{ unk_token }}", expected).render([]) == "<pad><unk>"

    def test_of_named_templates_the_default_is_taken(self, tmp_path):
        named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
        assert load_folder(save_folder(tmp_path / "m", config={"chat_template": named})).chat_template == "D"

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("tokenizer.json", "{"),
            ("tokenizer.json", "{}"),
            ("tokenizer_config.json", '{"truncation_side": "up"}'),
            ("generation_config.json", '{"eos_token_id": "x"}'),
        ],
    )
    def test_a_broken_file_is_refused_by_name(self, tmp_path, name, content):
        folder = save_folder(tmp_path / "m")
        (folder / name).write_text(content)
        with pytest.raises(ResourceError, match=re.escape(str(folder / name))):
            load_folder(folder)

    def test_a_folder_without_a_tokenizer_is_refused(self, tmp_path):
        with pytest.raises(ResourceError, match=r"no tokenizer\.json"):
            load_folder(tmp_path)
