"""Build a tokenizer from the metadata of a GGUF file.

Two kinds of vocabulary are understood: byte-level BPE (`gpt2`, whose pre-tokenizer is named by
`tokenizer.ggml.pre`) and SentencePiece BPE with scores and byte fallback (`llama`).

Ids are those of the model's original tokenizer. End tokens are the ones that the metadata marks: `eos`, `eot` and
`eom`; tokens that merely look like an end, by their name, are not. In SmolLM2 this makes <|im_end|> the only end.
Bytes for which a byte-level vocabulary has no token are dropped, as the original tokenizers do.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tenure.checkpoints.gguf import Value
from tenure.errors import ResourceError
from tenure.text.special_tokens import SpecialTokens, set_special_tokens
from tenure.text.vocabulary import Coding, Vocabulary

# Templates' name of a special token, and the metadata's.
_NAMED = (("unk", "unknown"), ("sep", "seperator"), ("pad", "padding"), ("cls", "cls"), ("mask", "mask"))
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


class _Fields(msgspec.Struct, rename=lambda name: name if name == "chat_template" else f"ggml.{name}"):
    """The `tokenizer.*` keys that matter here."""

    tokens: list[str] = []
    token_type: list[int] | None = None
    scores: list[float] | None = None
    merges: list[str] | None = None
    model: str | None = None
    pre: str = "default"
    add_bos_token: bool | None = None
    add_eos_token: bool = False
    add_space_prefix: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    eot_token_id: int | None = None
    eom_token_id: int | None = None
    unknown_token_id: int | None = None
    seperator_token_id: int | None = None
    padding_token_id: int | None = None
    cls_token_id: int | None = None
    mask_token_id: int | None = None
    chat_template: str | None = None

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError("tokenizer.ggml.tokens is missing or empty")
        for key in self.__struct_fields__:
            value = getattr(self, key)
            if key.endswith("_token_id") and value is not None and not 0 <= value < len(self.tokens):
                raise ValueError(f"tokenizer.ggml.{key} is {value}, not one of the {len(self.tokens)} tokens")

    def listed(self, key: str) -> list[Any]:
        """An array with an entry for each token."""
        values: list[Any] | None = getattr(self, key)
        if values is None or len(values) != len(self.tokens):
            raise ValueError(
                f"tokenizer.ggml.{key} is missing or has not {len(self.tokens)} entries, one for each token"
            )
        return values


def read_vocabulary(metadata: Mapping[str, Value], name: str) -> Vocabulary:
    """The vocabulary in a GGUF file's metadata; `name` is the file, for messages. Raises ResourceError."""
    keys = [key for key in (f"tokenizer.{field}" for field in _Fields.__struct_encode_fields__) if key in metadata]
    try:
        fields = msgspec.convert({key.removeprefix("tokenizer."): metadata[key] for key in keys}, _Fields)
        return _vocabulary(fields)
    except (ValueError, msgspec.ValidationError) as error:
        raise ResourceError(f"{name}: {error}") from error


def _vocabulary(fields: _Fields) -> Vocabulary:
    tokens = fields.tokens
    types = [NORMAL] * len(tokens) if fields.token_type is None else fields.listed("token_type")
    if fields.model not in ("gpt2", "llama"):
        raise ValueError(f"tokenizers of kind {fields.model!r} are not supported (supported: gpt2, llama)")
    byte_level = fields.model == "gpt2"
    try:
        backend = (_byte_level if byte_level else _sentencepiece)(fields)
    except ValueError:
        raise
    except Exception as error:  # the tokenizers library raises plain Exception for a bad vocabulary
        raise ValueError(f"its vocabulary is inconsistent: {error}") from error
    ends = (fields.eos_token_id, fields.eot_token_id, fields.eom_token_id)
    eos_token_ids = tuple(dict.fromkeys(end for end in ends if end is not None))
    special_ids = {index for index, kind in enumerate(types) if kind in (CONTROL, UNKNOWN)} | set(eos_token_ids)
    if fields.bos_token_id is not None:
        special_ids.add(fields.bos_token_id)
    backend.add_special_tokens([AddedToken(tokens[index], normalized=False) for index in sorted(special_ids)])
    defined = [index for index, kind in enumerate(types) if kind == USER_DEFINED and index not in special_ids]
    backend.add_tokens([AddedToken(tokens[index], normalized=False) for index in defined])
    _add_special_tokens(fields, backend)
    named = {f"{name}_token": getattr(fields, f"{key}_token_id") for name, key in _NAMED}
    return Vocabulary(
        backend=backend,
        coding=Coding.BYTE_LEVEL if byte_level else Coding.SENTENCEPIECE,
        size=len(tokens),
        without_token=frozenset(index for index, kind in enumerate(types) if kind == UNUSED),
        added_ids=frozenset(special_ids | set(defined)),
        special_ids=frozenset(special_ids),
        named_tokens={name: tokens[index] for name, index in named.items() if index is not None},
        bos_token_id=fields.bos_token_id,
        eos_token_ids=eos_token_ids,
        chat_template=fields.chat_template,
    )


def _byte_level(fields: _Fields) -> Tokenizer:
    splitter = _PRE_TOKENIZERS.get(fields.pre or "default")
    if splitter is None:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise ValueError(f"the pre-tokenizer {fields.pre!r} is not supported (supported: {known})")
    if fields.merges is None:
        raise ValueError("tokenizer.ggml.merges is missing")
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in fields.merges)]
    vocabulary = {token: index for index, token in enumerate(fields.tokens)}
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=fields.pre in _LLAMA3_NAMES))
    if fields.pre in _QWEN2_NAMES:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(fields: _Fields) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(fields.tokens)}
    unknown = fields.unknown_token_id
    model = models.BPE(
        vocabulary,
        _merges_by_score(vocabulary, fields.listed("scores")),
        unk_token=None if unknown is None else fields.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.normalizer = normalizers.Replace(" ", "▁")
    if fields.add_space_prefix:
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), backend.normalizer])
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    return backend


def _merges_by_score(vocabulary: Mapping[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece joins the neighbours whose union scores best; as ranked merges: all splits, best union first.

    Of the splits of one union the longest left part comes first, as in the tokenizers converted by Transformers.
    """
    ranked: list[tuple[float, int, str, str]] = []
    for token, index in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-scores[index], -cut, left, right))
    ranked.sort()
    return [(left, right) for _, _, left, right in ranked]


def _add_special_tokens(fields: _Fields, backend: Tokenizer) -> None:
    """Have `encode` add the begin and end tokens that the metadata asks for."""
    begins = fields.add_bos_token
    if begins is None:
        begins = fields.model == "llama" or fields.pre in _LLAMA3_NAMES
    wanted = []
    for asked, token in ((begins, fields.bos_token_id), (fields.add_eos_token, fields.eos_token_id)):
        if asked and token is None:
            raise ValueError("a begin or end token is to be added, but none is named")
        wanted.append((token,) if asked and token is not None else ())
    if any(wanted):
        set_special_tokens(backend, SpecialTokens(*wanted))


def _split(*patterns: str) -> pre_tokenizers.PreTokenizer:
    """Cut by each pattern in turn, then into bytes."""
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")
_QWEN2_NAMES = ("qwen2", "deepseek-r1-qwen")
_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_SINGLE_DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT2])

_PRE_TOKENIZERS: Mapping[str, pre_tokenizers.PreTokenizer] = MappingProxyType(
    {
        # Of files written before pre-tokenizers had names: punctuation, then GPT-2's words, then digits in threes.
        "default": _split(r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"),
        **dict.fromkeys(("gpt-2", "gpt2"), _GPT2),
        **dict.fromkeys(("smollm", "starcoder"), _SINGLE_DIGITS),
        **dict.fromkeys(_LLAMA3_NAMES, _split(_LLAMA3_WORDS)),
        **dict.fromkeys(_QWEN2_NAMES, _split(_QWEN2_WORDS)),
    }
)
