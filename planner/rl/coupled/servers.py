"""Servers of one service, event by event: those that are free take what waits in line, at most a batch."""

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heapreplace

from planner.rl.curves import Service


class Servers:
    """Samples of this job wait behind as many of each other job that shares the service, and are as long."""

    def __init__(self, service: Service, lengths: Sequence[tuple[int, int]]) -> None:
        self._service, self._lengths = service, lengths
        self._line = deque[tuple[int, bool]]()  # a sample, and whether it is this job's
        self._free = service.servers

    def send(self, sample: int) -> None:
        """Puts a sample in line."""
        others = self._service.shared_by - 1
        self._line.extend([*[(sample, False)] * others, (sample, True)])

    def take(self, now: float) -> list[tuple[float, list[int]]]:
        """Batches that free servers begin: when each ends, and the samples of this job in it."""
        begun = []
        while self._free and self._line:
            batch = [self._line.popleft() for _ in range(min(self._service.batch, len(self._line)))]
            self._free -= 1
            tokens = sum(sum(self._lengths[sample]) for sample, _ in batch)
            ends_s = now + self._service.step_s + self._service.token_s * tokens
            begun.append((ends_s, [sample for sample, own in batch if own]))
        return begun

    def end(self) -> None:
        """A server is done with its batch."""
        self._free += 1


def whole_batch_s(service: Service, tokens: Sequence[int]) -> float:
    """When all samples of a batch are scored that the service is sent at once, in their order."""
    line = [each for each in tokens for _ in range(service.shared_by)]
    free_s = [0.0] * service.servers
    heapify(free_s)
    for first in range(0, len(line), service.batch):
        seconds = service.step_s + service.token_s * sum(line[first : first + service.batch])
        heapreplace(free_s, free_s[0] + seconds)
    return max(free_s)
