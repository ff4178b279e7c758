"""One generating replica, event by event: samples in line and running, and stops for new weights."""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from planner.rl.curves import DecodeCurve

SAME_S = 1e-9  # of clocks that are the same but for rounding


class Replica:
    """Decodes the samples that run, one token of each a step; whole lengths are reserved as samples are taken in.

    Time is only ever that of a boundary between steps: who is touched between two ends the step under way first.
    """

    def __init__(self, curve: DecodeCurve, line: deque[int], lengths: Sequence[tuple[int, int]]) -> None:
        self.line, self._curve, self._lengths = line, curve, lengths
        self._running: list[tuple[int, int]] = []  # (step that ends it, sample)
        self._clock = self._stopped_until_s = 0.0
        self._steps = self._context = self._reserved = 0

    @property
    def running(self) -> bool:
        return bool(self._running)

    @property
    def load(self) -> int:
        """Samples in line and running."""
        return len(self.line) + len(self._running)

    @property
    def would_take(self) -> bool:
        """Whether the first of its line fits."""
        return bool(self.line) and self.fits(self.line[0])

    @property
    def ends_s(self) -> float:
        """When the next of its samples is done, should nothing come between; some must run."""
        return self._clock + self._cost(self._running[0][0] - self._steps)

    def _cost(self, steps: int) -> float:
        """Seconds of so many steps: contexts grow by a token of each sample in each."""
        size, curve = len(self._running), self._curve
        held = steps * self._context + size * (steps * (steps - 1) // 2)
        return steps * (curve.step_s + curve.sequence_s * size) + curve.token_s * held

    def settle(self, now: float) -> bool:
        """Ends the step that is under way at `now`; nothing happens, and False is told, where a sample ends with it."""
        if not self._running:
            self._clock = max(self._clock, now)
            return True
        low, high = 0, self._running[0][0] - self._steps
        while low < high:  # the fewest steps that reach `now`
            middle = (low + high) // 2
            low, high = (low, middle) if self._clock + self._cost(middle) >= now - SAME_S else (middle + 1, high)
        if low == self._running[0][0] - self._steps:
            return False
        self._step(low)
        return True

    def _step(self, steps: int) -> None:
        self._clock += self._cost(steps)
        self._steps += steps
        self._context += steps * len(self._running)

    def stop(self, now: float, until_s: float) -> None:
        """Makes nothing between the end of the step under way and then."""
        self._stopped_until_s = until_s
        if self.settle(now):
            self._clock = max(self._clock, until_s)

    def fits(self, sample: int) -> bool:
        """Whether it may run beside those that do; one alone always may."""
        room = self._curve.kv_tokens - self._reserved
        return not self._running or (
            len(self._running) < self._curve.max_running and sum(self._lengths[sample]) <= room
        )

    def take(self, sample: int) -> None:
        """Prefills it, while nothing is decoded, and lets it run."""
        prompt, output = self._lengths[sample]
        heappush(self._running, (self._steps + output, sample))
        self._context += prompt
        self._reserved += prompt + output
        self._clock += prompt / self._curve.prefill_tokens_per_s

    def take_from_line(self) -> None:
        """Those of its line that fit, in their order."""
        while self.would_take:
            self.take(self.line.popleft())

    def finish(self) -> list[int]:
        """The samples whose last token ends next, which leave."""
        self._step(self._running[0][0] - self._steps)
        self._clock = max(self._clock, self._stopped_until_s)
        done = []
        while self._running and self._running[0][0] == self._steps:
            done.append(heappop(self._running)[1])
            self._context -= sum(self._lengths[done[-1]])
            self._reserved -= sum(self._lengths[done[-1]])
        return done
