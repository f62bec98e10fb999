"""From the bytes of a body to a frozen struct, or a 400 that names the field."""

import re
from typing import TypeVar

import msgspec

from tenure.config import HttpLimits
from tenure.http.errors import MAX_ECHO_CHARACTERS, malformed_request
from tenure.http.json_shape import check_shape

T = TypeVar("T")

_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`\s*$")


def decode_body(body: bytes | bytearray, decoder: "msgspec.json.Decoder[T]", limits: HttpLimits) -> T:
    """Decode JSON. Raises a 400 for what is no UTF-8 or no JSON (NaN and lone surrogates included) or of another shape.

    The depth of the body is bounded first, so the decoder cannot run out of stack.
    """
    check_shape(body, limits)
    try:
        if not body.isascii():
            str(body, "utf-8")  # the decoder passes over keys that nobody reads
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text = str(error)
        found = _PATH.search(text)
        problem = text[: found.start()] if found else text
        path = found["path"] if found else ""
        where = f" at `{path[:MAX_ECHO_CHARACTERS]}`" if path else ""
        raise malformed_request(f"The request body is invalid{where}: {_plain(problem)}.", _field(path)) from None
    except UnicodeDecodeError as error:
        raise malformed_request(f"The request body is not valid JSON: byte {error.start} is not UTF-8.") from None
    except msgspec.DecodeError as error:
        detail = "incomplete, or with a lone surrogate" if "truncated" in str(error) else _plain(str(error))
        raise malformed_request(f"The request body is not valid JSON: {detail}.") from None
    except RecursionError:
        raise malformed_request("The request body is nested too deeply.") from None


def _field(path: str) -> str | None:
    return path[:MAX_ECHO_CHARACTERS] or None


def _plain(problem: str) -> str:
    """What is wrong, without the decoder's marks; a value that it repeats is cut."""
    text = problem.replace("`", "").removesuffix(".")
    return text if len(text) <= MAX_ECHO_CHARACTERS else text[: MAX_ECHO_CHARACTERS - 1] + "…"
