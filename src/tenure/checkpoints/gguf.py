"""Read GGUF files (versions 2 and 3, little-endian) through a memory map.

Opening walks the header once: it checks every length and offset against the size of the file and remembers where
each value lies. Values and tensors are decoded only when asked for, so a file with a vocabulary of 50,000 entries opens
in tens of milliseconds. Sizes of blocks are the gguf library's.

Owner and lifetime: `GGUFFile` owns the map. Views from `data` keep the memory mapped after `close`; metadata that
has not been decoded by then is gone. Nothing in a file can make this module allocate more than a small multiple of
the file's size, and whatever is wrong with a file is a `ResourceError` that names the file.
"""

import mmap
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from struct import Struct
from struct import error as StructError
from types import MappingProxyType
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt

from tenure.errors import ResourceError
from tenure.source import GGUF_MAGIC

Value: TypeAlias = int | float | bool | str | list["Value"]

VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
MAX_ARRAY_DEPTH = 4
MAX_KEY_BYTES = 65535

_U32 = Struct("<I")
_U64 = Struct("<Q")
_SCALARS: Mapping[int, np.dtype[np.generic]] = MappingProxyType(
    dict(enumerate(map(np.dtype, ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?"))))
    | dict(enumerate(map(np.dtype, ("<u8", "<i8", "<f8")), start=10))
)
_UINT32, _STRING, _ARRAY = 4, 8, 9
"""Types of metadata values, as numbered in the format."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies. `shape` is row-major: the last dimension is the contiguous one (ggml's first)."""

    shape: tuple[int, ...]
    ggml_type: int
    offset: int
    """Bytes from the start of the file."""
    nbytes: int


class _Malformed(Exception):
    """What is wrong with the bytes; becomes a ResourceError once the file's name is known."""


class _Cursor:
    """A read position in the map. Each read advances it, and is checked against the size of the file."""

    def __init__(self, buffer: mmap.mmap, at: int = 0) -> None:
        self.buffer = buffer
        self.at = at

    def skip(self, length: int) -> int:
        """Advance by `length` bytes; returns the position before."""
        start, size = self.at, len(self.buffer)
        if start + length > size:
            raise _Malformed(f"truncated: {length} bytes wanted at offset {start}, the file has {size}")
        self.at += length
        return start

    def u32(self) -> int:
        number: int = _U32.unpack_from(self.buffer, self.skip(4))[0]
        return number

    def u64(self) -> int:
        number: int = _U64.unpack_from(self.buffer, self.skip(8))[0]
        return number

    def name(self) -> str:
        length = self.u64()
        if length > MAX_KEY_BYTES:
            raise _Malformed(f"a name of {length} bytes at offset {self.at}")
        self.at -= 8
        return self.strings(1, keep=True)[0]

    def value(self, kind: int, *, keep: bool, depth: int = 0) -> Value:
        """Read a value; without `keep` it is only checked, and the returned value is undefined."""
        if kind in _SCALARS:
            return self.numbers(kind, 1, keep=True)[0]
        if kind == _STRING:
            return (self.strings(1, keep=keep) or [""])[0]
        if kind != _ARRAY:
            raise _Malformed(f"unknown value type {kind} at offset {self.at}")
        if depth >= MAX_ARRAY_DEPTH:
            raise _Malformed(f"arrays nested deeper than {MAX_ARRAY_DEPTH} at offset {self.at}")
        kind, count = self.u32(), self.u64()
        if count > len(self.buffer):
            raise _Malformed(f"an array of {count} values at offset {self.at} in a file of {len(self.buffer)} bytes")
        if kind in _SCALARS:
            return self.numbers(kind, count, keep=keep)
        if kind == _STRING:
            return list(self.strings(count, keep=keep))
        return [self.value(kind, keep=keep, depth=depth + 1) for _ in range(count)]

    def numbers(self, kind: int, count: int, *, keep: bool) -> list[Value]:
        start = self.skip(count * _SCALARS[kind].itemsize)
        return np.frombuffer(self.buffer, _SCALARS[kind], count, start).tolist() if keep and count else []

    def strings(self, count: int, *, keep: bool) -> list[str]:
        # Vocabularies make this the hot loop of opening: one unpack per string, the overrun shows in the next one.
        unpack, buffer, at = _U64.unpack_from, self.buffer, self.at
        found: list[str] = []
        try:
            for _ in range(count):
                start = at + 8
                at = start + unpack(buffer, at)[0]
                if keep:
                    found.append(str(buffer[start:at], "utf-8"))
        except UnicodeDecodeError:
            raise _Malformed(f"the string at offset {start} is not UTF-8") from None
        except (StructError, OverflowError):
            at = len(buffer) + 1
        if at > len(buffer):
            raise _Malformed("truncated: a string reaches past the end of the file")
        self.at = at
        return found


class Metadata(Mapping[str, Value]):
    """The key-value part of a file. Values are decoded when first read, then kept; treat lists as read-only.

    Raises ResourceError when a value cannot be decoded, KeyError when there is none.
    """

    def __init__(self, places: Mapping[str, int], decode: Callable[[str, int], Value]) -> None:
        self._places = places
        self._decode = decode
        self._decoded: dict[str, Value] = {}

    def __getitem__(self, key: str) -> Value:
        if key not in self._decoded:
            self._decoded[key] = self._decode(key, self._places[key])
        return self._decoded[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class GGUFFile:
    """An open GGUF file: `metadata`, `tensors` by name, and their raw bytes through `data`."""

    def __init__(
        self, path: Path, buffer: mmap.mmap, places: Mapping[str, int], tensors: Mapping[str, TensorInfo]
    ) -> None:
        self.path = path
        self.metadata = Metadata(places, self._value)
        self.tensors = tensors
        self._buffer: mmap.mmap | None = buffer

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Map a file and check its header. Raises ResourceError, naming the file, when it cannot be served."""
        path = Path(path)
        buffer = _map(path)
        try:
            places, tensors = _parse(_Cursor(buffer))
        except _Malformed as wrong:
            buffer.close()
            raise ResourceError(f"{path}: not a readable GGUF file: {wrong}") from None
        return cls(path, buffer, places, MappingProxyType(tensors))

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's bytes as they lie in the file: a read-only view, shape (nbytes,). KeyError if unknown."""
        info, buffer = self.tensors[name], self._open_buffer()
        return np.frombuffer(buffer, np.uint8, info.nbytes, info.offset) if info.nbytes else np.empty(0, np.uint8)

    def _value(self, key: str, place: int) -> Value:
        cursor = _Cursor(self._open_buffer(), place)
        try:
            return cursor.value(cursor.u32(), keep=True)
        except _Malformed as wrong:
            raise ResourceError(f"{self.path}: cannot read {key!r}: {wrong}") from None

    def _open_buffer(self) -> mmap.mmap:
        if self._buffer is None:
            raise ResourceError(f"{self.path}: closed")
        return self._buffer

    def close(self) -> None:
        """Close the map; the memory is unmapped at once, or with the last view from `data`."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            try:
                buffer.close()
            except BufferError:
                return  # views are alive; the last one unmaps

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _map(path: Path) -> mmap.mmap:
    try:
        # Opening a pipe would block, so the type is checked first.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ResourceError(f"{path}: not a regular file")
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise ResourceError(f"{path}: not a readable GGUF file: it is empty") from None
    except OSError as error:
        raise ResourceError(f"{path}: cannot be read: {error.strerror or error}") from error


def _parse(cursor: _Cursor) -> tuple[dict[str, int], dict[str, TensorInfo]]:
    """Where each value lies, its type first, and each tensor."""
    magic, size = cursor.buffer[:4], len(cursor.buffer)
    if magic != GGUF_MAGIC:
        raise _Malformed(f"it starts with {magic!r} instead of {GGUF_MAGIC!r}")
    cursor.skip(4)
    version = cursor.u32()
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        raise _Malformed("it is big-endian" if swapped in VERSIONS else f"version {version} is not supported")
    tensor_count, entry_count = cursor.u64(), cursor.u64()
    if (tensor_count + entry_count) * 13 > size:  # the smallest entry: name length, type, one byte
        raise _Malformed(f"{tensor_count} tensors and {entry_count} metadata entries in {size} bytes")
    places: dict[str, int] = {}
    alignment: Value = 32
    for _ in range(entry_count):
        key = cursor.name()
        if key in places:
            raise _Malformed(f"metadata key {key!r} comes twice")
        places[key] = cursor.at
        kind = cursor.u32()
        value = cursor.value(kind, keep=False)
        if key == "general.alignment":
            alignment = value if kind == _UINT32 else 0
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise _Malformed(f"general.alignment is {alignment}, not a power of two")
    return places, _parse_tensors(cursor, tensor_count, alignment)


def _parse_tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    """The table of tensors, with their offsets made relative to the file."""
    import gguf  # noqa: PLC0415 - only GGUF models need it

    blocks = {int(kind): size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    rows = []
    for _ in range(count):
        name, dimension_count = cursor.name(), cursor.u32()
        if dimension_count > MAX_DIMENSIONS:
            raise _Malformed(f"tensor {name!r} has {dimension_count} dimensions")
        dimensions = [cursor.u64() for _ in range(dimension_count)]
        rows.append((name, dimensions, cursor.u32(), cursor.u64()))
    start, size = -(-cursor.at // alignment) * alignment, len(cursor.buffer)
    tensors: dict[str, TensorInfo] = {}
    for name, dimensions, kind, offset in rows:
        if kind not in blocks:
            raise _Malformed(f"tensor {name!r} has unknown type {kind}")
        elements, block_bytes = blocks[kind]
        if (dimensions or [1])[0] % elements:
            raise _Malformed(f"tensor {name!r} has rows of {dimensions or 1} elements, not a multiple of {elements}")
        nbytes = prod(dimensions) // elements * block_bytes
        if name in tensors:
            raise _Malformed(f"tensor {name!r} comes twice")
        if offset % alignment:
            raise _Malformed(f"tensor {name!r} lies at offset {offset}, not a multiple of {alignment}")
        end = start + offset + nbytes
        if end > size:
            raise _Malformed(f"truncated: tensor {name!r} ends at {end}, past the {size} bytes of the file")
        tensors[name] = TensorInfo(tuple(reversed(dimensions)), kind, start + offset, nbytes)
    return tensors
