"""JSON in parts, so that no single call of the encoder keeps the interpreter from others for long."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET

ENCODER = msgspec.json.Encoder()
PART_BYTES = 64 * 1024
_HEAVY = 4096
"""Entries and characters that are encoded at once, roughly."""

Part = bytes | memoryview


def json_parts(value: Any) -> Iterator[Part]:
    """The JSON of a value, as the encoder writes it. An iterator in it stands for parts that are JSON already."""
    if _weight(value) <= _HEAVY:
        yield ENCODER.encode(value)
    elif isinstance(value, Iterator):
        yield from value
    elif isinstance(value, msgspec.Struct):
        names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        fields = ((shown, field) for name, shown in names if (field := getattr(value, name)) is not UNSET)
        yield from _enclosed(b"{}", (_field(*field) for field in fields))
    elif isinstance(value, list):
        yield from _enclosed(b"[]", (_group(group) for group in _groups(value)))
    elif isinstance(value, dict):
        groups = _groups(list(value.items()))
        yield from _enclosed(b"{}", ([ENCODER.encode(dict(group))[1:-1]] for group in groups))
    else:
        yield ENCODER.encode(value)


def list_parts(values: Iterable[Any]) -> Any:
    """The JSON of a list whose values are made only as they are written: an iterator for a field that is a list."""
    return _enclosed(b"[]", map(json_parts, values))


def joined(parts: Iterable[Part]) -> list[Part]:
    """The same in fewer parts: small ones are put together."""
    found: list[Part] = []
    waiting: list[Part] = []
    size = 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= PART_BYTES:
            found += [b"".join(waiting[:-1]), part] if len(part) >= PART_BYTES else [b"".join(waiting)]
            waiting, size = [], 0
    return [part for part in (*found, b"".join(waiting)) if part]


def _enclosed(brackets: bytes, entries: Iterable[Iterable[Part]]) -> Iterator[Part]:
    before = brackets[:1]
    for entry in entries:
        yield before
        yield from entry
        before = b","
    yield brackets if before == brackets[:1] else brackets[1:]


def _field(name: str, value: Any) -> Iterator[Part]:
    yield ENCODER.encode(name) + b":"
    yield from json_parts(value)


def _group(group: list[Any]) -> Iterator[Part]:
    return json_parts(group[0]) if len(group) == 1 else iter([ENCODER.encode(group)[1:-1]])


def _groups(values: list[Any]) -> Iterator[list[Any]]:
    """Neighbours, as many as are light together; what is heavy is alone."""
    group: list[Any] = []
    total = 0
    for value in values:
        weight = _weight(value)
        if group and total + weight > _HEAVY:
            yield group
            group, total = [], 0
        group.append(value)
        total += weight
    if group:
        yield group


def _weight(value: Any) -> int:
    """A bound on the entries and characters of a value, or more than `_HEAVY` where it is not quickly told."""
    if isinstance(value, str):
        return 1 + len(value)
    if isinstance(value, msgspec.Raw):
        return 1 + memoryview(value).nbytes
    if isinstance(value, Iterator):
        return _HEAVY + 1
    if isinstance(value, msgspec.Struct):
        inner: Iterable[Any] = (getattr(value, name) for name in value.__struct_fields__)
    elif isinstance(value, list | tuple | dict):
        if len(value) > _HEAVY:
            return _HEAVY + 1
        inner = value.values() if isinstance(value, dict) else value
    else:
        return 1
    total = 1
    for entry in inner:
        total += _weight(entry)
        if total > _HEAVY:
            break
    return total
