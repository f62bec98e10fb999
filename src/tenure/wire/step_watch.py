"""Tells a step that does not end from one that only looks so."""


class StepWatch:
    """Follows the signs of life of an engine. `patience`: seconds that a step may take; 0 is for ever.

    A step is `endless` when two signs in a row tell that it is late: when the whole machine, or who follows, has stood
    still, the first one afterwards tells of a step as old as that, and means nothing.
    """

    def __init__(self, patience: float) -> None:
        self.endless = False
        self._patience = patience
        self._late_step: int | None = None

    @property
    def late(self) -> bool:
        """The last sign told of a step beyond the patience."""
        return self._late_step is not None

    def look(self, step: int, age: float | None) -> None:
        """Take what a sign of life says: the running step's number, and how long it has taken (None: none runs)."""
        late = bool(self._patience) and age is not None and age > self._patience
        self.endless = late and step == self._late_step
        self._late_step = step if late else None

    def forget(self) -> None:
        """What comes next is of another life."""
        self.endless = False
        self._late_step = None
