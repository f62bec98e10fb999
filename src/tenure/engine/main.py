"""The engine process: `python -m tenure.engine.main LISTENER REPORT PARENT`, configuration on standard input.

    I/O thread (switchboard)  <- bounded queues ->  main thread (engine loop)

Everything the process owns ends with `main`. It ends when the supervisor closes the life line or is gone, and when
either thread ends.
"""

import logging
import os
import queue
import secrets
import signal
import socket
import sys
import time
from typing import NamedTuple

import torch

from tenure.config import EngineConfig, cores, read_config
from tenure.core.admission import GateLimits
from tenure.core.plan import Row, Start, StepPlan
from tenure.core.report import Limits
from tenure.core.scheduler import Scheduler
from tenure.engine.estimator import StepCostEstimator
from tenure.engine.executor import ModelExecutor
from tenure.engine.io_thread import IOThread
from tenure.engine.loop import EngineLoop, Executor, Order
from tenure.engine.sampler import Sampler
from tenure.engine.sampling_head import SamplingHead
from tenure.engine.switchboard import Switchboard
from tenure.engine.threads import ThreadGovernor
from tenure.errors import CallerError, ResourceError
from tenure.kv.cache import CacheShape, KVCache
from tenure.models.base import LoadedModel
from tenure.models.loader import load
from tenure.process.lifeline import die_with_parent
from tenure.process.logs import configure_logging
from tenure.process.reports import Failed, Loaded, write_report
from tenure.sampling import SamplingParams
from tenure.wire.messages import ModelCard

logger = logging.getLogger("tenure.engine")

_SWITCH_INTERVAL = 0.001
"""Seconds after which a thread that computes lets the other one have the interpreter."""
_ORDERS_PER_ITEM = 4
_LEAST_CAPACITY = 2
_DTYPES = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def main() -> int:
    """Run an engine until it is told to stop; returns the exit code."""
    listener, report, parent = (int(argument) for argument in sys.argv[1:4])
    die_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are the supervisor's to answer; it closes the life line
    config = read_config(EngineConfig, sys.stdin.fileno())
    configure_logging(f"engine {config.model.name}")
    sys.setswitchinterval(_SWITCH_INTERVAL)
    torch.set_num_threads(config.threads or cores())
    io_thread = IOThread(
        Switchboard(secrets.token_hex(8), config.index), socket.socket(fileno=listener), sys.stdin.fileno()
    )
    io_thread.start()
    with torch.inference_mode():
        try:
            engine = _load(config)
        except (CallerError, ResourceError) as error:
            write_report(report, Failed(message=str(error)))
            return 1
        _run(engine, config, io_thread, report)
    return 0 if io_thread.stop() else 1


class _Engine(NamedTuple):
    """A loaded model with everything that a step needs."""

    scheduler: Scheduler
    executor: ModelExecutor
    estimator: StepCostEstimator
    card: ModelCard


def _load(config: EngineConfig) -> _Engine:
    started = time.monotonic()
    model = load(config.model.source, _DTYPES[config.dtype], config.device)
    limits, cache = _make_room(config, model)
    executor = ModelExecutor(model, cache, SamplingHead(model, Sampler()), limits.num_slots, limits.max_model_len)
    scheduler = Scheduler(limits, cache_seed=secrets.token_bytes(32), prefix_caching=config.prefix_caching)
    estimator = StepCostEstimator()
    _warm_up(executor, estimator, limits)
    return _Engine(scheduler, executor, estimator, _card(config, model, limits, time.monotonic() - started))


def _run(engine: _Engine, config: EngineConfig, io_thread: IOThread, report: int) -> None:
    orders: queue.Queue[Order] = queue.Queue(_ORDERS_PER_ITEM * _item_limit(config))
    loop = EngineLoop(
        engine.scheduler,
        engine.executor,
        orders,
        io_thread,
        max_tokens=config.max_num_batched_tokens,
        step_time=config.step_time,
        estimator=engine.estimator,
        governor=ThreadGovernor(torch.get_num_threads(), torch.set_num_threads) if config.step_time else None,
    )
    limits = GateLimits(
        items=_item_limit(config),
        tokens=config.max_num_queued_tokens,
        capacity=engine.scheduler.limits.capacity,
        vocabulary_size=engine.card.vocabulary_size,
    )
    io_thread.open_for_business(engine.card, limits, orders, lambda: loop.progress)
    write_report(report, Loaded(card=engine.card))
    loop.run()


def _item_limit(config: EngineConfig) -> int:
    return config.max_num_seqs + config.max_num_queued_reqs


def _make_room(config: EngineConfig, model: LoadedModel) -> tuple[Limits, KVCache]:
    """Allocate the cache: as many blocks as the memory allows, but no more than all slots could ever fill."""
    window = min(config.max_model_len or model.config.max_position_embeddings, model.config.max_position_embeddings)
    if config.max_model_len is not None and config.max_model_len > window:
        raise CallerError(f"--max-model-len {config.max_model_len} is beyond the model's window of {window} tokens")
    shape = CacheShape(model.config.num_layers, model.config.num_kv_heads, model.config.head_dim, model.dtype)
    per_block = shape.bytes_per_block(config.block_size)
    blocks = min(int(config.kv_cache_memory * 2**30 / per_block), -(-window // config.block_size) * config.max_num_seqs)
    if blocks < 1:
        raise CallerError(f"--kv-cache-memory {config.kv_cache_memory} GiB is less than one block ({per_block} bytes)")
    cache = KVCache(shape, blocks, config.block_size, config.device)
    limits = Limits(
        max_model_len=window, num_blocks=blocks, block_size=config.block_size, num_slots=config.max_num_seqs
    )
    if limits.capacity < _LEAST_CAPACITY:
        raise CallerError(f"window and cache leave room for {limits.capacity} token: a prompt and an answer need two")
    return limits, cache


def _warm_up(executor: Executor, estimator: StepCostEstimator, limits: Limits) -> None:
    """Run a few steps, so that no request pays for first uses, and the estimator knows what a step costs."""
    long = min(64, limits.capacity - 1)
    blocks = list(range(-(-long // limits.block_size)))
    for number, count in enumerate((1, long, 1, long)):
        start = Start(0, -1 - number, [0] * count, count, 0, SamplingParams(max_tokens=1, temperature=0.0))
        began = time.monotonic()
        executor.launch(StepPlan(0, [start], [Row(0, -1 - number, 0, count, blocks, True)]))
        executor.land()
        if number > 1:
            estimator.observe(count, count * (count + 1) / 2, time.monotonic() - began)


def _card(config: EngineConfig, model: LoadedModel, limits: Limits, seconds: float) -> ModelCard:
    return ModelCard(
        name=config.model.served_names[0],
        served_names=config.model.served_names,
        source=config.model.path,
        vocabulary_size=model.config.vocab_size,
        max_model_len=limits.max_model_len,
        block_size=limits.block_size,
        num_blocks=limits.num_blocks,
        dtype=str(model.dtype).removeprefix("torch."),
        load_seconds=round(seconds, 3),
    )


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    except Exception:
        logger.exception("the engine failed")
    finally:
        # The interpreter's own clean-up would wait for threads of libraries that nobody needs any more.
        sys.stderr.flush()
        os._exit(code)
