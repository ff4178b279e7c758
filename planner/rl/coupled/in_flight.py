"""Generators whose samples flow while weights change, and a trainer, simulated together event by event.

A prompt is handed out where fewer than `window` are under way and the version that its batch needs has arrived; each of
its samples goes to the replica with the fewest and waits in line there. Replicas that stop for weights end their step,
make nothing while weights are sent, and go on with their samples. A sample that is generated is done once every service
has scored it; servers take what waits when all else of a moment has happened.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from planner.rl.coupled.iterations import Coupling, Iterations, TrainSeconds, Work
from planner.rl.coupled.replica import SAME_S, Replica
from planner.rl.coupled.servers import Servers
from planner.rl.curves import DecodeCurve, Service

_TRAINED, _SENT, _ARRIVED, _REPLICA, _SCORED, _TAKE = range(6)  # what is first of what happens at the same time


class CoupledFlow:
    """`count` iterations over `batches` in turn; `prompt` samples in a row are one prompt."""

    def __init__(
        self,
        curve: DecodeCurve,
        replicas: int,
        batches: Sequence[Work],
        prompt: int,
        window: int,
        count: int,
        train_s: TrainSeconds,
        coupling: Coupling,
        services: Sequence[Service] = (),
    ) -> None:
        turns = [batches[place % len(batches)] for place in range(count)]
        lengths = [pair for work in turns for pair in work.lengths]
        self._batch_of = [batch for batch, work in enumerate(turns) for _ in work.lengths]
        self._first = [0]
        for work in turns:
            self._first.append(self._first[-1] + len(work.lengths))
        self._prompts = deque(
            range(at, min(at + prompt, end))
            for start, end in zip(self._first, self._first[1:], strict=False)
            for at in range(start, end, prompt)
        )
        self._left = {samples.start: len(samples) for samples in self._prompts}
        self._prompt_of = {sample: samples.start for samples in self._prompts for sample in samples}
        self._replicas = [Replica(curve, deque(), lengths) for _ in range(replicas)]
        self._stamp = [0] * replicas
        self._servers = [Servers(service, lengths) for service in services]
        self._wanted = [len(services)] * len(lengths)  # scores
        self._batches: list[list[int]] = []  # of servers, in the order in which they began
        self._events: list[tuple[float, int, int, int]] = []  # when, what, of whom, and a replica's stamp or a batch
        self._window, self._coupling = window, coupling
        self._cycle, self._train_s = len(batches), train_s
        self._done: list[list[int]] = [[] for _ in turns]
        self._version = self._trained = 0
        self._busy = False
        self._seen = Iterations([0.0] * count)

    def run(self) -> Iterations:
        """Everything that happens, in turn."""
        self._hand_out(0.0, set())
        while self._events:
            now, what, whose, stamp = heappop(self._events)
            if what == _REPLICA and stamp == self._stamp[whose]:
                self._finish(now, whose)
            elif what == _TRAINED:
                self._send(now)
            elif what == _SENT:
                self._seen.trained_s.append(now)
                self._trained, self._busy = self._trained + 1, False
                self._train(now)
                heappush(self._events, (now + self._coupling.delay_s, _ARRIVED, 0, 0))
            elif what == _ARRIVED:
                self._version += 1
                self._hand_out(now, set())
            elif what == _SCORED:
                self._score(now, whose, self._batches[stamp])
            elif what == _TAKE:
                self._take(now)
        return self._seen

    def _finish(self, now: float, whose: int) -> None:
        for sample in self._replicas[whose].finish():
            self._seen.generated_s[self._batch_of[sample]] = now
            for servers in self._servers:
                servers.send(sample)
            if not self._servers:
                self._complete(sample)
        if self._servers:
            heappush(self._events, (now + SAME_S, _TAKE, 0, 0))
        self._stamp[whose] += 1  # its next event comes once it took in what fits
        self._hand_out(now, {whose})
        self._train(now)

    def _complete(self, sample: int) -> None:
        """The sample can be trained on."""
        batch, prompt = self._batch_of[sample], self._prompt_of[sample]
        self._done[batch].append(sample - self._first[batch])
        self._left[prompt] -= 1
        self._window += self._left[prompt] == 0

    def _take(self, now: float) -> None:
        for place, servers in enumerate(self._servers):
            for ends_s, batch in servers.take(now):
                heappush(self._events, (ends_s, _SCORED, place, len(self._batches)))
                self._batches.append(batch)

    def _score(self, now: float, service: int, batch: list[int]) -> None:
        self._servers[service].end()
        heappush(self._events, (now + SAME_S, _TAKE, 0, 0))
        for sample in batch:
            self._wanted[sample] -= 1
            if self._wanted[sample] == 0:
                self._complete(sample)
        self._hand_out(now, set())
        self._train(now)

    def _hand_out(self, now: float, touched: set[int]) -> None:
        """Prompts that may go, to replicas that then take in what they can, those `touched` before among them."""
        while self._prompts and self._window > 0:
            samples = self._prompts[0]
            if self._batch_of[samples.start] > self._version + self._coupling.staleness:
                break
            self._prompts.popleft()
            self._window -= 1
            for sample in samples:
                place = min(range(len(self._replicas)), key=lambda each: self._replicas[each].load)
                self._replicas[place].line.append(sample)
                touched.add(place)
        for place in sorted(touched):
            if self._replicas[place].settle(now):
                self._go_on(place)

    def _go_on(self, place: int) -> None:
        self._replicas[place].take_from_line()
        self._renew(place)

    def _renew(self, place: int) -> None:
        """The event of its next sample."""
        replica = self._replicas[place]
        self._stamp[place] += 1
        if replica.running:
            heappush(self._events, (replica.ends_s, _REPLICA, place, self._stamp[place]))

    def _train(self, now: float) -> None:
        """Begins with the next batch where it is whole and the trainer is free."""
        batch = self._trained
        if self._busy or batch == len(self._done):
            return
        done = self._done[batch]
        if len(done) == self._first[batch + 1] - self._first[batch]:
            self._busy = True
            heappush(self._events, (now + self._train_s(batch % self._cycle, done), _TRAINED, 0, 0))

    def _send(self, now: float) -> None:
        """The weights of the batch that was trained."""
        heappush(self._events, (now + self._coupling.stop_s, _SENT, 0, 0))
        if self._coupling.stops:
            for place, replica in enumerate(self._replicas):
                replica.stop(now, now + self._coupling.stop_s)
                self._renew(place)
