"""How the commands talk to a running server."""

from typing import TypeVar

import httpx
import msgspec

from tenure.errors import CallerError, ResourceError

Page = TypeVar("Page")


def client(url: str, api_key: str, timeout: float | None = None) -> httpx.Client:
    """An HTTP client for the server at `url`; `timeout` in seconds, None waits as long as it takes.

    Raises CallerError when `url` is none.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        return httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(timeout, connect=5.0), trust_env=False)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise CallerError(f"--url or --api-key cannot be used: {error}") from error


def fetch(url: str, api_key: str, path: str) -> bytes:
    """GET one of the server's pages; raises ResourceError that says what is wrong."""
    try:
        with client(url, api_key, timeout=10.0) as http:
            response = http.get(path)
    except httpx.HTTPError as error:
        raise ResourceError(f"{url}: {explain(error)}") from error
    if response.status_code != httpx.codes.OK:
        raise ResourceError(f"{url}{path} answers {response.status_code}")
    return response.content


def decode(url: str, content: bytes, kind: type[Page]) -> Page:
    """Decode one of the server's pages; raises ResourceError when something else than Tenure answers there."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise ResourceError(f"what answers at {url} is no Tenure server: {error}") from error


def explain(error: Exception) -> str:
    """What went wrong, for a person."""
    if isinstance(error, httpx.ConnectError):
        return "no server answers there; start one with: tenure serve"
    return str(error) or type(error).__name__
