"""Which engines and API processes have reported that they are ready, and whether all have.

Owner of: the cards of the engines, the API processes that serve. Every change comes from a child's report or its death.
"""

from collections.abc import Callable, Sequence

from tenure.process.reports import AnyReport, Loaded, Serving
from tenure.wire.messages import ModelCard


class Readiness:
    """`complete` is called with the engines' cards when all are ready, and again after each loss of an API process."""

    def __init__(self, engines: int, workers: int, complete: Callable[[Sequence[ModelCard]], None]) -> None:
        self._engines = engines
        self._workers = workers
        self._complete = complete
        self._cards: dict[int, ModelCard] = {}
        self._serving: set[int] = set()
        self._announced = False

    def note_report(self, number: int, report: AnyReport) -> None:
        """Take the report of an engine or an API process, each counted from 0.

        The report of an API process that all models are ready may be read before the last engine's own.
        """
        if isinstance(report, Loaded):
            self._cards[number] = report.card
        elif isinstance(report, Serving):
            self._serving.add(number)
        self._announce_if_complete()

    def left(self, worker: int) -> None:
        self._serving.discard(worker)
        self._announced = False

    def _announce_if_complete(self) -> None:
        if not self._announced and len(self._cards) == self._engines and len(self._serving) == self._workers:
            self._announced = True
            self._complete([self._cards[engine] for engine in range(self._engines)])
