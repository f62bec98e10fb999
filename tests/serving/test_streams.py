"""What is streamed equals what is not streamed, and the same text comes whatever goes on around it."""

import json

import pytest
from tests.serving.script import END, recital, recited
from tests.serving.server import ServerProcess
from tests.serving.wire import CHAT, COMPLETIONS, piece_of, post, request


def test_recited_to_the_byte(server: ServerProcess) -> None:
    answer = server.complete("abc", 200, return_token_ids=True)
    assert answer["choices"][0]["text"] == recited("abc", 200)
    assert answer["choices"][0]["token_ids"] == recital("abc", 200)
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 200, "total_tokens": 203}


def test_ends_at_its_end(server: ServerProcess) -> None:
    choice = server.complete("abc$", 50)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    assert recital("abc$", 1) == [END]
