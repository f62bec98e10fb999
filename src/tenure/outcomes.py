"""The vocabulary of endings, shared by every process.

An `Outcome` belongs to a request (one HTTP call): every arrival ends in exactly one.
A `FinishReason` belongs to an item (one sequence of a request) and is counted separately.
"""

from enum import StrEnum


class Outcome(StrEnum):
    """How a request ended. Arrivals = the sum of all outcomes + open requests, at every moment."""

    OK = "ok"
    INVALID = "invalid"
    QUEUE_FULL = "queue_full"
    UNAVAILABLE = "unavailable"
    DEADLINE = "deadline"
    CLIENT_CANCELLED = "client_cancelled"
    STALLED = "stalled"
    ABORTED = "aborted"
    KV_LOST = "kv_lost"
    WORKER_LOST = "worker_lost"
    ENGINE_ERROR = "engine_error"


class FinishReason(StrEnum):
    """Why an item produced its last token."""

    STOP = "stop"
    LENGTH = "length"
    REPETITION = "repetition"
