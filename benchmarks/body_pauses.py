"""How long an API process is held up by a large body, or a large answer, of each kind, in milliseconds.

A server reads bodies of 32 MiB, one after the other, while a thread and a task in its API process tick (see
`benchmarks/ticking`). `thread`: the longest time for which something kept the interpreter to itself. `event loop`: the
longest time in which nothing else was served.

    python -m benchmarks.body_pauses [--mebibytes 32]
"""

import argparse
import json
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

from benchmarks.servers import tenure
from benchmarks.ticking.sitecustomize import PAUSES

CHAT, COMPLETE, RERANK, POOL = "/v1/chat/completions", "/v1/completions", "/v1/rerank", "/pooling"


def filled(before: str, item: str, after: str, separator: str = ",") -> Callable[[int], bytes]:
    """A body of a size, of as many items as go into it."""

    def fill(size: int) -> bytes:
        count = (size - len(before) - len(after)) // len((item + separator).encode())
        return (before + separator.join([item] * count) + after).encode()

    return fill


def distinct_keys(size: int) -> bytes:
    return json.dumps({"prompt": "a", "metadata": {f"key {number}": number for number in range(size // 32)}}).encode()


def documents(count: int) -> Callable[[int], bytes]:
    def fill(size: int) -> bytes:
        text = "It was a dark and stormy night. " * (size // count // 32 - 1)
        return json.dumps({"model": "minilm", "query": "night", "documents": [text] * count, **CUT}).encode()

    return fill


LOGPROBS = {"model": "smollm2", "prompt_logprobs": 20, "max_tokens": 1}
VECTORS = {"model": "minilm", "task": "token_embed"}
CUT = {"truncate_prompt_tokens": 8, "max_tokens": 1}
CUT_TEXT = ',"truncate_prompt_tokens":8,"max_tokens":1}'
BODIES: Mapping[str, tuple[str, Callable[[int], bytes]]] = {
    "an ordinary small body": (COMPLETE, lambda size: json.dumps({"prompt": "Hello", **CUT}).encode()),
    "token ids": (COMPLETE, filled('{"prompt":[', "12345", f"]{CUT_TEXT}")),
    "token ids, within the limits": (COMPLETE, lambda size: filled('{"prompt":[', "12345", f"]{CUT_TEXT}")(3 << 20)),
    "one text": (COMPLETE, filled('{"prompt":"', "It was a dark night.", f'"{CUT_TEXT}', " ")),
    "one text, refused": (COMPLETE, filled('{"prompt":"', "It was a dark night.", '"}', " ")),
    "one text, not ASCII": (COMPLETE, filled('{"prompt":"', "Es war 夜 🌃 hmm", f'"{CUT_TEXT}', " ")),
    "one text, escaped": (COMPLETE, filled('{"prompt":"', "\\u65e5\\n a", '"}', " ")),
    "100 documents": (RERANK, lambda size: documents(100)(size // 2)),
    "8000 documents": (RERANK, lambda size: documents(8000)(size // 8)),
    "deep arrays": (COMPLETE, lambda size: b'{"prompt":' + b"[" * (size // 2) + b"]" * (size // 2) + b"}"),
    "empty arrays": (COMPLETE, filled('{"prompt":[', "[]", "]}")),
    "empty arrays, within the limits": (COMPLETE, lambda size: filled('{"prompt":[', "[]", "]}")(65000 * 3)),
    "integers of 640 digits": (COMPLETE, filled('{"prompt":[', "1" * 640, "]}")),
    "integers of 30,000 digits": (COMPLETE, filled('{"prompt":[', "1" * 30_000, "]}")),
    "distinct keys": (COMPLETE, distinct_keys),
    "keys that are not UTF-8": (COMPLETE, lambda size: b'{"' + b"\xff" * size + b'":1}'),
    "a chat history": (
        CHAT,
        filled('{"messages":[', '{"role":"user","content":"' + "yes " * 150 + '"}', f"]{CUT_TEXT}"),
    ),
    "many turns": (
        CHAT,
        lambda size: filled('{"messages":[', '{"role":"user","content":"a"}', f"]{CUT_TEXT}")(60000 * 30),
    ),
    "logprobs of a prompt": (COMPLETE, lambda size: json.dumps({"prompt": [9] * 4000, **LOGPROBS}).encode()),
    "vectors of tokens": (POOL, lambda size: json.dumps({"input": ["the dark night " * 80] * 64, **VECTORS}).encode()),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=float, default=32)
    size = int(parser.parse_args().mebibytes * 1024 * 1024) - 64
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(PAUSES.size))
        file.flush()
        memory = mmap.mmap(file.fileno(), PAUSES.size)
        os.environ["TENURE_PAUSES"] = file.name
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(Path(__file__).parent / "ticking"), os.environ.get("PYTHONPATH", "")]
        )
        with tenure("smollm2", "minilm") as url, httpx.Client(base_url=url, timeout=600, trust_env=False) as http:
            print(f"{'':34} {'status':>6} {'thread':>8} {'event loop':>10}")
            for name, (path, make) in BODIES.items():
                body = make(size)
                memory[:] = bytes(PAUSES.size)
                reply = http.post(path, content=body, headers={"content-type": "application/json"})
                thread, loop = PAUSES.unpack(memory[:])
                print(f"{name:34} {reply.status_code:6} {thread * 1e3:8.1f} {loop * 1e3:10.1f}", flush=True)


if __name__ == "__main__":
    main()
