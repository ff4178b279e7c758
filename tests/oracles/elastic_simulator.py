"""The slow simulator of instances that share one cache: sets of instances, lists of requests, one event a step.

At one moment steps end, then requests arrive, then prefills start, then groups that are between steps decode.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from step_prices import decode_s, mixed_s
from step_simulator import StepSimulator
from step_state import Request

from planner.simulate.fleet.elastic import prefill_fit
from planner.simulate.fleet.instances import Fleet
from planner.simulate.loop.elastic.fields import MOST_JOBS
from planner.simulate.requests.stream import Requests

Batches = tuple[tuple[int, int], ...]  # where each ends among the requests, and its instances


@dataclass(eq=False)
class Step:
    """What some instances do until `end_s`."""

    instances: frozenset[int]
    prompts: list[Request]
    decoding: list[Request]
    start_s: float
    end_s: float


class ElasticSimulator(StepSimulator):
    """Simulates an elastic fleet."""

    def __init__(self, fleet: Fleet, requests: Requests, draw: Callable[[int, int, int], float]) -> None:
        super().__init__(fleet, requests, draw)
        assert fleet.elastic is not None
        self.elastic, self.rules = fleet.elastic, fleet.instances[0]
        self.fit = [float(value) for value in prefill_fit(self.rules.grid)]
        self.waiting: list[Request] = []
        self.decoding: list[Request] = []
        self.steps: list[Step] = []
        self.kept: dict[Request, dict[int, int]] = {}  # blocks of each instance
        self.degree = [0] * len(self.requests)

    def run(self) -> None:
        while times := [step.end_s for step in self.steps] + [time for time, _, _ in self.to_come]:
            self.now = min(times)
            self.moments.append(self.now)
            for step in [step for step in self.steps if step.end_s <= self.now]:
                self.steps.remove(step)
                self.end(step)
            while self.to_come and min(self.to_come)[0] <= self.now:
                first = min(self.to_come)
                self.to_come.remove(first)
                self.come(self.requests[first[2]])
            self.prefill()
            self.decode()
            assert all(0 <= e.free <= self.rules.kv_tokens // self.fleet.block_tokens for e in self.engines)

    # --- ends and arrivals
    def end(self, step: Step) -> None:
        for i in step.instances:
            self.engines[i].steps += 1
            self.engines[i].busy_s += self.now - step.start_s
        for r in step.prompts:
            r.prefilled_s = r.first_s = self.now
            r.state = "decoding"
            self.decoding = sorted([*self.decoding, r], key=lambda r: r.id)
        for r in step.prompts + step.decoding:
            r.generated += 1
            r.token_s.append(self.now)
            if r.generated == r.output:
                self.decoding.remove(r)
                for i, blocks in self.kept.pop(r).items():
                    self.engines[i].free += blocks
                r.state, r.finished_s = "complete", self.now
                self.answer(r)

    def arrive(self, r: Request) -> None:
        if r.refused or self.whole(r) > len(self.engines) * (self.rules.kv_tokens // self.fleet.block_tokens):
            r.state = "rejected"
            self.answer(r)
            return
        keys = {"fcfs": self.now, "priority": float(r.priority), "shortest-predicted": float(r.predicted)}
        r.state, r.key = "waiting", keys[self.fleet.queueing]
        self.waiting = sorted([*self.waiting, r], key=lambda r: (r.key, r.id))

    def whole(self, r: Request) -> int:
        return self.blocks(r.input + r.output)

    # --- sets of instances
    def busy(self) -> set[int]:
        return {i for step in self.steps for i in step.instances}

    def idle(self) -> set[int]:
        decoding = {i for instances, _ in self.groups() for i in instances}
        return {e.id for e in self.engines} - decoding - self.busy()

    def groups(self) -> list[tuple[frozenset[int], list[Request]]]:
        """Requests that share instances, directly or by others, with all their instances; by the first of those."""
        groups: list[tuple[frozenset[int], list[Request]]] = []
        for r in self.decoding:
            instances, requests = frozenset(self.kept[r]), [r]
            for group in [group for group in groups if group[0] & instances]:
                groups.remove(group)
                instances, requests = instances | group[0], group[1] + requests
            groups.append((instances, sorted(requests, key=lambda r: r.id)))
        return sorted(groups, key=lambda group: min(group[0]))

    def roomiest(self, instances: set[int] | frozenset[int]) -> list[int]:
        return sorted(instances, key=lambda i: (-self.engines[i].free, i))

    def reserve(self, r: Request, i: int, blocks: int) -> None:
        blocks_of = self.kept.setdefault(r, {})
        blocks_of[i] = blocks_of.get(i, 0) + blocks
        self.engines[i].free -= blocks
        if blocks_of[i] == 0:
            del blocks_of[i]
        whole = self.rules.kv_tokens // self.fleet.block_tokens
        self.engines[i].peak = max(self.engines[i].peak, whole - self.engines[i].free)

    # --- prefill
    def prefill(self) -> None:
        while self.waiting:
            instances = self.chosen()
            taken = self.taken(instances)
            if not taken:
                return
            self.waiting = self.waiting[len(taken) :]
            order = sorted(taken, key=lambda r: -r.input)
            batches = self.shared(order, len(instances))
            if not self.fits(order, batches, instances):
                batches = ((len(order), len(instances)),)
            first = 0
            for end, k in batches:
                members = self.roomiest(instances)[:k]
                instances = instances - set(members)
                self.start_prefill(order[first:end], members)
                first = end
            if not instances:
                return

    def taken(self, instances: set[int]) -> list[Request]:
        room = sum(self.engines[i].free for i in instances)
        tokens = self.rules.token_budget * len(instances)
        batch: list[Request] = []
        for r in self.waiting[:MOST_JOBS] if instances else []:
            if self.whole(r) > room or (batch and r.input > tokens):
                break
            room -= self.whole(r)
            tokens -= r.input
            batch.append(r)
        return batch

    def chosen(self) -> set[int]:
        chosen = self.idle()
        if not self.elastic.borrows and chosen:
            return chosen
        groups = [group for group in self.groups() if not group[0] & self.busy()]
        groups.sort(key=lambda group: (sum(r.input + r.output for r in group[1]), min(group[0])))
        reach, still = chosen, 0.0
        for instances, requests in groups:
            reach = reach | instances
            lost = 0.0
            for r in requests:
                lost += 1.0 / r.generated
            still += lost
            taken = self.taken(reach)
            if taken and (not self.taken(chosen) or self.saved(taken, len(chosen), len(reach)) > still):
                chosen, still = reach, 0.0
        return chosen

    def believed_s(self, k: int, requests: list[Request]) -> float:
        tokens, squares = float(sum(r.input for r in requests)), float(sum(r.input**2 for r in requests))
        return self.fit[0] + (self.fit[1] * tokens + self.fit[2] * squares) / k

    def saved(self, taken: list[Request], before: int, after: int) -> float:
        slow, fast = self.believed_s(before, taken), self.believed_s(after, taken)
        return (slow - fast) / fast * self.weight(taken) if fast > 0.0 else 0.0

    def weight(self, requests: list[Request]) -> float:
        weight = 0.0
        for r in requests:
            weight += 1.0 / r.input
        return weight

    def shared(self, order: list[Request], machines: int) -> Batches:
        """The cheapest of all cuts and numbers of instances; of equal ones as the recurrence takes them."""
        cost = {
            (k, i, j): self.believed_s(k, order[i:j]) * self.weight(order[i:j])
            for j in range(len(order) + 1)
            for i in range(j)
            for k in range(1, machines + 1)
        }
        best: dict[tuple[int, int], tuple[float, Batches]] = {(0, m): (0.0, ()) for m in range(machines + 1)}
        for j, m in product(range(1, len(order) + 1), range(1, machines + 1)):
            options = [
                (best[i, m - k][0] + cost[k, i, j], k, i)
                for k in range(1, m + 1)
                for i in range(j)
                if (i, m - k) in best
            ]
            least, k, i = min(options)
            best[j, m] = least, (*best[i, m - k][1], (j, k))
        return best[len(order), machines][1]

    def fits(self, order: list[Request], batches: Batches, instances: set[int]) -> bool:
        first = 0
        for end, k in batches:
            members = self.roomiest(instances)[:k]
            if sum(self.whole(r) for r in order[first:end]) > sum(self.engines[i].free for i in members):
                return False
            instances, first = instances - set(members), end
        return True

    def start_prefill(self, requests: list[Request], instances: list[int]) -> None:
        blocks = sum(self.whole(r) for r in requests)
        few = [instances[: k + 1] for k in range(len(instances))]  # of most room
        stays = next(subset for subset in few if sum(self.engines[i].free for i in subset) >= blocks)
        for r in requests:
            r.state, r.started_s = "prefilling", self.now
            r.entry, r.home = self.engines[min(instances)], self.engines[self.roomiest(set(stays))[0]]
            self.degree[r.id] = len(instances)
            left = self.whole(r)
            for i in self.roomiest(set(stays)):
                share = min(left, self.engines[i].free)
                if share > 0:
                    self.reserve(r, i, share)
                    left -= share
        k, tokens = len(instances), sum(r.input for r in requests)
        pairs = sum(r.input * (r.input + 1) / 2 for r in requests)
        grid = self.rules.grid
        point = (0.0, float(grid.contexts[0]), float(-(-tokens // k)), pairs / tokens)
        ring_s = (k - 1) / k * tokens / self.elastic.ring_tokens_per_s
        self.start(Step(frozenset(instances), requests, [], self.now, self.now + max(mixed_s(grid, point), ring_s)))

    def start(self, step: Step) -> None:
        assert not step.instances & self.busy()
        self.steps.append(step)

    # --- decode
    def decode(self) -> None:
        while any(self.scale_up(*group) for group in self.groups() if not group[0] & self.busy()):
            pass
        for instances, requests in self.groups():
            if instances & self.busy():
                continue
            k = len(instances)
            batch = requests[: k * self.rules.most_sequences]
            context = sum(r.input + r.generated for r in batch)
            seconds = decode_s(self.rules.grid, -(-len(batch) // k), context / len(batch))
            seconds += self.elastic.exchange_s if k > 1 else 0.0
            self.start(Step(instances, [], batch, self.now, self.now + seconds))

    def scale_up(self, instances: frozenset[int], requests: list[Request]) -> bool:
        """Whether an idle instance has become the master of its share of the requests of a group."""
        k, idle = len(instances), self.idle()
        above = self.elastic.scale_up_above or self.rules.most_sequences
        if not idle or len(requests) <= k * above:
            return False
        goal, joined = self.roomiest(idle)[0], False
        for r in requests[len(requests) - len(requests) // (k + 1) :]:
            left = min((r.output - r.generated) // self.fleet.block_tokens, self.engines[goal].free)
            for i in sorted(self.kept[r], reverse=True):
                moved = min(left, self.kept[r][i] - 1)
                if moved > 0:
                    joined = True
                    self.reserve(r, i, -moved)
                    self.reserve(r, goal, moved)
                    left -= moved
        return joined
