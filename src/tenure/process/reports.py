"""The reports of a child process to its supervisor: lines of JSON over a pipe."""

import os
import select

import msgspec

from tenure.wire.messages import ModelCard

HEARTBEAT_INTERVAL = 1.0
"""Seconds between a child's signs of life."""


class Report(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Base of all reports."""


class Loaded(Report, frozen=True):
    """An engine admits requests."""

    card: ModelCard


class Serving(Report, frozen=True):
    """An API process accepts requests, and every model is ready."""


class Alive(Report, frozen=True):
    """Heartbeat of a child (an engine's I/O thread, an API process's event loop), once a second."""

    step: int = 0
    """The number of the engine's current or last step; 0 from an API process."""
    busy: bool = False
    """It has work, so an unchanged `step` means that it makes no progress."""


class Failed(Report, frozen=True):
    """The child cannot work and ends; a restart would not help. `message` is shown to the operator."""

    message: str


AnyReport = Loaded | Serving | Alive | Failed


def write_report(descriptor: int, report: AnyReport) -> None:
    """Send a report, waiting for room in the pipe. Errors are ignored: the supervisor's end is noticed elsewhere."""
    try:
        os.write(descriptor, msgspec.json.encode(report) + b"\n")
    except BrokenPipeError:
        return


def offer_report(descriptor: int, report: AnyReport) -> None:
    """Send a report, or drop it when the pipe is full."""
    room = select.poll()
    room.register(descriptor, select.POLLOUT)
    if room.poll(0):
        write_report(descriptor, report)


def read_reports(data: bytes) -> list[AnyReport]:
    """Decode complete lines, one report each."""
    return [msgspec.json.decode(line, type=AnyReport) for line in data.splitlines()]
