"""Read a tokenizer from a Hugging Face folder.

`tokenizer.json` is the tokenizer; `tokenizer_config.json` names its special tokens and may hold the chat template
(`chat_template.jinja` wins over it); `sentence_bert_config.json` may ask for lower case, and what PyLate puts before a
query or a document (`config_sentence_transformers.json`) is one token where the vocabulary has it. End tokens are the
tokenizer's own and all of `generation_config.json`, or of `config.json` where that file names none.
"""

from pathlib import Path
from typing import Any, Literal

import msgspec
from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Backend

from tenure.checkpoints.json_files import read_object, read_struct
from tenure.checkpoints.tokens import named_tokens
from tenure.errors import ResourceError
from tenure.text.special_tokens import SpecialTokens, read_special_tokens, set_special_tokens
from tenure.text.vocabulary import Coding, Vocabulary

_LLAMA_CLASSES = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer")


class _TokenizerFile(msgspec.Struct):
    decoder: dict[str, Any] | None = None


class _AddedEntry(msgspec.Struct):
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool | None = None


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct):
    tokenizer_class: str | None = None
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    added_tokens_decoder: dict[int, _AddedEntry] = {}
    chat_template: str | list[_NamedTemplate] | None = None
    truncation_side: Literal["left", "right"] = "right"


class _EndTokens(msgspec.Struct):
    """The fields of interest of `generation_config.json` and `config.json`."""

    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None


def read_folder(folder: Path) -> Vocabulary:
    """The vocabulary of a model folder. Raises ResourceError that names the file at fault."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ResourceError(f"{folder}: no tokenizer.json (tokenizers in other formats are not supported)")
    described = read_struct(path, _TokenizerFile)
    config = read_struct(folder / "tokenizer_config.json", _TokenizerConfig)
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the tokenizers library raises plain Exception for a bad file
        raise ResourceError(f"{path}: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    if read_object(folder / "sentence_bert_config.json", required=False).get("do_lower_case"):
        _lower_case(backend)
    _add_missing(folder, backend, config)
    pylate = read_object(folder / "config_sentence_transformers.json", required=False)
    for key in ("query_prefix", "document_prefix"):
        _add_prefix_token(backend, str(pylate.get(key) or ""))
    added = backend.get_added_tokens_decoder()
    named = {name: token for name, token in named_tokens(folder).items() if token}
    bos_token_id, own_end = (backend.token_to_id(named.get(name, "")) for name in ("bos_token", "eos_token"))
    _add_asked(backend, config, bos_token_id, own_end)
    special_ids = {index for index, token in added.items() if token.special}
    # Naming a token makes it special, even where tokenizer.json does not say so.
    special_ids.update(index for index in (bos_token_id, own_end) if index is not None)
    generation = read_struct(folder / "generation_config.json", _EndTokens)
    model = read_struct(folder / "config.json", _EndTokens)
    ends = _listed(generation.eos_token_id) or _listed(model.eos_token_id)
    ids = backend.get_vocab(with_added_tokens=True).values()
    size = max(ids, default=-1) + 1
    return Vocabulary(
        backend=backend,
        coding=_coding(described.decoder),
        size=size,
        without_token=frozenset(range(size)).difference(ids),
        added_ids=frozenset(added),
        special_ids=frozenset(special_ids),
        named_tokens=named,
        bos_token_id=model.bos_token_id if bos_token_id is None else bos_token_id,
        eos_token_ids=tuple(dict.fromkeys([*([] if own_end is None else [own_end]), *ends])),
        chat_template=_chat_template(folder, config),
        truncation_side=config.truncation_side,
    )


def _lower_case(backend: Backend) -> None:
    """Prepend a lower-casing normalizer, as sentence-transformers does, unless there is one."""
    steps = backend.normalizer
    own: list[Any] = [] if steps is None else [steps]
    if isinstance(steps, normalizers.Sequence):
        own = [steps[place] for place in range(len(steps))]
    if not any(isinstance(step, normalizers.Lowercase) for step in own):
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])


def _add_missing(folder: Path, backend: Backend, config: _TokenizerConfig) -> None:
    """Add the tokens that only `tokenizer_config.json` knows, if they are to get the ids it says."""
    present = backend.get_added_tokens_decoder()
    for index, entry in sorted(config.added_tokens_decoder.items()):
        if index in present:
            continue
        if entry.normalized is None:
            entry.normalized = not entry.special
        token = AddedToken(**msgspec.structs.asdict(entry))
        (backend.add_special_tokens if entry.special else backend.add_tokens)([token])
        if backend.token_to_id(entry.content) != index:
            raise ResourceError(
                f"{folder}: {entry.content!r} has another id in tokenizer.json than the {index} it should"
            )


def _add_prefix_token(backend: Backend, prefix: str) -> None:
    """Add `prefix`, or its first word, as one token if the vocabulary has it but tokenizing would split it."""
    for token in (prefix, *prefix.split(None, 1)[:1]):
        if backend.token_to_id(token) is not None and token.strip():
            if backend.encode(token, add_special_tokens=False).tokens != [token]:
                backend.add_special_tokens([AddedToken(token, normalized=False, special=True)])
            return


def _coding(decoder: dict[str, Any] | None) -> Coding:
    steps = [step for step in (decoder or {}).get("decoders", [decoder or {}]) if isinstance(step, dict)]
    types = {step.get("type") for step in steps}
    if "ByteLevel" in types:
        return Coding.BYTE_LEVEL
    if types & {"ByteFallback", "Metaspace"}:
        return Coding.SENTENCEPIECE
    return Coding.WORDPIECE if "WordPiece" in types else Coding.PLAIN


def _chat_template(folder: Path, config: _TokenizerConfig) -> str | None:
    path = folder / "chat_template.jinja"
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as error:
        raise ResourceError(f"{path}: {error}") from error
    if not isinstance(config.chat_template, list):
        return config.chat_template
    named = {entry.name: entry.template for entry in config.chat_template}
    return named.get("default")


def _add_asked(backend: Backend, config: _TokenizerConfig, bos_token_id: int | None, eos_token_id: int | None) -> None:
    """Have `encode` add the begin and end tokens that `tokenizer_config.json` asks for and `tokenizer.json` leaves out.

    That it does not ask for them counts against `tokenizer.json` in Llama's classes alone, as in Transformers 4.
    """
    special = read_special_tokens(backend)
    before, after = list(special.before), list(special.after)
    if config.add_bos_token and bos_token_id is not None and bos_token_id not in before:
        before.insert(0, bos_token_id)
    if config.add_eos_token and eos_token_id is not None and eos_token_id not in after:
        after.append(eos_token_id)
    if (config.tokenizer_class or "").removesuffix("Fast") in _LLAMA_CLASSES:
        before = [token for token in before if config.add_bos_token is not False or token != bos_token_id]
        after = [token for token in after if config.add_eos_token is not False or token != eos_token_id]
    wanted = SpecialTokens(tuple(before), tuple(after))
    if wanted != special:
        set_special_tokens(backend, wanted)


def _listed(ids: int | list[int] | None) -> list[int]:
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else ids
