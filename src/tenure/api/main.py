"""An API process: `python -m tenure.api.main COUNTERS LISTENER... REPORT PARENT`, configuration on standard input.

One task group owns everything in it: the connections to the engines, the HTTP server, the watch of the supervisor's
pipe, the drain. It ends after SIGTERM when it has drained, or at once when the supervisor is gone.
"""

import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

import anyio
import msgspec
import uvicorn

from tenure import __version__
from tenure.api.app import build_app, route_table
from tenure.api.common.body_readers import BodyReaders, worker
from tenure.api.common.context import AppContext
from tenure.api.operations.cancel_by_name import end_named
from tenure.checkpoints.model_config import read_sampling_defaults
from tenure.checkpoints.profile import read_profile
from tenure.client import EndNamed, EngineClient, ServedModel, ServedModels
from tenure.config import ApiConfig, HttpLimits, ReportConfig, read_config
from tenure.errors import TenureError
from tenure.http.cors import add_cors_headers
from tenure.http.guard import Guard
from tenure.http.web_server import web_server
from tenure.observe.counters import CounterSchema, SharedCounters, WorkerCounters
from tenure.observe.logs import configure_logging
from tenure.observe.request_observer import RequestObserver, Tracer
from tenure.process.fork_server import ForkServer
from tenure.process.reports import HEARTBEAT_INTERVAL, Alive, Failed, Serving, offer_report, write_report
from tenure.process.system import allow_descriptors, die_with_parent, end_of_file, request_short_time_slices
from tenure.prompts.text_model import TextModel, load_text_model, score_prompt_of
from tenure.request_id import new_process_name
from tenure.wire.messages import CancelByName, CancelledRequest

logger = logging.getLogger("tenure.api")

_OTHER_DESCRIPTORS = 512
"""Reserved for engines, files, and connections that are refused because there are too many."""
_MOST_DIGITS = 640
"""Of an integer in a body, the fewest that Python lets one set: reading a long one takes the square of its length."""
_SWITCH_INTERVAL = 0.0005
"""Seconds after which a thread that computes lets the event loop have the interpreter."""
_FINAL_ERRORS_TIMEOUT = 5.0
"""How long clients have, when the time to drain is over, to read that their requests are ended."""


def main() -> None:
    """Serve HTTP until SIGTERM."""
    counters, *descriptors, report, parent = (int(argument) for argument in sys.argv[1:])
    die_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGCHLD):  # Ctrl-C is the supervisor's to answer; nobody waits for children
        signal.signal(number, signal.SIG_IGN)
    config = read_config(ApiConfig, sys.stdin.fileno())
    configure_logging(config.title, config.report.log_format)
    try:
        texts = _text_models(config)
    except TenureError as error:
        write_report(report, Failed(message=str(error)))
        sys.exit(1)
    shared = SharedCounters(counters, CounterSchema(workers=config.workers, models=config.model_names))
    sys.set_int_max_str_digits(_MOST_DIGITS)
    gc.freeze()  # what is there now stays, and need not be looked through again and again
    fork_server = ForkServer.start(worker(route_table(), texts, config.settings, config.limits))
    request_short_time_slices()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    with closing(fork_server), _tracing(config.report) as tracer:
        listeners = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        serve = partial(_serve, config, texts, BodyReaders(fork_server), listeners, shared, report, tracer)
        anyio.run(serve, backend_options={"use_uvloop": True})


@contextmanager
def _tracing(config: ReportConfig) -> Iterator[Tracer | None]:
    if not config.traces_endpoint:
        yield None
        return
    from tenure.observe.tracing import open_tracer  # noqa: PLC0415 -- an extra, which others need not have

    with closing(open_tracer(config.traces_endpoint, __version__)) as tracer:
        yield tracer


async def _serve(
    config: ApiConfig,
    texts: dict[str, TextModel],
    readers: BodyReaders,
    listeners: list[socket.socket],
    shared: SharedCounters,
    report: int,
    tracer: Tracer | None,
) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async with anyio.create_task_group() as group:
            group.start_soon(_exit_with_supervisor)
            counter = shared.worker(config.worker)
            observer = RequestObserver(counter, log_bodies=config.report.log_bodies, tracer=tracer)
            process = new_process_name()

            async def end_here(names: CancelByName) -> list[CancelledRequest]:
                return await end_named(guard.open_exchanges, observer.ended, names)

            models = _served_models(config, texts, counter, process, end_here)
            group.start_soon(models.run)
            limits = _within_descriptors(config.limits)
            context = AppContext(
                models=models,
                texts=texts,
                settings=config.settings,
                counts=shared.snapshot,
                was_ready=shared.was_ready,
                epoch=config.epoch,
                started_at=config.started_at,
                process=process,
                end_named=end_here,
                draining=lambda: guard.snapshot().draining,
                readers=readers,
            )
            guard = build_app(context, observer, limits, config.api_keys, config.cors)
            server = web_server(add_cors_headers(guard, config.cors), limits, config.tls)
            group.start_soon(_drain_on_signal, signals, guard, server, config.shutdown_timeout)
            group.start_soon(_report_ready, models, report)
            group.start_soon(_report_alive, report)
            await server.serve(listeners)
            group.cancel_scope.cancel()


def _text_models(config: ApiConfig) -> dict[str, TextModel]:
    texts = {}
    for model in config.models:
        defaults = read_sampling_defaults(model.source) if config.settings.generation_config == "auto" else {}
        name, profile = model.served_names[0], read_profile(model.source, model.task)
        text = load_text_model(name, model.source, defaults, config.created)
        texts[name] = replace(text, profile=profile, score_prompt=score_prompt_of(profile, text.template))
    return texts


def _served_models(
    config: ApiConfig, texts: Mapping[str, TextModel], counter: WorkerCounters, process: str, end_here: EndNamed
) -> ServedModels:
    served = []
    for model, paths in zip(config.models, config.engine_sockets, strict=True):
        engines = [
            EngineClient(
                path,
                worker=config.worker,
                stall_timeout=config.limits.stall_timeout,
                on_cancelled=partial(counter.observe, "engine_cancel_seconds", model=model.served_names[0]),
                process=process,
                end_named=end_here,
            )
            for path in paths
        ]
        served.append(
            ServedModel(model.served_names, engines, texts[model.served_names[0]].profile.tasks, config.worker)
        )
    return ServedModels(served)


def _within_descriptors(limits: HttpLimits) -> HttpLimits:
    """Lower the limit of connections to what the process's limit of descriptors allows, less a reserve."""
    allowed = allow_descriptors(limits.max_connections + _OTHER_DESCRIPTORS) - _OTHER_DESCRIPTORS
    if allowed >= limits.max_connections:
        return limits
    logger.warning("the system's limit of open files (ulimit -n) allows %d connections", max(1, allowed))
    return msgspec.structs.replace(limits, max_connections=max(1, allowed))


async def _report_ready(models: ServedModels, report: int) -> None:
    # The sockets have been listening since before this process began, so nothing else need be waited for.
    await models.wait_ready()
    write_report(report, Serving())


async def _report_alive(report: int) -> None:
    while True:
        offer_report(report, Alive())
        await anyio.sleep(HEARTBEAT_INTERVAL)


async def _drain_on_signal(
    signals: AsyncIterator[signal.Signals], guard: Guard, server: uvicorn.Server, timeout: float
) -> None:
    """On SIGTERM: refuse new work, wait `timeout` seconds for open work, end the rest, and stop the server."""
    async for _ in signals:
        guard.drain("the server is shutting down")
        with anyio.move_on_after(timeout):
            await guard.wait_empty()
        guard.end_open("the server is shutting down")
        with anyio.move_on_after(_FINAL_ERRORS_TIMEOUT) as last_words:
            await guard.wait_empty()
        server.force_exit = last_words.cancelled_caught
        server.should_exit = True


async def _exit_with_supervisor() -> None:
    await end_of_file(sys.stdin.fileno())
    os._exit(0)  # without the supervisor nothing has to be cleaned up


if __name__ == "__main__":
    main()
