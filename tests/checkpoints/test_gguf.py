"""The GGUF reader: what the writer of the gguf library writes is read back, and broken files are refused by name."""

import os
import struct
import time

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.checkpoints.gguf import GGUFFile
from tenure.errors import ResourceError
from tests.text.gguf_samples import demo_file, small_file

HEADER = struct.Struct("<4sIQQ")


def test_reads_back_what_was_written(tmp_path):
    with GGUFFile.open(small_file(tmp_path / "small.gguf")) as file:
        metadata = file.metadata
        assert metadata["general.architecture"] == "llama"
        assert (metadata["test.number"], metadata["test.float"], metadata["test.flag"]) == (7, 0.5, True)
        assert metadata["test.flag"] is True
        assert metadata["test.text"] == "žluťoučký 😀"
        assert metadata["test.strings"] == ["", "a", "日本"]
        assert metadata["test.numbers"] == [1, -2, 3]
        assert metadata["test.nested"] == [[1, 2], [3]]
        assert "test.nothing" not in metadata
        matrix = file.tensors["matrix"]
        assert (matrix.shape, matrix.ggml_type, matrix.nbytes) == ((2, 3), 0, 24)
        values = file.data("matrix").view(np.float32).reshape(matrix.shape)
        assert values.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert file.tensors["halves"].shape == (5,)
        assert file.data("halves").view(np.float16).tolist() == [1] * 5
        assert file.tensors["blocks"].shape == (4, 32)
        assert file.tensors["blocks"].nbytes == 4 * 34


def test_agrees_with_the_gguf_library_on_the_demo_model():
    path = demo_file()
    library = gguf.GGUFReader(path)
    with GGUFFile.open(path) as file:
        assert set(file.tensors) == {tensor.name for tensor in library.tensors}
        for tensor in library.tensors:
            info = file.tensors[tensor.name]
            assert info.shape == tuple(reversed(tensor.shape.tolist()))
            assert (info.ggml_type, info.offset, info.nbytes) == (
                int(tensor.tensor_type),
                tensor.data_offset,
                tensor.n_bytes,
            )
        for key in ("tokenizer.ggml.merges", "tokenizer.ggml.token_type", "llama.rope.freq_base", "general.name"):
            assert file.metadata[key] == library.fields[key].contents()


def test_opening_reads_only_what_it_must():
    path = demo_file()
    started = time.process_time()
    with GGUFFile.open(path) as file:
        opened = time.process_time()
        tokens = file.metadata["tokenizer.ggml.tokens"]
        decoded = time.process_time()
    assert len(tokens) == 49152
    assert opened - started < 0.15
    assert decoded - opened < 0.25


def test_views_outlive_the_file_and_new_ones_are_refused(tmp_path):
    file = GGUFFile.open(small_file(tmp_path / "small.gguf"))
    number = file.metadata["test.number"]
    view = file.data("matrix")
    file.close()
    file.close()
    assert view.view(np.float32)[5] == 5
    assert not view.flags.writeable
    assert file.metadata["test.number"] == number
    with pytest.raises(ResourceError, match="closed"):
        file.data("matrix")
    with pytest.raises(ResourceError, match="closed"):
        file.metadata["test.text"]


def entry(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


def tensor(name: bytes, dimensions: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    numbers = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
    return struct.pack("<Q", len(name)) + name + numbers + struct.pack("<IQ", kind, offset)


def header(tensors: int = 0, entries: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return HEADER.pack(magic, version, tensors, entries)


HUGE = 1 << 62
PADDING = bytes(256)
BROKEN = {
    "empty": (b"", "empty"),
    "another format": (b"PK\x03\x04" + PADDING, "starts with"),
    "old version": (header(version=1), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "cut in the header": (header()[:10], "truncated"),
    "countless tensors": (header(tensors=HUGE), "tensors"),
    "countless entries": (header(entries=HUGE), "entries"),
    "long key": (header(entries=1) + struct.pack("<Q", HUGE) + PADDING, "name of"),
    "key is not UTF-8": (header(entries=1) + entry(b"\xff", 0, b"\0"), "UTF-8"),
    "long string": (header(entries=1) + entry(b"k", 8, struct.pack("<Q", HUGE)), "past the end"),
    "string length wraps": (header(entries=1) + entry(b"k", 8, b"\xff" * 8) + PADDING, "past the end"),
    "unknown value type": (header(entries=1) + entry(b"k", 13, PADDING), "value type 13"),
    "unknown element type": (header(entries=1) + entry(b"k", 9, struct.pack("<IQ", 99, 1)) + PADDING, "value type 99"),
    "huge array": (header(entries=1) + entry(b"k", 9, struct.pack("<IQ", 0, HUGE)), "array of"),
    "array of strings past the end": (
        header(entries=1) + entry(b"k", 9, struct.pack("<IQ", 8, 100)) + bytes(90),
        "past the end",
    ),
    "deep arrays": (header(entries=1) + entry(b"k", 9, struct.pack("<IQ", 9, 1) * 2000), "nested"),
    "the same key twice": (header(entries=2) + entry(b"k", 7, b"\1") * 2, "twice"),
    "alignment of three": (header(entries=1) + entry(b"general.alignment", 4, struct.pack("<I", 3)), "alignment"),
    "alignment of zero": (header(entries=1) + entry(b"general.alignment", 4, bytes(4)), "alignment"),
    "alignment is text": (header(entries=1) + entry(b"general.alignment", 8, bytes(8)), "alignment"),
    "unknown tensor type": (header(tensors=1) + tensor(b"t", (1,), kind=77) + PADDING, "type 77"),
    "too many dimensions": (header(tensors=1) + tensor(b"t", (1,) * 9) + PADDING, "9 dimensions"),
    "countless dimensions": (header(tensors=1) + struct.pack("<Q", 1) + b"t" + b"\xff" * 4 + PADDING, "dimensions"),
    "half a block": (header(tensors=1) + tensor(b"t", (33,), kind=8) + PADDING, "multiple of 32"),
    "offset past the end": (header(tensors=1) + tensor(b"t", (1,), offset=1 << 40) + PADDING, "past the"),
    "tensor past the end": (header(tensors=1) + tensor(b"t", (HUGE, HUGE, HUGE, HUGE)) + PADDING, "past the"),
    "offset between": (header(tensors=1) + tensor(b"t", (1,), offset=1) + PADDING, "multiple of 32"),
    "the same tensor twice": (header(tensors=2) + tensor(b"t", (1,)) * 2 + PADDING, "twice"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_with_its_name_and_what_is_wrong(tmp_path, case):
    content, complaint = BROKEN[case]
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(ResourceError, match=complaint) as refusal:
        GGUFFile.open(path)
    assert str(path) in str(refusal.value)


def test_what_is_not_a_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "pipe", "."):
        with pytest.raises(ResourceError, match=str(tmp_path)):
            GGUFFile.open(tmp_path / name)


def test_text_that_is_not_utf8_is_refused_when_it_is_read(tmp_path):
    path = tmp_path / "text.gguf"
    path.write_bytes(header(entries=1) + entry(b"k", 8, struct.pack("<Q", 1) + b"\xff"))
    with GGUFFile.open(path) as file, pytest.raises(ResourceError, match=r"text\.gguf: cannot read 'k'"):
        file.metadata["k"]


@pytest.fixture(scope="module")
def small_bytes(tmp_path_factory) -> bytes:
    return small_file(tmp_path_factory.mktemp("gguf") / "small.gguf").read_bytes()


CHANGES = st.lists(
    st.tuples(st.integers(0, 1_000_000), st.binary(min_size=1, max_size=8) | st.just(b"\xff" * 8)), max_size=4
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=CHANGES, cut=st.none() | st.integers(0, 2000))
def test_any_damage_is_either_harmless_or_refused(tmp_path, small_bytes, changes, cut):
    damaged = bytearray(small_bytes)
    for place, replacement in changes:
        at = place % len(damaged)
        damaged[at : at + len(replacement)] = replacement
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged[:cut])
    refusal = None
    try:
        with GGUFFile.open(path) as file:
            for key in file.metadata:
                assert file.metadata[key] is not None
            for name, info in file.tensors.items():
                assert file.data(name).size == info.nbytes
    except ResourceError as error:
        refusal = str(error)
    assert refusal is None or "damaged.gguf" in refusal
