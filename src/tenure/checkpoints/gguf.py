"""Read GGUF files (versions 2 and 3, little-endian) through a memory map.

Opening walks the header once: it checks every length and offset against the size of the file and remembers where
each value lies. Strings, arrays and tensors are decoded only when asked for, so a file with a vocabulary of
50,000 entries opens in tens of milliseconds.

Owner and lifetime: `GGUFFile` owns the map. Views from `data` keep the memory mapped after `close`; metadata that
has not been decoded by then is gone. Nothing in a file can make this module allocate more than a small multiple of
the file's size, and whatever is wrong with a file is a `ResourceError` that names the file.
"""

import mmap
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from math import prod
from pathlib import Path
from struct import Struct
from struct import error as StructError
from types import MappingProxyType, TracebackType
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt

from tenure.errors import ResourceError

Value: TypeAlias = int | float | bool | str | list["Value"]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 4
MAX_KEY_BYTES = 65535

_U32 = Struct("<I")
_U64 = Struct("<Q")


class ValueType(IntEnum):
    """Types of metadata values, as numbered in the file format."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_SCALARS: Mapping[int, np.dtype[np.generic]] = MappingProxyType(
    {
        ValueType.UINT8: np.dtype("<u1"),
        ValueType.INT8: np.dtype("<i1"),
        ValueType.UINT16: np.dtype("<u2"),
        ValueType.INT16: np.dtype("<i2"),
        ValueType.UINT32: np.dtype("<u4"),
        ValueType.INT32: np.dtype("<i4"),
        ValueType.FLOAT32: np.dtype("<f4"),
        ValueType.BOOL: np.dtype("?"),
        ValueType.UINT64: np.dtype("<u8"),
        ValueType.INT64: np.dtype("<i8"),
        ValueType.FLOAT64: np.dtype("<f8"),
    }
)

GGML_BLOCKS: Mapping[int, tuple[int, int]] = MappingProxyType(
    {
        0: (1, 4),  # F32
        1: (1, 2),  # F16
        2: (32, 18),  # Q4_0
        3: (32, 20),  # Q4_1
        6: (32, 22),  # Q5_0
        7: (32, 24),  # Q5_1
        8: (32, 34),  # Q8_0
        9: (32, 40),  # Q8_1
        10: (256, 84),  # Q2_K
        11: (256, 110),  # Q3_K
        12: (256, 144),  # Q4_K
        13: (256, 176),  # Q5_K
        14: (256, 210),  # Q6_K
        15: (256, 292),  # Q8_K
        16: (256, 66),  # IQ2_XXS
        17: (256, 74),  # IQ2_XS
        18: (256, 98),  # IQ3_XXS
        19: (256, 50),  # IQ1_S
        20: (32, 18),  # IQ4_NL
        21: (256, 110),  # IQ3_S
        22: (256, 82),  # IQ2_S
        23: (256, 136),  # IQ4_XS
        24: (1, 1),  # I8
        25: (1, 2),  # I16
        26: (1, 4),  # I32
        27: (1, 8),  # I64
        28: (1, 8),  # F64
        29: (256, 56),  # IQ1_M
        30: (1, 2),  # BF16
        34: (256, 54),  # TQ1_0
        35: (256, 66),  # TQ2_0
        39: (32, 17),  # MXFP4
    }
)
"""ggml type -> (elements, bytes) of one block."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. `shape` is row-major: the last dimension is the contiguous one (ggml's first)."""

    shape: tuple[int, ...]
    ggml_type: int
    offset: int
    """Bytes from the start of the file."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Entry:
    value_type: int
    offset: int


class _Malformed(Exception):
    """What is wrong with the bytes; becomes a ResourceError once the file's name is known."""


class _Reader:
    """Bounds-checked reads of a map; a position is an argument and the next one is returned."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self.buffer = buffer
        self.size = len(buffer)

    def u32(self, at: int) -> tuple[int, int]:
        return _U32.unpack_from(self.buffer, self._checked(at, 4))[0], at + 4

    def u64(self, at: int) -> tuple[int, int]:
        return _U64.unpack_from(self.buffer, self._checked(at, 8))[0], at + 8

    def string(self, at: int, longest: int | None = None) -> tuple[str, int]:
        length, at = self.u64(at)
        if longest is not None and length > longest:
            raise _Malformed(f"a name of {length} bytes at offset {at}")
        self._checked(at, length)
        try:
            return str(self.buffer[at : at + length], "utf-8"), at + length
        except UnicodeDecodeError:
            raise _Malformed(f"the string at offset {at} is not UTF-8") from None

    def skip(self, value_type: int, at: int, depth: int = 0) -> int:
        """The position after a value."""
        if value_type in _SCALARS:
            return self._checked(at, _SCALARS[value_type].itemsize) + _SCALARS[value_type].itemsize
        if value_type == ValueType.STRING:
            return self._skip_strings(at, 1)
        if value_type != ValueType.ARRAY:
            raise _Malformed(f"unknown value type {value_type} at offset {at}")
        if depth >= MAX_ARRAY_DEPTH:
            raise _Malformed(f"arrays nested deeper than {MAX_ARRAY_DEPTH} at offset {at}")
        element_type, count, at = self._array_header(at)
        if element_type in _SCALARS:
            length = count * _SCALARS[element_type].itemsize
            return self._checked(at, length) + length
        if element_type == ValueType.STRING:
            return self._skip_strings(at, count)
        for _ in range(count):
            at = self.skip(element_type, at, depth + 1)
        return at

    def value(self, value_type: int, at: int) -> tuple[Value, int]:
        """Decode a value that `skip` has accepted."""
        if value_type in _SCALARS:
            dtype = _SCALARS[value_type]
            return np.frombuffer(self.buffer, dtype, 1, at)[0].item(), at + dtype.itemsize
        if value_type == ValueType.STRING:
            return self.string(at)
        element_type, count, at = self._array_header(at)
        if element_type in _SCALARS:
            dtype = _SCALARS[element_type]
            return np.frombuffer(self.buffer, dtype, count, at).tolist() if count else [], at + count * dtype.itemsize
        if element_type == ValueType.STRING:
            return self._strings(at, count)
        values: list[Value] = []
        for _ in range(count):
            value, at = self.value(element_type, at)
            values.append(value)
        return values, at

    def _array_header(self, at: int) -> tuple[int, int, int]:
        element_type, at = self.u32(at)
        count, at = self.u64(at)
        if count > self.size:
            raise _Malformed(f"an array of {count} values at offset {at} in a file of {self.size} bytes")
        return element_type, count, at

    def _skip_strings(self, at: int, count: int) -> int:
        # Vocabularies make this the hot loop of opening: one unpack per string, the overrun shows in the next one.
        unpack, buffer = _U64.unpack_from, self.buffer
        try:
            for _ in range(count):
                at += unpack(buffer, at)[0] + 8
        except (StructError, OverflowError):
            at = self.size + 1
        if at > self.size:
            raise _Malformed("truncated: a string reaches past the end of the file")
        return at

    def _strings(self, at: int, count: int) -> tuple[list[Value], int]:
        unpack, buffer = _U64.unpack_from, self.buffer
        values: list[Value] = []
        append = values.append
        try:
            for _ in range(count):
                start = at + 8
                at = start + unpack(buffer, at)[0]
                append(str(buffer[start:at], "utf-8"))
        except UnicodeDecodeError:
            raise _Malformed(f"the string at offset {start} is not UTF-8") from None
        return values, at

    def _checked(self, at: int, length: int) -> int:
        if at + length > self.size:
            raise _Malformed(f"truncated: {length} bytes wanted at offset {at}, the file has {self.size}")
        return at


class Metadata(Mapping[str, Value]):
    """The key-value part of a file. Values are decoded when first read, then kept; treat lists as read-only.

    Raises ResourceError when a value cannot be decoded, KeyError when there is none.
    """

    def __init__(self, path: Path, reader: _Reader, entries: dict[str, _Entry]) -> None:
        self._path = path
        self._reader: _Reader | None = reader
        self._entries = entries
        self._decoded: dict[str, Value] = {}

    def __getitem__(self, key: str) -> Value:
        if key in self._decoded:
            return self._decoded[key]
        entry = self._entries[key]
        if self._reader is None:
            raise ResourceError(f"{self._path}: closed before {key!r} was read")
        try:
            value, _ = self._reader.value(entry.value_type, entry.offset)
        except _Malformed as wrong:
            raise ResourceError(f"{self._path}: cannot read {key!r}: {wrong}") from None
        self._decoded[key] = value
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def forget_file(self) -> None:
        """Keep what is decoded; nothing else can be read from now on."""
        self._reader = None


class GGUFFile:
    """An open GGUF file: `metadata`, `tensors` by name, and their raw bytes through `data`."""

    def __init__(self, path: Path, buffer: mmap.mmap, metadata: Metadata, tensors: Mapping[str, TensorInfo]) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self._buffer: mmap.mmap | None = buffer

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Map a file and check its header. Raises ResourceError, naming the file, when it cannot be served."""
        path = Path(path)
        buffer = _map(path)
        reader = _Reader(buffer)
        try:
            entries, tensors = _parse(reader)
        except _Malformed as wrong:
            buffer.close()
            raise ResourceError(f"{path}: not a readable GGUF file: {wrong}") from None
        return cls(path, buffer, Metadata(path, reader, entries), MappingProxyType(tensors))

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes as they lie in the file: a read-only view, shape (nbytes,). KeyError if unknown."""
        if self._buffer is None:
            raise ResourceError(f"{self.path}: closed")
        info = self.tensors[name]
        if not info.nbytes:
            return np.empty(0, np.uint8)
        return np.frombuffer(self._buffer, np.uint8, info.nbytes, info.offset)

    def close(self) -> None:
        """Let go of the map; it is unmapped at once, or with the last view from `data`."""
        buffer, self._buffer = self._buffer, None
        self.metadata.forget_file()
        if buffer is not None:
            try:
                buffer.close()
            except BufferError:
                return  # views are alive; the last one unmaps

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _map(path: Path) -> mmap.mmap:
    try:
        # A pipe would block on opening: look before.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ResourceError(f"{path}: not a regular file")
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise ResourceError(f"{path}: not a readable GGUF file: it is empty") from None
    except OSError as error:
        raise ResourceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _parse(reader: _Reader) -> tuple[dict[str, _Entry], dict[str, TensorInfo]]:
    magic = reader.buffer[:4]
    if magic != MAGIC:
        raise _Malformed(f"it starts with {magic!r} instead of {MAGIC!r}")
    version, at = reader.u32(4)
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        raise _Malformed("it is big-endian" if swapped in VERSIONS else f"version {version} is not supported")
    tensor_count, at = reader.u64(at)
    entry_count, at = reader.u64(at)
    if (tensor_count + entry_count) * 13 > reader.size:  # the smallest entry: name length, type, one byte
        raise _Malformed(f"{tensor_count} tensors and {entry_count} metadata entries in {reader.size} bytes")
    entries, at = _parse_entries(reader, at, entry_count)
    alignment = _alignment(reader, entries)
    rows = []
    for _ in range(tensor_count):
        name, info, at = _parse_tensor(reader, at)
        rows.append((name, info))
    return entries, _place(rows, -(-at // alignment) * alignment, alignment, reader.size)


def _place(
    rows: list[tuple[str, TensorInfo]], data_start: int, alignment: int, file_size: int
) -> dict[str, TensorInfo]:
    """Turn offsets relative to the data into offsets in the file, checked."""
    tensors: dict[str, TensorInfo] = {}
    for name, info in rows:
        offset = data_start + info.offset
        end = offset + info.nbytes
        if name in tensors:
            raise _Malformed(f"tensor {name!r} comes twice")
        if info.offset % alignment:
            raise _Malformed(f"tensor {name!r} lies at offset {info.offset}, not a multiple of {alignment}")
        if end > file_size:
            raise _Malformed(f"truncated: tensor {name!r} ends at {end}, past the {file_size} bytes of the file")
        tensors[name] = replace(info, offset=offset)
    return tensors


def _parse_entries(reader: _Reader, at: int, count: int) -> tuple[dict[str, _Entry], int]:
    entries: dict[str, _Entry] = {}
    for _ in range(count):
        key, at = reader.string(at, MAX_KEY_BYTES)
        if key in entries:
            raise _Malformed(f"metadata key {key!r} comes twice")
        value_type, at = reader.u32(at)
        entries[key] = _Entry(value_type, at)
        at = reader.skip(value_type, at)
    return entries, at


def _alignment(reader: _Reader, entries: dict[str, _Entry]) -> int:
    entry = entries.get("general.alignment")
    if entry is None:
        return DEFAULT_ALIGNMENT
    value = reader.value(entry.value_type, entry.offset)[0] if entry.value_type == ValueType.UINT32 else None
    if not isinstance(value, int) or value <= 0 or value & (value - 1):
        raise _Malformed(f"general.alignment is {value}, not a power of two")
    return value


def _parse_tensor(reader: _Reader, at: int) -> tuple[str, TensorInfo, int]:
    """One row of the tensor table; its `offset` is still relative to the start of the data."""
    name, at = reader.string(at, MAX_KEY_BYTES)
    dimension_count, at = reader.u32(at)
    if dimension_count > MAX_DIMENSIONS:
        raise _Malformed(f"tensor {name!r} has {dimension_count} dimensions")
    dimensions = []
    for _ in range(dimension_count):
        dimension, at = reader.u64(at)
        dimensions.append(dimension)
    ggml_type, at = reader.u32(at)
    offset, at = reader.u64(at)
    if ggml_type not in GGML_BLOCKS:
        raise _Malformed(f"tensor {name!r} has unknown type {ggml_type}")
    elements, block_bytes = GGML_BLOCKS[ggml_type]
    if dimensions and dimensions[0] % elements:
        raise _Malformed(f"tensor {name!r} has rows of {dimensions[0]} elements, not a multiple of {elements}")
    if not dimensions and elements != 1:
        raise _Malformed(f"tensor {name!r} is a scalar of a block type")
    nbytes = prod(dimensions) // elements * block_bytes
    return name, TensorInfo(tuple(reversed(dimensions)), ggml_type, offset, nbytes), at
