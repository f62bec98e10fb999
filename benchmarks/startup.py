"""How long from process start to the first answered request of SmolLM2.

python -m benchmarks.startup
"""

import argparse
import statistics
import time

import httpx

from benchmarks.servers import tenure

BODY = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    seconds = []
    for run in range(parser.parse_args().runs):
        began = time.perf_counter()
        with tenure("smollm2", port=8191 + run) as url:
            httpx.post(f"{url}/v1/chat/completions", json=BODY, timeout=60).raise_for_status()
            seconds.append(time.perf_counter() - began)
        print(f"run {run + 1}: {seconds[-1]:.2f} s")
    print(f"median: {statistics.median(seconds):.2f} s")


if __name__ == "__main__":
    main()
