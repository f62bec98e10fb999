"""How many threads compute a step: every core, or one while other programs keep the cores busy.

A step is hundreds of short parallel pieces, each of which ends when its slowest thread does. On cores of its own, more
threads are faster; where a thread has to wait for its turn on a core, each piece waits with it, and one thread can be
several times as fast. The governor finds out by trying: now and then some steps run the other way, and what they took,
against what such steps were expected to take, decides.

    using --every now and then--> trying (a step to settle, then measured ones) --better by a margin--> using the other
                                                                                --not better--> using

The next trial waits until what the last one has cost is a hundredth of the time. While the process gets nearly all of
the time of all cores, nobody else wants them, and it is tried but rarely.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

_LEAST_WAIT = 2.0
_LONGEST_WAIT = 32.0
"""Seconds of computing between two trials."""
_WORTH = 100.0
"""Seconds between two trials for each that the first has cost."""
_MEASURED = 0.1
"""Seconds of steps that decide: short ones differ too much from each other for one to."""
_MARGIN = 0.85
_SMOOTHING = 0.1
_UNDISTURBED = 0.85
"""Of the time of all cores, as much as a step takes on a quiet machine: threads also wait for each other."""


@dataclass(slots=True)
class _Trial:
    """Its first step finds caches and threads as the others left them, and is not measured."""

    usual: float
    """What a step takes without it, over what it is expected to take."""
    settled: bool = False
    cost: float = 0.0
    expected: float = 0.0
    seconds: float = 0.0

    def add(self, expected: float, seconds: float) -> None:
        self.cost += seconds - self.usual * expected
        if self.settled:
            self.expected += expected
            self.seconds += seconds
        self.settled = True

    @property
    def ratio(self) -> float:
        return self.seconds / self.expected


class ThreadGovernor:
    """Calls `set_threads` with `most` or with 1. Owned by the engine loop.

    `cpu_time` gives the seconds that all threads of the process have computed.
    """

    def __init__(
        self, most: int, set_threads: Callable[[int], None], cpu_time: Callable[[], float] = time.process_time
    ) -> None:
        self.threads = most
        self._most = most
        self._set_threads = set_threads
        self._wait = _LEAST_WAIT
        self._computed = 0.0  # seconds since the last trial
        self._usual: float | None = None  # seconds over expected seconds, as steps go
        self._trial: _Trial | None = None
        self._cpu_time = cpu_time
        self._cpu_before = 0.0
        self._share = 1.0  # of the time of all cores, while all are used

    @property
    def is_trying(self) -> bool:
        """The steps of now say nothing about what steps usually take."""
        return self._trial is not None

    def prepare(self) -> None:
        """Called before each step."""
        if self._most == 1:
            return
        if self._trial is None and self._usual is not None and self._is_trial_due:
            self._trial = _Trial(self._usual)
            self._set_threads(self._other)
        self._cpu_before = self._cpu_time()

    def learn(self, expected: float, seconds: float) -> None:
        """Called after each step with what it was expected to take and what it took."""
        if self._most == 1 or expected <= 0 or seconds <= 0:
            return
        if self._trial is not None:
            self._trial.add(expected, seconds)
            if self._trial.seconds >= _MEASURED:
                self._judge(self._trial)
            return
        ratio = seconds / expected
        self._computed += seconds
        self._usual = ratio if self._usual is None else self._usual + _SMOOTHING * (ratio - self._usual)
        if self.threads == self._most:
            share = (self._cpu_time() - self._cpu_before) / (seconds * self._most)
            self._share += _SMOOTHING * (share - self._share)

    def _judge(self, trial: _Trial) -> None:
        self._trial, self._computed = None, 0.0
        if trial.ratio < _MARGIN * trial.usual:
            self.threads, self._usual, self._wait = self._other, trial.ratio, _LEAST_WAIT
        else:
            self._wait = min(max(_LEAST_WAIT, _WORTH * trial.cost), _LONGEST_WAIT)
            self._set_threads(self.threads)

    @property
    def _is_trial_due(self) -> bool:
        undisturbed = self.threads == self._most and self._share > _UNDISTURBED
        return self._computed >= (_LONGEST_WAIT if undisturbed else self._wait)

    @property
    def _other(self) -> int:
        return 1 if self.threads != 1 else self._most
