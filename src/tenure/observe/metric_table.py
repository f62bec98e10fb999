"""What `/metrics` exports, read from the table of `metrics.md`, which stands beside this module for people to read."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class MetricRow:
    """One family of series: a row of the table. `name` is as exported, without what a histogram's series add."""

    name: str
    kind: Kind
    meaning: str
    unit: str
    labels: tuple[str, ...]
    moves: str
    """When it changes."""
    path: str
    """Where an `EngineLedger` has it, as attributes with points between them; `*` stands for each of several by the
    value of the last label. Empty for what the ledger of an engine has not."""


def _metric_row(row: str) -> MetricRow:
    name, kind, meaning, unit, labels, moves, path = (cell.strip().replace("`", "") for cell in row.split("|")[1:-1])
    return MetricRow(name, Kind(kind), meaning, unit, tuple(labels.split(", ")), moves, path)


_PAGE = Path(__file__).with_name("metrics.md").read_text(encoding="utf-8")
TABLE = tuple(_metric_row(line) for line in _PAGE.splitlines() if line.startswith("| `"))
METRICS = {metric.name: metric for metric in TABLE}
