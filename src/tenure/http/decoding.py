"""From the bytes of a body to a frozen struct, or a 400 that names the field."""

import re
from typing import TypeVar

import msgspec

from tenure.http.errors import MAX_ECHO_CHARACTERS, malformed_request

T = TypeVar("T")

_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`\s*$")


def decode_body(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """Decode JSON. Raises a 400 for bytes that are no JSON (NaN and lone surrogates included) or of another shape.

    The depth of the body is bounded before this is called, so the decoder cannot run out of stack.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text = str(error)
        found = _PATH.search(text)
        problem = text[: found.start()] if found else text
        path = found["path"] if found else ""
        where = f" at `{path[:MAX_ECHO_CHARACTERS]}`" if path else ""
        raise malformed_request(f"The request body is invalid{where}: {_plain(problem)}.", _field(path)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
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
