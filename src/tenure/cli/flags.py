"""Numbers on the command line: within bounds that every process can carry, and taken as they are written."""

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token, validators

MOST = 2**31 - 1


def whole(least: int, most: int = MOST) -> Parameter:
    """A whole number; cyclopts by itself would cut 1.5 down to 1."""
    return Parameter(converter=_whole, validator=validators.Number(gte=least, lte=most))


def real(least: float, most: float = MOST) -> Parameter:
    """A finite number."""
    return Parameter(validator=validators.Number(gte=least, lte=most))


def _whole(kind: Any, tokens: Sequence[Token]) -> int:
    del kind
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f'"{tokens[0].value}" is no whole number') from None


AtLeastOne = Annotated[int, whole(1)]
Seconds = Annotated[float, real(0)]
Positive = Annotated[float, Parameter(validator=validators.Number(gt=0, lte=MOST))]
Texts = Annotated[list[str], Parameter(consume_multiple=True, negative="")]
