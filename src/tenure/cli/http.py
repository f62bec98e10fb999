"""How the commands talk to a running server."""

import httpx

from tenure.errors import ResourceError


def client(url: str, api_key: str, timeout: float | None = None) -> httpx.Client:
    """An HTTP client for the server at `url`; `timeout` in seconds, None waits as long as it takes."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(timeout, connect=5.0), trust_env=False)


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


def explain(error: Exception) -> str:
    """What went wrong, for a person."""
    if isinstance(error, httpx.ConnectError):
        return "no server answers there; start one with: tenure serve"
    return str(error) or type(error).__name__
