"""The engine process: `python -m tenure.engine.main LISTENER REPORT PARENT`, configuration on standard input.

    I/O thread (engine server)  <- bounded queues ->  main thread (engine loop)

Everything the process owns ends with `main`. It ends when the supervisor closes the control pipe or is gone, and when
either thread ends.
"""

import logging
import os
import queue
import secrets
import signal
import socket
import sys
from functools import partial
from typing import TYPE_CHECKING

import torch

from tenure.config import EngineConfig, read_config
from tenure.core.admission import GateLimits
from tenure.cores import cores
from tenure.engine.assembly import Engine, assemble
from tenure.engine.engine_server import EngineServer
from tenure.engine.io_thread import IOThread
from tenure.engine.loop import EngineLoop
from tenure.engine.orders import Order
from tenure.engine.step_tuner import StepTuner
from tenure.engine.threads import ThreadGovernor
from tenure.errors import CallerError, ResourceError
from tenure.observe.logs import configure_logging
from tenure.process.reports import Failed, Loaded, offer_report, write_report
from tenure.process.system import die_with_parent

if TYPE_CHECKING:
    from tenure.engine.kv_exchange import KVExchange
    from tenure.engine.kv_service import KVService

logger = logging.getLogger("tenure.engine")

_SWITCH_INTERVAL = 0.001
"""Seconds after which a thread that computes lets the other one have the interpreter."""
_ORDERS_PER_ITEM = 8


def main() -> int:
    """Run an engine until it is told to stop; returns the exit code."""
    listener, report, parent = (int(argument) for argument in sys.argv[1:4])
    die_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are the supervisor's to answer; it closes the control pipe
    config = read_config(EngineConfig, sys.stdin.fileno())
    configure_logging(config.title, config.log_format)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    torch.set_num_threads(config.threads or cores())
    epoch = secrets.token_hex(8)
    io_thread = IOThread(
        EngineServer(epoch, config.index),
        socket.socket(fileno=listener),
        sys.stdin.fileno(),
        partial(offer_report, report),
    )
    io_thread.start()
    with torch.inference_mode():
        try:
            engine = assemble(config)
            orders: queue.Queue[Order] = queue.Queue(_ORDERS_PER_ITEM * engine.card.most_items)
            exchange, service = _exchange(config, engine, epoch, orders, io_thread)
        except (CallerError, ResourceError) as error:
            write_report(report, Failed(message=str(error)))
            return 1
        loop = _loop(engine, config, orders, io_thread, exchange)
        limits = GateLimits(
            items=engine.card.most_items,
            tokens=engine.card.most_prompt_tokens,
            capacity=engine.scheduler.limits.capacity,
            vocabulary_size=engine.card.vocabulary_size,
        )
        io_thread.start_serving(engine.card, limits, orders, lambda: loop.progress, service)
        write_report(report, Loaded(card=engine.card))
        loop.run()
    return 0 if io_thread.stop() else 1


def _exchange(
    config: EngineConfig, engine: Engine, epoch: str, orders: "queue.Queue[Order]", io_thread: IOThread
) -> "tuple[KVExchange | None, KVService | None]":
    """Both sides of the exchange of prompts with other engines, where there is one. Raises ResourceError."""
    if config.kv_transfer is None or engine.cache is None:
        return None, None
    from tenure.engine.kv_assembly import assemble_exchange  # noqa: PLC0415 -- others do without it

    return assemble_exchange(config.kv_transfer, engine, epoch, orders.put_nowait, io_thread)


def _loop(
    engine: Engine,
    config: EngineConfig,
    orders: "queue.Queue[Order]",
    io_thread: IOThread,
    exchange: "KVExchange | None",
) -> EngineLoop:
    tuner = StepTuner(
        engine.estimator,
        max_tokens=config.max_num_batched_tokens,
        step_time=config.step_time,
        governor=ThreadGovernor(torch.get_num_threads(), engine.results.set_threads) if config.step_time else None,
    )
    depth = int(config.async_scheduling)
    return EngineLoop(engine.scheduler, engine.runner, orders, io_thread, tuner, depth=depth, exchange=exchange)


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
