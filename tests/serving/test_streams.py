"""What is streamed equals what is not streamed, and the same text comes whatever goes on around it."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.serving.script import END, recital, recited
from tests.serving.server import ServerProcess
from tests.serving.wire import CHAT, COMPLETIONS, piece_of, post, request

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "The three laws of thermodynamics are",
    "Dear Sir or Madam,\n\nI am writing to",
    "Water boils at",
    "1, 1, 2, 3, 5, 8,",
    "The most important thing about gardening is",
    "Q: Why is the sky blue?\nA:",
    "In 1969, the first",
)
TOKENS = 60
CLOSE = 1e-4
"""Two logits nearer than this may change places when the batch around them is another."""


def _streamed(server: ServerProcess, path: str, body: dict[str, Any]) -> list[str]:
    """The data of all events."""
    with server.connect() as wire:
        wire.send(post(path, {**body, "stream": True}))
        status, _ = wire.head()
        assert status == 200
        return wire.events()


def _streamed_text(server: ServerProcess, path: str, body: dict[str, Any]) -> str:
    *chunks, done = _streamed(server, path, body)
    assert done == "[DONE]"
    finishes = [json.loads(chunk)["choices"][0]["finish_reason"] for chunk in chunks]
    assert [finish for finish in finishes if finish] == [finishes[-1]], "one finish reason, in the last chunk"
    return "".join(map(piece_of, chunks))


def _whole_text(server: ServerProcess, path: str, body: dict[str, Any]) -> str:
    choice = server.http.post(path, json=body).json()["choices"][0]
    return str(choice["text"] if path == COMPLETIONS else choice["message"]["content"])


def test_recited_to_the_byte(server: ServerProcess) -> None:
    answer = server.complete("abc", 200, return_token_ids=True)
    assert answer["choices"][0]["text"] == recited("abc", 200)
    assert answer["choices"][0]["token_ids"] == recital("abc", 200)
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 200, 203)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("logprobs", [False, True])
def test_whole_characters_wherever_the_end_cuts(server: ServerProcess, path: str, logprobs: bool) -> None:
    """Every length from one to a whole round: each chunk is valid text, and only the ends may be half characters."""
    for count in range(1, 24):
        body = request(path, "h", count)
        if logprobs:
            body |= {"logprobs": 1} if path == COMPLETIONS else {"logprobs": True, "top_logprobs": 1}
        expected = recited("h" if path == COMPLETIONS else "user: h\n", count)
        chunks = [piece_of(event) for event in _streamed(server, path, body) if event != "[DONE]"]
        assert "".join(chunks) == expected == _whole_text(server, path, body)
        assert "\ufffd" not in "".join(chunks)[1:-1]


def test_ends_at_its_end(server: ServerProcess) -> None:
    choice = server.complete("abc$", 50)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    assert recital("abc$", 1) == [END]
    assert _streamed_text(server, COMPLETIONS, request(COMPLETIONS, "abc$", 50)) == ""


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_joined_stream_is_the_whole_text(exact_server: ServerProcess, path: str) -> None:
    body = request(path, "Five animals that live in the sea are", 30, model="smollm2")
    whole = _whole_text(exact_server, path, body)
    assert len(whole) > 50
    assert _streamed_text(exact_server, path, body) == whole
    for start, end in ((20, 21), (11, 35)):
        stopped = {**body, "stop": [whole[start:end], "never said"]}
        expected = whole[: whole.index(whole[start:end])]
        assert _whole_text(exact_server, path, stopped) == expected
        assert _streamed_text(exact_server, path, stopped) == expected
        shown = {**stopped, "include_stop_str_in_output": True}
        assert _streamed_text(exact_server, path, shown) == expected + whole[start:end]


def test_text_is_the_same_with_and_without_cached_blocks(exact_server: ServerProcess) -> None:
    prompt = "The quick brown fox jumps over the lazy dog. " * 12 + "Then"
    fresh = exact_server.text(prompt, 20, "smollm2", cache_salt="a salt of its own")
    before = exact_server.work("smollm2")
    assert exact_server.text(prompt, 20, "smollm2") == fresh
    assert (exact_server.work("smollm2") - before).cached == 0, "blocks of another salt are not found"
    before = exact_server.work("smollm2")
    assert exact_server.text(prompt, 20, "smollm2") == fresh
    assert (exact_server.work("smollm2") - before).cached > 100


def test_text_is_the_same_while_neighbours_are_aborted(server: ServerProcess, exact_server: ServerProcess) -> None:
    alone = exact_server.text(PROMPTS[1], 30, "smollm2")
    over = threading.Event()

    def disturb(target: ServerProcess, model: str) -> None:
        number = 0
        while not over.is_set():
            number += 1
            with target.connect() as wire:
                # What begins alike shares blocks with the request that is watched.
                body = request(COMPLETIONS, PROMPTS[1] + " x" * (number % 5), 5000, model=model, stream=True)
                wire.send(post(COMPLETIONS, body))
                if number % 3:
                    wire.head()
                    wire.event()
                wire.reset()

    disturbers = [
        threading.Thread(target=disturb, args=given) for given in [(server, "script"), (exact_server, "smollm2")]
    ]
    for thread in disturbers:
        thread.start()
    try:
        assert exact_server.text(PROMPTS[1], 30, "smollm2") == alone
        for _ in range(5):
            assert server.text(PROMPTS[1], 300) == recited(PROMPTS[1], 300)
    finally:
        over.set()
        for thread in disturbers:
            thread.join()


def test_greedy_text_is_the_same_alone_and_together(exact_server: ServerProcess) -> None:
    def complete(prompt: str) -> dict[str, Any]:
        answer = exact_server.complete(
            prompt, TOKENS, "smollm2", logprobs=2, ignore_eos=True, return_token_ids=True, cache_salt=prompt
        )
        choice: dict[str, Any] = answer["choices"][0]
        assert len(choice["token_ids"]) == TOKENS
        return choice

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        together = list(pool.map(complete, PROMPTS))
    for prompt, other in zip(PROMPTS, together, strict=True):
        _check_same_or_close(prompt, complete(prompt), other)


def _check_same_or_close(prompt: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    pairs = zip(one["token_ids"], other["token_ids"], strict=True)
    first = next((index for index, (left, right) in enumerate(pairs) if left != right), None)
    if first is not None:
        best, second = sorted(one["logprobs"]["top_logprobs"][first].values(), reverse=True)[:2]
        assert best - second < CLOSE, f"{prompt!r} differs at token {first}"
