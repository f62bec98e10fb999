"""`tenure models` and `tenure ledger`: a look at what there is and who holds it."""

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tenure.cli.http import decode, fetch
from tenure.errors import ResourceError
from tenure.source import ALIASES, installed_aliases
from tenure.wire.messages import EngineLedger, ServerLedger


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    tasks: list[str] = []


class _Models(msgspec.Struct):
    data: list[_Model]


def print_models(url: str, api_key: str) -> int:
    """Print built-in and served models; returns the exit code."""
    console = Console()
    installed = installed_aliases()
    table = Table("built-in model", "comes with", "installed")
    for alias, packaged in ALIASES.items():
        table.add_row(alias, packaged.distribution, "yes" if alias in installed else "no")
    console.print(table)
    try:
        served = decode(url, fetch(url, api_key, "/v1/models"), _Models)
    except ResourceError as error:
        console.print(str(error), style="dim", markup=False, highlight=False)
        return 0
    table = Table("served model", "window", "tasks", title=escape(url))
    for model in served.data:
        table.add_row(escape(model.id), str(model.max_model_len or ""), escape(", ".join(model.tasks)))
    console.print(table)
    return 0


def print_ledger(url: str, api_key: str, *, as_json: bool) -> int:
    """Print the ledger; returns 0 if it is conserved, else 1."""
    content = fetch(url, api_key, "/ledger")
    ledger = decode(url, content, ServerLedger)
    console = Console()
    if as_json:
        console.print_json(content.decode())
    else:
        _print_tables(console, ledger)
    return 0 if ledger.conserved else 1


def _print_tables(console: Console, ledger: ServerLedger) -> None:
    verdict = "[green]conserved[/green]" if ledger.conserved else "[red]NOT conserved[/red]"
    console.print(f"{verdict}, up for {ledger.uptime_s:.0f} s")
    outcomes = ", ".join(f"{count} {name}" for name, count in ledger.http.outcomes.items()) or "none ended"
    console.print(f"requests: {ledger.http.open} open of {ledger.http.arrivals}; {outcomes}")
    for engine in ledger.engines:
        _print_engine(console, engine)


def _print_engine(console: Console, engine: EngineLedger) -> None:
    if not engine.answering:
        console.print(f"{engine.model} {engine.index}: does not answer", style="red", markup=False)
        return
    table = Table(
        "resource", "total", "free", "cached", "leased", "quarantined", title=escape(f"{engine.model} {engine.index}")
    )
    blocks, slots, permits = engine.blocks, engine.slots, engine.permits
    table.add_row("blocks", *map(str, (blocks.total, blocks.free, blocks.cached, blocks.leased, blocks.quarantined)))
    table.add_row("slots", str(slots.total), str(slots.free), "", str(slots.leased), "")
    for name, permit in (("items", permits.items), ("tokens", permits.tokens)):
        limit = permit.limit or 0
        table.add_row(f"permits: {name}", str(limit), str(limit - permit.held), "", str(permit.held), "")
    console.print(table)
    if engine.holders:
        holders = Table("holder", "request", "label", "state", "blocks", "age")
        for row in engine.holders:
            # A label is a caller's own text.
            cells = (row.holder, row.request, row.label, row.state, str(row.blocks), f"{row.age_s:.1f} s")
            holders.add_row(*map(escape, cells))
        console.print(holders)
