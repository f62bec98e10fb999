"""What a child process tells its supervisor: lines of JSON over a pipe of its own."""

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
    """A child lives (an engine's I/O thread, an API process's event loop); said once a second."""

    step: int = 0
    """Of an engine: the number of the step that runs, or ran last."""
    busy: bool = False
    """It has something to do: as long as `step` stays the same, it has not gone on."""


class Failed(Report, frozen=True):
    """The child cannot work and ends; starting it again would not help. The message is fit for the user's eyes."""

    message: str


AnyReport = Loaded | Serving | Alive | Failed


def write_report(descriptor: int, report: AnyReport) -> None:
    """Send a report; a supervisor that is gone is no error here, since its end has its own signal."""
    try:
        os.write(descriptor, msgspec.json.encode(report) + b"\n")
    except BrokenPipeError:
        return


def offer_report(descriptor: int, report: AnyReport) -> None:
    """Send a report, unless the supervisor has left so many unread that there is no room for one."""
    room = select.poll()
    room.register(descriptor, select.POLLOUT)
    if room.poll(0):
        write_report(descriptor, report)


def read_reports(data: bytes) -> list[AnyReport]:
    """Decode whole lines."""
    return [msgspec.json.decode(line, type=AnyReport) for line in data.splitlines()]
