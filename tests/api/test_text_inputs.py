"""Texts that are tokenised in a worker thread: whole when somebody waits for them, and no further when nobody does."""

import threading

import anyio
import pytest

from tenure.api.text_inputs import encode_texts
from tenure.api.threads import in_thread_if_long
from tests.api.generation_rig import ByteTokenizer

LONG = "x" * 40_000


class SlowTokenizer(ByteTokenizer):
    """Waits in its first call until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = anyio.Event()
        self.release = threading.Event()
        self.calls: list[int] = []

    def encode_plain(self, texts):
        self.calls.append(len(texts))
        if len(self.calls) == 1:
            anyio.from_thread.run_sync(self.begun.set)
            assert self.release.wait(10)
        return super().encode_plain(texts)


@pytest.mark.parametrize("texts", [[], ["a"], ["a", "", "b"], [LONG, "a", LONG, LONG], ["y" * 20_000] * 5 + ["z"]])
def test_texts_are_tokenised_in_order_however_they_are_split(texts):
    assert encode_texts(ByteTokenizer(), texts) == [list(text.encode()) for text in texts]


def test_a_request_that_is_cancelled_is_not_tokenised_to_its_end():
    async def scenario() -> SlowTokenizer:
        tokenizer = SlowTokenizer()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as group:
                group.start_soon(in_thread_if_long, lambda: encode_texts(tokenizer, ["a", LONG, LONG, LONG]), 1, 0)
                await tokenizer.begun.wait()
                group.cancel_scope.cancel()
                tokenizer.release.set()
        return tokenizer

    assert anyio.run(scenario).calls == [2]
