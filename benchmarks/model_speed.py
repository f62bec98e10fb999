"""Tokens per second of the model alone (no scheduler, no sampling): decode and prefill, beside its bare products.

    python benchmarks/model_speed.py [SOURCE] [--threads N] [--kernels torch|native]

"Products" is the time of the linear layers alone, on the same rows, measured in the same run: what is above it is
attention, norms and the cost of calling torch.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch

from tenure.kv.cache import KVCache
from tenure.layers.batch import PackedBatch, pack
from tenure.models.llama import LlamaModel
from tenure.models.loader import load
from tenure.source import resolve_source

BLOCK_SIZE = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", default="smollm2")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--kernels", choices=("torch", "native"), help="default: native where they were built")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    started = time.perf_counter()
    model = load(resolve_source(arguments.source), attention=arguments.kernels, rows=arguments.kernels)
    assert isinstance(model, LlamaModel)
    print(f"load {time.perf_counter() - started:.2f} s")
    with torch.inference_mode():
        for rows, context in ((1, 200), (4, 200), (16, 200), (64, 200), (16, 1000), (1, 4000)):
            report(model, f"decode {rows:3} rows at context {context}", batch_of(rows, context - 1, 1), rows)
        for sequences, length in ((1, 128), (16, 128), (1, 2048)):
            report(model, f"prefill {sequences:2} x {length}", batch_of(sequences, 0, length), sequences)
        report(model, "prefill  1 x 16 after 1000", batch_of(1, 1000, 16), 1)


def batch_of(sequences: int, start: int, count: int) -> PackedBatch:
    blocks = -(-(start + count) // BLOCK_SIZE)
    order = np.random.default_rng(0).permutation(sequences * blocks).reshape(sequences, blocks)
    tokens = np.random.default_rng(1).integers(0, 1000, sequences * count)
    return pack(tokens, np.full(sequences, start), np.full(sequences, count), order, BLOCK_SIZE)


def report(model: LlamaModel, what: str, batch: PackedBatch, sampled: int) -> None:
    cache = KVCache(model.cache_shape, int(batch.block_tables_SB.max()) + 1, BLOCK_SIZE)
    rows = len(batch.token_ids_T)

    def step() -> None:
        model.logits(model.forward(batch, cache)[-sampled:])

    products = products_alone(model, rows, sampled)
    step_ms, products_ms = best(step), best(products)
    print(
        f"{what}: {step_ms:7.1f} ms, {rows / step_ms * 1e3:6.0f} tokens/s; products {products_ms:7.1f} ms "
        f"(step / products {step_ms / products_ms:.2f})"
    )


def products_alone(model: LlamaModel, rows: int, sampled: int) -> Callable[[], None]:
    config = model.config
    hidden = torch.randn(rows, config.hidden_size)
    attended = torch.randn(rows, config.num_heads * config.head_dim)
    inner = torch.randn(rows, config.intermediate_size)

    def run() -> None:
        for layer in model.layers:
            layer.qkv(hidden)
            layer.output.add(attended, hidden)
            layer.mlp.gate_up(hidden)
            layer.mlp.down.add(inner, hidden)
        model.head(hidden[:sampled])

    return run


def best(work: Callable[[], None], seconds: float = 1.5) -> float:
    """Milliseconds of the fastest of several runs."""
    work()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while not times or time.perf_counter() < until:
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times) * 1e3


if __name__ == "__main__":
    main()
