"""What an API process knows of the well-being and the load of one engine.

    well --silent for too long--> silent --any word--> well
    well --a step that does not end--> stuck --another step, or none--> well

Owned by the connection's receive task.
"""

import time
from collections.abc import Callable
from enum import Enum

from tenure.wire.messages import Heartbeat
from tenure.wire.step_watch import StepWatch

_MARGIN = 30.0
"""Seconds within which an engine that was killed has been started again and said its first word."""


class Health(Enum):
    WELL = "well"
    SILENT = "silent"
    STUCK = "stuck"


class EngineStatus:
    """`step_timeout`: seconds after which a step is taken for endless, and a silent engine for lost; 0 is never."""

    def __init__(self, step_timeout: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.health = Health.WELL
        self.speaks = False
        """It has said something over the connection that there is: a frozen engine's socket takes connections, too."""
        self._step_timeout = step_timeout
        self._clock = clock
        self._since = 0.0
        self._steps = StepWatch(step_timeout)
        self._reported = 0
        self._own = 0

    def __repr__(self) -> str:
        return f"<EngineStatus {self.health.value}, {self.outstanding_tokens} tokens>"

    @property
    def outstanding_tokens(self) -> int:
        """Prompt tokens that are open in the engine, by its last sign of life and what this process did since."""
        return max(0, self._reported + self._own)

    @property
    def beyond_help(self) -> bool:
        """The engine should have been killed by now, if anybody did that; the server cannot recover by itself."""
        patience = self._step_timeout + _MARGIN if self._step_timeout else 0.0
        return self.health is not Health.WELL and self._clock() - self._since >= patience

    def submitted(self, tokens: int) -> None:
        """This process has asked for a request with so many prompt tokens."""
        self._own += tokens

    def ended(self, tokens: int) -> None:
        """A request of this process is over, or was refused."""
        self._own -= tokens

    def hear(self) -> None:
        """The engine has said something."""
        self.speaks = True
        if self.health is Health.SILENT:
            self.health = Health.WELL

    def beat(self, heartbeat: Heartbeat) -> None:
        """Take a sign of life."""
        self._reported, self._own = heartbeat.outstanding_tokens, 0
        self._steps.look(heartbeat.step, heartbeat.step_age)
        if not self._steps.late:
            self.health = Health.WELL
        elif self._steps.endless and self.health is not Health.STUCK:
            self._turn(Health.STUCK)

    def fall_silent(self) -> None:
        """Nothing was heard for too long; the connection will be dropped."""
        self._turn(Health.SILENT)

    def disconnect(self) -> None:
        """The connection is gone, and with it all that the engine held for this process."""
        self.speaks = False
        self._reported = self._own = 0
        self._steps.forget()
        if self.health is Health.STUCK:
            self.health = Health.WELL

    def _turn(self, health: Health) -> None:
        self.health = health
        self._since = self._clock()
