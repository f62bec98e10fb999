"""The choice between the implementations behind a seam."""

from collections.abc import Mapping
from typing import TypeVar

from tenure.errors import CallerError

_Backend = TypeVar("_Backend")


def choose(
    kind: str, backends: Mapping[str, _Backend], name: str | None, runs_native: bool, otherwise: str = "torch"
) -> _Backend:
    """The back end of this name; without one `native` where that runs, else `otherwise`. Raises CallerError."""
    if name is None:
        name = "native" if runs_native else otherwise
    if name not in backends:
        raise CallerError(f"no {kind} back end {name!r} (there are: {', '.join(backends)})")
    if name == "native" and not runs_native:
        raise CallerError(
            f"{kind} back end 'native' cannot run with this head size, element type, device, processor or installation"
        )
    return backends[name]
