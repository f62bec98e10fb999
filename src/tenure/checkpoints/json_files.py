"""Reading of the JSON files that describe a model; every fault in them is a ResourceError."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tenure.errors import ResourceError

Raw = Mapping[str, Any]

_Shape = TypeVar("_Shape", bound=msgspec.Struct)

MAX_JSON_BYTES = 16 << 20


@contextmanager
def sensible(path: Path, of: str) -> Iterator[None]:
    """Scope in which `of` is made from values of a file; any failure becomes a ResourceError that names the file."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        detail = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else str(error)
        raise ResourceError(f"{path}: what it says of {of} makes no sense: {detail}") from error


def read_object(path: Path, *, required: bool = True) -> Raw:
    """A JSON object; an empty one for a file that is neither there nor required. ResourceError names the file."""
    if not required and not path.is_file():
        return {}
    raw = read_json(path)
    if not isinstance(raw, dict):
        raise ResourceError(f"{path}: not a JSON object")
    return raw


def read_length(path: Path, raw: Raw, key: str) -> int | None:
    """The field `key`, a positive number of tokens; None when it is absent. Raises ResourceError for another value."""
    length = raw.get(key)
    if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 1):
        raise ResourceError(f"{path}: a {key} of {length!r} makes no sense")
    return length


def shortest(*lengths: int | None) -> int | None:
    """The least of the lengths that are stated; None where none is."""
    return min((length for length in lengths if length is not None), default=None)


def check_sizes(path: Path, config: object, **most: int) -> None:
    """Raise ResourceError for a size of `config`, by its name, that is not from 1 to `most`."""
    for name, limit in most.items():
        size = getattr(config, name)
        if not 1 <= size <= limit:
            raise ResourceError(f"{path}: a {name} of {size} makes no sense")


def read_struct(path: Path, shape: type[_Shape], *, required: bool = False) -> _Shape:
    """A JSON file of any size as `shape`, whose defaults stand for a file that need not be there. ResourceError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=shape)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if isinstance(error, FileNotFoundError) and not required:
            return shape()
        raise ResourceError(f"{path}: {error}") from error


def read_json(path: Path) -> Any:
    """Any JSON value. ResourceError names a file that cannot be read, is too large, or holds something else."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ResourceError(f"{path}: too large for a configuration")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise ResourceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ResourceError(f"{path}: not valid JSON: {error}") from error
