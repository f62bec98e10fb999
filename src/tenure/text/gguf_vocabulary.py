"""Build a tokenizer from the metadata of a GGUF file.

Two kinds of vocabulary are understood: byte-level BPE (`gpt2`, whose pre-tokenizer is named by
`tokenizer.ggml.pre`) and SentencePiece BPE with scores and byte fallback (`llama`).

Ids are those of the model's original tokenizer. End tokens are the ones that the metadata marks: `eos`, `eot` and
`eom`; tokens that merely look like an end, by their name, are not. In SmolLM2 this makes <|im_end|> the only end.
Bytes for which a byte-level vocabulary has no token are dropped, as the original tokenizers do.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tenure.checkpoints.gguf import Value
from tenure.errors import ResourceError
from tenure.text.special_tokens import Frame, set_frame
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


class _Fields:
    """Typed reads of the `tokenizer.*` keys; whatever is missing or of another type is a ResourceError."""

    def __init__(self, metadata: Mapping[str, Value], name: str) -> None:
        self._metadata = metadata
        self.name = name

    def error(self, problem: str) -> ResourceError:
        return ResourceError(f"{self.name}: {problem}")

    def text(self, key: str) -> str | None:
        value = self._metadata.get(f"tokenizer.{key}")
        if value is not None and not isinstance(value, str):
            raise self.error(f"tokenizer.{key} is not a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, bool):
            raise self.error(f"tokenizer.ggml.{key} is not a boolean")
        return value

    def token_id(self, key: str, size: int) -> int | None:
        value = self._metadata.get(f"tokenizer.ggml.{key}_token_id")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < size:
            raise self.error(f"tokenizer.ggml.{key}_token_id is {value!r}, not one of the {size} tokens")
        return value

    def strings(self, key: str) -> list[str]:
        return [value for value in self._list(key) if isinstance(value, str)]

    def integers(self, key: str, length: int, default: int) -> list[int]:
        if f"tokenizer.ggml.{key}" not in self._metadata:
            return [default] * length
        return [value for value in self._list(key, length) if isinstance(value, int)]

    def floats(self, key: str, length: int) -> list[float]:
        return [float(value) for value in self._list(key, length) if isinstance(value, (int, float))]

    def _list(self, key: str, length: int | None = None) -> list[Value]:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(value, list):
            raise self.error(f"tokenizer.ggml.{key} is missing or not an array")
        if value and any(type(element) is not type(value[0]) for element in (value[0], value[-1])):
            raise self.error(f"tokenizer.ggml.{key} mixes types")
        if length is not None and len(value) != length:
            raise self.error(f"tokenizer.ggml.{key} has {len(value)} entries for {length} tokens")
        return value


def read_vocabulary(metadata: Mapping[str, Value], name: str) -> Vocabulary:
    """The vocabulary in a GGUF file's metadata; `name` is the file, for messages. Raises ResourceError."""
    fields = _Fields(metadata, name)
    tokens = fields.strings("tokens")
    if not tokens:
        raise fields.error("it has no tokens")
    types = fields.integers("token_type", len(tokens), NORMAL)
    kind = fields.text("ggml.model")
    builders: Mapping[str | None, Callable[[_Fields, list[str]], tuple[Tokenizer, Coding]]] = {
        "gpt2": _byte_level,
        "llama": _sentencepiece,
    }
    if kind not in builders:
        raise fields.error(f"tokenizers of kind {kind!r} are not supported (supported: gpt2, llama)")
    try:
        backend, coding = builders[kind](fields, tokens)
    except ResourceError:
        raise
    except Exception as error:  # the tokenizers library raises plain Exception for a bad vocabulary
        raise fields.error(f"its vocabulary is inconsistent: {error}") from error
    named = {f"{name}_token": fields.token_id(key, len(tokens)) for name, key in _NAMED}
    ends = [fields.token_id(key, len(tokens)) for key in ("eos", "eot", "eom")]
    eos_token_ids = tuple(dict.fromkeys(end for end in ends if end is not None))
    bos_token_id = fields.token_id("bos", len(tokens))
    special_ids = {index for index, kind in enumerate(types) if kind in (CONTROL, UNKNOWN)} | set(eos_token_ids)
    if bos_token_id is not None:
        special_ids.add(bos_token_id)
    backend.add_special_tokens([AddedToken(tokens[index], normalized=False) for index in sorted(special_ids)])
    defined = [index for index, kind in enumerate(types) if kind == USER_DEFINED and index not in special_ids]
    backend.add_tokens([AddedToken(tokens[index], normalized=False) for index in defined])
    _frame(fields, backend, tokens)
    return Vocabulary(
        backend=backend,
        coding=coding,
        size=len(tokens),
        without_token=frozenset(index for index, kind in enumerate(types) if kind == UNUSED),
        added_ids=frozenset(special_ids | set(defined)),
        special_ids=frozenset(special_ids),
        named_tokens={name: tokens[index] for name, index in named.items() if index is not None},
        bos_token_id=bos_token_id,
        eos_token_ids=eos_token_ids,
        chat_template=fields.text("chat_template"),
    )


def _byte_level(fields: _Fields, tokens: list[str]) -> tuple[Tokenizer, Coding]:
    kind = fields.text("ggml.pre") or "default"
    splitter = _PRE_TOKENIZERS.get(kind)
    if splitter is None:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise fields.error(f"the pre-tokenizer {kind!r} is not supported (supported: {known})")
    merges = []
    for merge in fields.strings("merges"):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=kind in _WHOLE_WORDS_FIRST))
    if kind in _QWEN2_NAMES:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = splitter()
    backend.decoder = decoders.ByteLevel()
    return backend, Coding.BYTE_LEVEL


def _sentencepiece(fields: _Fields, tokens: list[str]) -> tuple[Tokenizer, Coding]:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = fields.token_id("unknown", len(tokens))
    model = models.BPE(
        vocabulary,
        _merges_by_score(vocabulary, fields.floats("scores", len(tokens))),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if fields.flag("add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(steps)
    return backend, Coding.SENTENCEPIECE


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


def _frame(fields: _Fields, backend: Tokenizer, tokens: list[str]) -> None:
    """Have `encode` add the begin and end tokens that the metadata asks for."""
    sentencepiece = fields.text("ggml.model") == "llama"
    implied = sentencepiece or fields.text("ggml.pre") in _LLAMA3_NAMES
    wanted = []
    for kind, otherwise in (("bos", implied), ("eos", False)):
        token = fields.token_id(kind, len(tokens))
        asked = fields.flag(f"add_{kind}_token", otherwise)
        if asked and token is None:
            raise fields.error(f"a {kind} token is to be added, but none is named")
        wanted.append((token,) if asked and token is not None else ())
    if any(wanted):
        set_frame(backend, Frame(*wanted))


def _words(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def _bytes_only() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _llama3() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([_words(_LLAMA3_WORDS), _bytes_only()])


def _qwen2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([_words(_QWEN2_WORDS), _bytes_only()])


def _default() -> pre_tokenizers.PreTokenizer:
    """Files written before pre-tokenizers had names: punctuation, then GPT-2's words, then digits in threes."""
    patterns = [r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"]
    return pre_tokenizers.Sequence([*(_words(pattern) for pattern in patterns), _bytes_only()])


_LLAMA3_NAMES = ("llama-bpe", "llama3", "llama-v3")
_QWEN2_NAMES = ("qwen2", "deepseek-r1-qwen")
_WHOLE_WORDS_FIRST = _LLAMA3_NAMES

_PRE_TOKENIZERS: Mapping[str, Callable[[], pre_tokenizers.PreTokenizer]] = MappingProxyType(
    {
        "default": _default,
        "gpt-2": _gpt2,
        "gpt2": _gpt2,
        "smollm": _single_digits,
        "starcoder": _single_digits,
        **dict.fromkeys(_LLAMA3_NAMES, _llama3),
        **dict.fromkeys(_QWEN2_NAMES, _qwen2),
    }
)
