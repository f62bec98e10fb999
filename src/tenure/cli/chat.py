"""`tenure chat`: a conversation in the terminal."""

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import httpx
import msgspec
from rich.console import Console

from tenure.cli.http import client, explain


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    error: dict[str, Any] | None = None


class AnswerFailed(Exception):
    """The server ended the answer with an error."""


def run_chat(url: str, api_key: str, *, model: str, system: str, max_tokens: int, temperature: float | None) -> int:
    """Read lines and stream answers until end of file; returns the exit code, 1 when the last answer failed."""
    console = Console()
    options = {"model": model or None, "max_tokens": max_tokens, "temperature": temperature, "stream": True}
    messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    failed = False
    with client(url, api_key) as http:
        console.print("[dim]Ctrl-C cancels an answer, Ctrl-D ends.[/dim]")
        while (line := _ask(console)) is not None:
            if not line.strip():
                continue
            messages.append({"role": "user", "content": line})
            answer = _answer(console, http, {**options, "messages": messages})
            failed = answer is None
            if answer is None:
                messages.pop()
            else:
                messages.append({"role": "assistant", "content": answer})
    return int(failed)


def _ask(console: Console) -> str | None:
    """A line of the user; None at the end."""
    try:
        return console.input("[bold]> [/bold]")
    except (EOFError, KeyboardInterrupt):
        console.print()
        return None


def _answer(console: Console, http: httpx.Client, body: dict[str, Any]) -> str | None:
    """Stream one answer to the terminal. Returns what there is of it; None when it failed."""
    parts: list[str] = []
    try:
        with closing(stream_answer(http, body)) as pieces:
            for text in pieces:
                parts.append(text)
                console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        console.print(" [dim](cancelled)[/dim]")
        return "".join(parts)
    except (AnswerFailed, httpx.HTTPError) as error:
        where = "" if isinstance(error, AnswerFailed) else f"{str(http.base_url).rstrip('/')}: "
        console.print(f"{where}{explain(error)}", style="red", markup=False, highlight=False, soft_wrap=True)
        return None
    console.print()
    return "".join(parts)


def stream_answer(http: httpx.Client, body: dict[str, Any]) -> Generator[str, None, None]:
    """The pieces of a streamed answer. Raises AnswerFailed; closing the iterator cancels the request."""
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != httpx.codes.OK:
            response.read()
            raise AnswerFailed(_message(response.content))
        for line in response.iter_lines():
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                return
            if data != line:
                yield from _texts(data)
        raise AnswerFailed("the answer broke off")


def _texts(data: str) -> Iterator[str]:
    try:
        event = msgspec.json.decode(data, type=_Event)
    except msgspec.MsgspecError as error:
        raise AnswerFailed(f"the server sent something that is no part of an answer: {error}") from error
    if event.error is not None:
        raise AnswerFailed(str(event.error.get("message", "the answer failed")))
    for choice in event.choices:
        if choice.delta.content:
            yield choice.delta.content


def _message(content: bytes) -> str:
    try:
        error = msgspec.json.decode(content, type=_Event).error
    except msgspec.MsgspecError:
        error = None
    return str((error or {}).get("message", "the server refused the request"))
