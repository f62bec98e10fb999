"""API overhead per streamed token: handlers, text assembly, JSON, guard; a scripted engine, no sockets.

Run from the repository: `python -m benchmarks.api_overhead`. Microseconds of one core per token, best of three.
"""

import time

from tests.api.generation_rig import END, STOP, Rig, output, row

TOKENS = 5000
CASES = {
    "plain": {},
    "logprobs, 5 alternatives": {"logprobs": True, "top_logprobs": 5},
    "two stop strings": {"stop": ["zzz", "END"]},
    "continuous usage": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
}
ALTERNATIVES = [(98 + rank, -1.0 - rank) for rank in range(4)]


def script(submit):
    """One token a step, letters in turn."""
    wanted = submit.sampling.logprobs is not None
    logprobs = [row(97, -0.5, *ALTERNATIVES)] if wanted else None
    steps = [[output(0, [97 + number % 26], logprobs=logprobs)] for number in range(TOKENS - 1)]
    return [*steps, [output(0, [END], STOP, logprobs=logprobs)]]


def seconds(fields: dict[str, object]) -> float:
    rig = Rig(script, max_model_len=10 * TOKENS)
    started = time.perf_counter()
    reply = rig.chat(stream=True, **fields)
    elapsed = time.perf_counter() - started
    assert reply.status_code == 200
    return elapsed


def main() -> None:
    for name, fields in CASES.items():
        best = min(seconds(fields) for _ in range(3))
        print(f"{name:28} {best / TOKENS * 1e6:6.1f} µs per token")


if __name__ == "__main__":
    main()
