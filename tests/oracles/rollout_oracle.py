"""A rollout of trajectories played one decode step of one worker at a time, with plain lists."""

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
        self.workers = [_Worker(one["curve"], one["queue"]) for one in workers]
        self.given, self.queues, self.policy = trajectories, [list(queue) for queue in queues], policy
        count = len(trajectories)
        self.turn, self.made, self.held = [0] * count, [0] * count, [one["prompt"] for one in trajectories]
        self.prefill = [one["prompt"] for one in trajectories]
        self.holds: list[int | None] = [None] * count  # worker whose KV is reserved
        self.at: list[int | None] = [None] * count
        self.ready: dict[int, float] = {}
        self.came = [0.0] * count
        self.done = [math.inf] * count
        self.moved = 0

    def need(self, one: int) -> int:
        turns = self.given[one]["turns"]
        return int(self.given[one]["prompt"] + sum(turn[0] for turn in turns) + sum(turn[2] for turn in turns[:-1]))

    def reserved(self, worker: int) -> int:
        return sum(self.need(one) for one, where in enumerate(self.holds) if where == worker)

    def room(self, worker: int, one: int) -> bool:
        place = self.workers[worker]
        if len(place.running) >= place.curve["max_running"]:
            return False
        held = self.reserved(worker)
        return self.holds[one] == worker or held == 0 or held + self.need(one) <= place.curve["kv_tokens"]

    def admit(self, worker: int, one: int) -> int:
        self.holds[one], self.at[one] = worker, worker
        self.workers[worker].resident.add(one)
        self.workers[worker].running.append(one)
        tokens = int(self.prefill[one])
        self.prefill[one] = 0
        return tokens

    def order(self, one: int) -> tuple[Any, ...]:
        left = self.given[one]["predicted"][self.turn[one]]
        key = -left if self.policy["longest_first"] else self.came[one]
        return (self.holds[one] is None, key, one)

    def admit_all(self, worker: int) -> None:
        place = self.workers[worker]
        tokens = 0
        while place.waiting:
            one = min(place.waiting, key=self.order)
            if not self.room(worker, one):
                break
            place.waiting.remove(one)
            tokens += self.admit(worker, one)
        queue = self.queues[place.queue]
        while not place.waiting and queue and self.room(worker, queue[0]):
            tokens += self.admit(worker, queue.pop(0))
        place.clock += tokens / place.curve["prefill"]
        place.busy += tokens / place.curve["prefill"]

    def end_turn(self, worker: int, one: int, now: float) -> None:
        place = self.workers[worker]
        place.running.remove(one)
        turns = self.given[one]["turns"]
        self.made[one] = 0
        if self.turn[one] == len(turns) - 1:
            self.holds[one] = self.at[one] = None
            place.resident.discard(one)
            self.done[one] = now
            return
        _, tool_s, observation = turns[self.turn[one]]
        ready, target, keep = now + tool_s, self.target(worker, one), self.policy["keep_kv"]
        self.holds[one] = target if keep else None
        if target != worker:
            self.moved += 1
            place.resident.discard(one)
            self.workers[target].resident.add(one)
            self.at[one] = target
            if keep:
                ready = max(ready, now + self.policy["move_s"] + self.policy["move_token_s"] * self.held[one])
        self.held[one] += observation
        self.prefill[one] = observation if keep else self.held[one]
        self.turn[one] += 1
        self.ready[one] = ready

    def target(self, worker: int, one: int) -> int:
        if math.isinf(self.policy["move_threshold"]):
            return worker
        here = self.workers[worker]
        own = here.curve["step"] + here.curve["sequence"] * len(here.resident)
        best, best_s = worker, math.inf
        for other, place in enumerate(self.workers):
            step = place.curve["step"] + place.curve["sequence"] * (len(place.resident) + 1)
            fits = self.reserved(other) + self.need(one) <= place.curve["kv_tokens"]
            if other != worker and fits and step < best_s:
                best, best_s = other, step
        return best if own > self.policy["move_threshold"] * best_s else worker

    def deal(self) -> None:
        for number, queue in enumerate(self.queues):
            mine = [index for index, one in enumerate(self.workers) if one.queue == number]
            tokens = dict.fromkeys(mine, 0)
            at = refused = 0
            while mine and queue and refused < len(mine):
                if self.room(mine[at], queue[0]):
                    tokens[mine[at]] += self.admit(mine[at], queue.pop(0))
                    refused = 0
                else:
                    refused += 1
                at = (at + 1) % len(mine)
            for index, count in tokens.items():
                self.workers[index].clock = count / self.workers[index].curve["prefill"]
                self.workers[index].busy = self.workers[index].clock

    def events(self) -> list[tuple[float, int, int]]:
        """(time, 0 step ends, 1 arrival, 2 step starts; whose)."""
        found = [(time, 1, one) for one, time in self.ready.items()]
        for index, place in enumerate(self.workers):
            if place.step_end is not None:
                found.append((place.step_end, 0, index))
            elif place.running:
                found.append((place.clock, 2, index))
        return found

    def run(self, stop_after: int | None = None) -> float:
        """Plays to the end; returns the time of the last event."""
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
            held = sum(self.held[one] for one in place.running)
            cost = place.curve["step"] + place.curve["sequence"] * len(place.running) + place.curve["token"] * held
            place.step_end = now + cost
            place.busy += cost

    def step_ends(self, worker: int, now: float) -> None:
        place = self.workers[worker]
        place.step_end, place.clock = None, now
        for one in place.running:
            self.made[one] += 1
            self.held[one] += 1
        over = [one for one in sorted(place.running) if self.made[one] == self.given[one]["turns"][self.turn[one]][0]]
        for one in over:
            self.end_turn(worker, one, now)
        if over:
            self.admit_all(worker)

    def arrives(self, one: int, now: float) -> None:
        del self.ready[one]
        self.came[one] = now
        worker = self.at[one]
        assert worker is not None
        place = self.workers[worker]
        place.waiting.append(one)
        if not place.running:
            place.clock = now
            self.admit_all(worker)
