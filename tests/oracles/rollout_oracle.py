"""A rollout of trajectories simulated one decode step of one worker at a time, with plain lists."""

import math
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass
class _Worker:
    curve: Json
    queue: int
    running: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    resident: set[int] = field(default_factory=set)
    clock: float = 0.0
    step_end: float | None = None
    busy: float = 0.0


class NaiveRollout:
    """`trajectories` are dicts: prompt, turns of (output, tool_s, observation), predicted tokens left per turn."""

    def __init__(self, workers: list[Json], trajectories: list[Json], queues: list[list[int]], policy: Json) -> None:
        self.workers = [_Worker(worker["curve"], worker["queue"]) for worker in workers]
        self.given, self.queues, self.policy = trajectories, [list(queue) for queue in queues], policy
        count = len(trajectories)
        self.turn, self.made = [0] * count, [0] * count
        self.context = [trajectory["prompt"] for trajectory in trajectories]  # tokens in its cache
        self.prefill = [trajectory["prompt"] for trajectory in trajectories]
        self.holds: list[int | None] = [None] * count  # worker whose KV is reserved
        self.home: list[int | None] = [None] * count
        self.ready: dict[int, float] = {}
        self.came = [0.0] * count
        self.done = [math.inf] * count
        self.moved = 0

    def need(self, trajectory: int) -> int:
        turns = self.given[trajectory]["turns"]
        return int(
            self.given[trajectory]["prompt"] + sum(turn[0] for turn in turns) + sum(turn[2] for turn in turns[:-1])
        )

    def reserved(self, worker: int) -> int:
        return sum(self.need(trajectory) for trajectory, where in enumerate(self.holds) if where == worker)

    def room(self, worker: int, trajectory: int) -> bool:
        place = self.workers[worker]
        if len(place.running) >= place.curve["max_running"]:
            return False
        reserved = self.reserved(worker)
        return (
            self.holds[trajectory] == worker
            or reserved == 0
            or reserved + self.need(trajectory) <= place.curve["kv_tokens"]
        )

    def admit(self, worker: int, trajectory: int) -> int:
        self.holds[trajectory], self.home[trajectory] = worker, worker
        self.workers[worker].resident.add(trajectory)
        self.workers[worker].running.append(trajectory)
        tokens = int(self.prefill[trajectory])
        self.prefill[trajectory] = 0
        return tokens

    def order(self, trajectory: int) -> tuple[Any, ...]:
        left = self.given[trajectory]["predicted"][self.turn[trajectory]]
        key = -left if self.policy["longest_first"] else self.came[trajectory]
        return (self.holds[trajectory] is None, key, trajectory)

    def admit_all(self, worker: int) -> None:
        place = self.workers[worker]
        tokens = 0
        while place.waiting:
            trajectory = min(place.waiting, key=self.order)
            if not self.room(worker, trajectory):
                break
            place.waiting.remove(trajectory)
            tokens += self.admit(worker, trajectory)
        queue = self.queues[place.queue]
        while not place.waiting and queue and self.room(worker, queue[0]):
            tokens += self.admit(worker, queue.pop(0))
        place.clock += tokens / place.curve["prefill"]
        place.busy += tokens / place.curve["prefill"]

    def end_turn(self, worker: int, trajectory: int, now: float) -> None:
        place = self.workers[worker]
        place.running.remove(trajectory)
        turns = self.given[trajectory]["turns"]
        self.made[trajectory] = 0
        if self.turn[trajectory] == len(turns) - 1:
            self.holds[trajectory] = self.home[trajectory] = None
            place.resident.discard(trajectory)
            self.done[trajectory] = now
            return
        _, tool_s, observation = turns[self.turn[trajectory]]
        ready, target, keep = now + tool_s, self.target(worker, trajectory), self.policy["keep_kv"]
        self.holds[trajectory] = target if keep else None
        if target != worker:
            self.moved += 1
            place.resident.discard(trajectory)
            self.workers[target].resident.add(trajectory)
            self.home[trajectory] = target
            if keep:
                ready = max(ready, now + self.policy["move_s"] + self.policy["move_token_s"] * self.context[trajectory])
        self.context[trajectory] += observation
        self.prefill[trajectory] = observation if keep else self.context[trajectory]
        self.turn[trajectory] += 1
        self.ready[trajectory] = ready

    def target(self, worker: int, trajectory: int) -> int:
        if math.isinf(self.policy["move_threshold"]):
            return worker
        here = self.workers[worker]
        own = here.curve["step"] + here.curve["sequence"] * len(here.resident)
        best, best_s = worker, math.inf
        for other, place in enumerate(self.workers):
            step = place.curve["step"] + place.curve["sequence"] * (len(place.resident) + 1)
            fits = self.reserved(other) + self.need(trajectory) <= place.curve["kv_tokens"]
            if other != worker and fits and step < best_s:
                best, best_s = other, step
        return best if own > self.policy["move_threshold"] * best_s else worker

    def deal(self) -> None:
        for number, queue in enumerate(self.queues):
            members = [index for index, worker in enumerate(self.workers) if worker.queue == number]
            tokens = dict.fromkeys(members, 0)
            turn = refused = 0
            while members and queue and refused < len(members):
                if self.room(members[turn], queue[0]):
                    tokens[members[turn]] += self.admit(members[turn], queue.pop(0))
                    refused = 0
                else:
                    refused += 1
                turn = (turn + 1) % len(members)
            for index, count in tokens.items():
                self.workers[index].clock = count / self.workers[index].curve["prefill"]
                self.workers[index].busy = self.workers[index].clock

    def events(self) -> list[tuple[float, int, int]]:
        """(time, 0 step ends, 1 arrival, 2 step starts; whose)."""
        events = [(time, 1, trajectory) for trajectory, time in self.ready.items()]
        for index, place in enumerate(self.workers):
            if place.step_end is not None:
                events.append((place.step_end, 0, index))
            elif place.running:
                events.append((place.clock, 2, index))
        return events

    def run(self, stop_after: int | None = None) -> float:
        """Simulates to the end; returns the time of the last event."""
        self.deal()
        now = 0.0
        while self.events():
            if stop_after is not None and sum(map(math.isfinite, self.done)) >= stop_after:
                break
            now, kind, whose = min(self.events())
            (self.step_ends, self.arrives, self.step_starts)[kind](whose, now)
        return now

    def step_starts(self, worker: int, now: float) -> None:
        place = self.workers[worker]
        first = min(place.waiting, key=self.order, default=None)
        if first is not None and self.room(worker, first):
            self.admit_all(worker)
        else:
            tokens = sum(self.context[trajectory] for trajectory in place.running)
            cost = place.curve["step"] + place.curve["sequence"] * len(place.running) + place.curve["token"] * tokens
            place.step_end = now + cost
            place.busy += cost

    def step_ends(self, worker: int, now: float) -> None:
        place = self.workers[worker]
        place.step_end, place.clock = None, now
        for trajectory in place.running:
            self.made[trajectory] += 1
            self.context[trajectory] += 1
        over = [
            trajectory
            for trajectory in sorted(place.running)
            if self.made[trajectory] == self.given[trajectory]["turns"][self.turn[trajectory]][0]
        ]
        for trajectory in over:
            self.end_turn(worker, trajectory, now)
        if over:
            self.admit_all(worker)

    def arrives(self, trajectory: int, now: float) -> None:
        del self.ready[trajectory]
        self.came[trajectory] = now
        worker = self.home[trajectory]
        assert worker is not None
        place = self.workers[worker]
        place.waiting.append(trajectory)
        if not place.running:
            place.clock = now
            self.admit_all(worker)
