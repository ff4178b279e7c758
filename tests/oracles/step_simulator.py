"""A slow and obvious simulator, which the compiled loop must equal: one object a request, one event a step, lists.

At one moment steps and transfers end, then requests arrive, then instances that are between steps start their next one.
"""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.shares import instances_of
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.loop.fields import IMBALANCE
from planner.simulate.requests.stream import Requests


@dataclass(eq=False)
class Request:
    id: int
    input: int
    output: int
    predicted: int
    priority: int
    prefix: list[int]
    arrival_s: float
    model: int = 0
    last: int = 0  # number of the instances that decode it when it was prefilled elsewhere
    adapter: int = -1
    key: float = 0.0
    state: str = "to come"
    generated: int = 0
    done: int = 0
    shared: list[int] = field(default_factory=list)
    blocks: int = 0  # private ones where its cache is resident
    started_s: float = -1.0
    prefilled_s: float = -1.0
    first_s: float = -1.0
    due_s: float = -1.0
    left_s: float = 0.0
    finished_s: float = -1.0
    cached: int = 0
    preempted: int = 0
    entry: "Engine | None" = None
    home: "Engine | None" = None
    source: tuple[int, list[int]] = (0, [])  # blocks and prefix left where it was prefilled
    chain: int = 0  # blocks before those that it left behind when it let go
    refused: bool = False  # its prompt leaves no room below the limit on its context


@dataclass(eq=False)
class Engine:
    id: int
    rules: Instance
    free: int
    host_free: int
    role: str
    life: str = "open"
    leader: int = 0
    queue: list[Request] = field(default_factory=list)
    batch: list[Request] = field(default_factory=list)
    step: list[tuple[Request, int]] = field(default_factory=list)  # prefill of the running step
    decoding: bool = False  # the running step decodes
    partial: Request | None = None
    coming: int = 0
    arrived: list[Request] = field(default_factory=list)
    cache: dict[int, int] = field(default_factory=dict)  # prefix block -> holders
    lru: "list[int | Request]" = field(default_factory=list)  # blocks without holder and chains, oldest first
    chains: dict[int, int] = field(default_factory=dict)  # request -> blocks left of what it let go and nobody shares
    end_s: float | None = None
    penalty_s: float = 0.0
    outstanding: list[Request] = field(default_factory=list)
    sent_s: float = 0.0
    received_s: float = 0.0
    peak: int = 0
    steps: int = 0
    busy_s: float = 0.0
    migrant: Request | None = None
    goal: "Engine | None" = None
    goal_blocks: int = 0
    migrant_preempted: int = 0
    copied_s: float = 0.0
    moved: int = 0
    drafts: int | None = None  # blocks that the drafts of the running step took; None: no drafts
    accepted: int = 0
    adapters: dict[int, int] = field(default_factory=dict)  # loaded ones, and the moment of their last use
    using: list[Request] = field(default_factory=list)  # requests with an adapter and blocks here
    loads: int = 0
    next_role: str = ""
    opens_s: float = math.inf
    up_since_s: float = 0.0
    up_s: float = 0.0
    turns: int = 0


class StepSimulator:
    """Simulates a fleet; `moments` ends up as the list of all times at which something happened."""

    def __init__(self, fleet: Fleet, requests: Requests, draw: Callable[[int, int, int], float]) -> None:
        self.fleet, self.load, self.draw = fleet, requests, draw
        size = fleet.block_tokens
        self.engines = [
            Engine(
                i,
                rules,
                rules.kv_tokens // size,
                rules.host_kv_tokens // size,
                rules.role,
                "open" if rules.up else "off",
            )
            for i, rules in enumerate(fleet.instances)
        ]
        for e, leader in zip(self.engines, leaders(fleet), strict=True):
            e.leader = leader
        self.store: list[int] = []  # blocks of the shared prefix cache, oldest first
        self.link_free_s: dict[tuple[int, int], float] = {}
        self.caches = caches = fleet.prefix_caching and len(requests.prefix_tokens) > 0
        first, last = instances_of(fleet, requests)
        self.requests = [
            Request(
                r,
                int(requests.input_tokens[r]),
                int(requests.output_tokens[r]),
                int(requests.predicted_tokens[r]),
                int(requests.priority[r]),
                requests.prefix[requests.prefix_of[r] : requests.prefix_of[r + 1]].tolist() if caches else [],
                float(requests.arrival_s[r]),
                int(first[r]),
                int(last[r]),
                -1 if requests.adapter is None else int(requests.adapter[r]),
            )
            for r in range(len(requests))
        ]
        for r in self.requests:
            self.limit_context(r)
        overhead = fleet.request_overhead_s
        self.to_come = [(r.arrival_s + overhead, r.id) for r in self.requests[: requests.num_open]]
        self.transfers: list[tuple[float, Request]] = []
        self.next_client = requests.num_open
        self.turn = {True: 0, False: 0}
        self.moments: list[float] = []
        self.now = 0.0
        self.tick_s = fleet.migration_period_s

    def limit_context(self, r: Request) -> None:
        first = [e.rules for e in self.engines if e.rules.role != "decode" and e.rules.model == r.model]
        last = [e.rules for e in self.engines if e.rules.role == "decode" and e.rules.model == r.last]
        r.refused = any(side and r.input >= max(rules.most_context for rules in side) for side in (first, last))
        for side in ([rules for rules in first if rules.role == "colocated"], last):
            if side:
                r.output = min(r.output, max(rules.most_context for rules in side) - r.input)
        r.refused = r.refused or r.output < 1

    def moments_to_come(self) -> list[float]:
        times = [e.end_s for e in self.engines if e.end_s is not None]
        times += [time for time, _ in self.transfers] + [time for time, _ in self.to_come]
        if times and self.fleet.migration_period_s < math.inf:
            times += [self.tick_s, *(e.copied_s for e in self.engines if e.migrant and e.copied_s > self.now)]
        return times

    def operate(self) -> None:
        """What is done to instances at this moment; `operated_simulator` does it."""

    def run(self) -> None:
        while times := self.moments_to_come():
            self.now = min(times)
            self.moments.append(self.now)
            self.end_all()
            while self.to_come and min(self.to_come)[0] <= self.now:
                first = min(self.to_come)
                self.to_come.remove(first)
                self.arrive(self.requests[first[1]])
            self.migrate()
            self.operate()
            self.schedule_all()

    def schedule_all(self) -> None:
        for leader in sorted({e.leader for e in self.engines}):
            self.schedule_group([e for e in self.engines if e.leader == leader])

    def schedule_group(self, group: list[Engine]) -> None:
        if any(e.end_s is not None for e in group):
            return
        start_s = self.start_s(group[0])
        for e in group:
            self.schedule(e)
        ends = [e.end_s for e in group if e.end_s is not None]
        if not ends:
            return
        last_s, skew = max(ends), self.fleet.skew
        running = [e for e in group if e.end_s is not None]
        tokens = sum(self.new_tokens(e) for e in running) / len(group)
        grids = [(self.grid_of(e), float(self.new_tokens(e))) for e in running if e.step]
        least_s = max([by_rank_tokens(grid, grid.least_s.tolist(), own) for grid, own in grids], default=0.0)
        leading = self.grid_of(group[0])
        last_s = max(last_s + by_rank_tokens(leading, leading.joint_s.tolist(), tokens), start_s + least_s)
        if skew:
            last_s = start_s + (last_s - start_s) * skew[group[0].turns % len(skew)]
            group[0].turns += 1
        for e in group:
            if e.end_s is not None:
                e.end_s = last_s
                e.busy_s += last_s - start_s

    def start_s(self, e: Engine) -> float:
        """When a step that is formed now starts."""
        return self.now

    def new_tokens(self, e: Engine) -> int:
        drafts = 0 if e.drafts is None or e.rules.speculation is None else e.rules.speculation.draft_tokens
        return sum(count for _, count in e.step) + (len(e.batch) * (1 + drafts) if e.decoding else 0)

    def grid_of(self, e: Engine) -> StepGrid:
        if e.rules.speculation is not None and e.drafts is not None and e.decoding:
            return e.rules.speculation.grid
        return e.rules.grid

    def end_all(self) -> None:
        due = sorted(
            (e for e in self.engines if e.end_s is not None and e.end_s <= self.now), key=lambda e: (e.end_s, e.id)
        )
        for engine in due:
            self.end_step(engine)
        for time, r in sorted(self.transfers, key=lambda item: (item[0], item[1].id)):
            if time <= self.now:
                self.transfers.remove((time, r))
                self.end_transfer(r)

    # --- memory
    def blocks(self, tokens: int) -> int:
        return -(-tokens // self.fleet.block_tokens)

    def allocated(self, e: Engine, r: Request, tokens: int) -> int:
        whole = e.rules.reserves and e.role != "prefill"
        return self.blocks(r.input + r.output) if whole else self.blocks(tokens)

    def size(self, block: int) -> int:
        """Full blocks alone are cached."""
        return int(self.load.prefix_tokens[block]) // self.fleet.block_tokens

    def kept_blocks(self, e: Engine, entry: "int | Request") -> int:
        return e.chains[entry.id] if isinstance(entry, Request) else self.size(entry)

    def room(self, e: Engine) -> int:
        return e.free + sum(self.kept_blocks(e, entry) for entry in e.lru)

    def take(self, e: Engine, blocks: int) -> None:
        while e.free < blocks:
            oldest = e.lru[0]
            gone = self.kept_blocks(e, oldest)
            if isinstance(oldest, Request) and gone > blocks - e.free:
                gone = blocks - e.free
                e.chains[oldest.id] -= gone
            elif isinstance(oldest, Request):
                self.drop_chain(e, oldest)
            else:
                e.lru.pop(0)
                del e.cache[oldest]
            e.free += gone
        e.free -= blocks
        e.peak = max(e.peak, e.rules.kv_tokens // self.fleet.block_tokens - self.room(e))

    def drop_chain(self, e: Engine, r: Request) -> int:
        if r.id not in e.chains:
            return 0
        e.lru.remove(r)
        return e.chains.pop(r.id)

    def most_cached(self, r: Request) -> int:
        """The block of the last token is computed."""
        return (r.input + r.generated - 1) // self.fleet.block_tokens * self.fleet.block_tokens

    def hits(self, e: Engine, r: Request) -> list[int]:
        blocks: list[int] = []
        for block in r.prefix:
            if block not in e.cache or self.size_all(blocks) * self.fleet.block_tokens >= self.most_cached(r):
                break
            blocks.append(block)
        return blocks

    def size_all(self, blocks: list[int]) -> int:
        return sum(self.size(block) for block in blocks)

    def share(self, e: Engine, block: int) -> None:
        if e.cache.setdefault(block, 0) == 0 and block in e.lru:
            e.lru.remove(block)
        e.cache[block] += 1

    def let_go(self, e: Engine, r: Request, blocks: int, shared: list[int], tokens: int, keeps: bool = True) -> None:
        """Blocks behind the shared ones that are full stay cached as the chain of the request."""
        e.free += blocks
        full = tokens // self.fleet.block_tokens - self.size_all(shared)
        if self.caches and keeps and full > 0:
            e.free += self.drop_chain(e, r) - full
            e.chains[r.id], r.chain = full, self.size_all(shared)
            e.lru.append(r)
        for block in reversed(shared):
            e.cache[block] -= 1
            if e.cache[block] == 0:
                e.lru.append(block)

    def names_at_once(self, e: Engine) -> bool:
        """vLLM: others find a block as soon as it is scheduled, and a preempted request its own."""
        return e.rules.policy == "mixed" and not e.rules.reserves

    def name(self, e: Engine, r: Request) -> None:
        """Of what is scheduled; a second copy stays the request's own."""
        if not self.names_at_once(e):
            return
        for block in r.prefix[len(r.shared) :]:
            end = self.size_all([*r.shared, block]) * self.fleet.block_tokens
            if end > r.done or block in e.cache:
                return
            self.share(e, block)
            r.shared.append(block)
            r.blocks -= self.size(block)

    def publish(self, e: Engine, r: Request) -> None:
        """Of what is computed; a second copy is given back."""
        if self.names_at_once(e):
            return
        for block in r.prefix[len(r.shared) :]:
            if block in e.cache:
                e.free += self.size(block)
            self.share(e, block)
            r.shared.append(block)
            r.blocks -= self.size(block)

    def stored(self, r: Request, hits: list[int]) -> int:
        tokens = 0
        for block in r.prefix[len(hits) :]:
            if block not in self.store:
                break
            tokens += self.size(block) * self.fleet.block_tokens
        return tokens

    def keep(self, r: Request) -> None:
        kept: list[int] = []
        capacity = self.fleet.store_kv_tokens // self.fleet.block_tokens
        for block in r.prefix:
            if block in self.store:
                self.store.remove(block)
            elif self.size(block) > capacity - sum(self.size(other) for other in kept):
                break
            kept.append(block)
            while sum(self.size(other) for other in self.store + kept) > capacity:
                self.store.pop(0)
        self.store += reversed(kept)

    def growing(self, e: Engine) -> list[Request]:
        if e.rules.reserves and e.role != "prefill":
            return []
        return [r for r in e.batch if (r.input + r.generated - 1) % self.fleet.block_tokens == 0]

    # --- requests
    def route(self, r: Request, decoding: bool) -> Engine | None:
        open_to = [
            e for e in self.engines if (e.role == "decode") == decoding and e.life == "open" and self.serves(e, r)
        ]
        policy = self.fleet.decode_routing if decoding else self.fleet.routing
        if policy == "round-robin":
            self.turn[decoding] += 1
        if not open_to:
            return None
        if policy == "round-robin":
            return open_to[(self.turn[decoding] - 1) % len(open_to)]
        if policy == "power-of-two":
            first, second = (open_to[int(self.draw(n, r.id, 2 if decoding else 0) * len(open_to))] for n in (0, 1))
            return second if len(second.outstanding) < len(first.outstanding) else first
        loads = [len(e.outstanding) for e in open_to]
        if policy == "cache-aware" and max(loads) - min(loads) > IMBALANCE:
            policy = "least-loaded"
        costs: dict[str, Callable[[Engine], float]] = {
            "least-loaded": lambda e: len(e.outstanding),
            "length-aware": lambda e: sum(q.input + q.predicted for q in e.outstanding),
            "freeness": lambda e: -self.freeness(e),
            "cache-aware": lambda e: -len(self.hits(e, r)),
        }
        return min(open_to, key=lambda e: (costs[policy](e), len(e.outstanding), e.id))

    def serves(self, e: Engine, r: Request) -> bool:
        return e.rules.model == (r.last if e.role == "decode" else r.model)

    def relief(self, e: Engine) -> float:
        return -math.inf if e.life == "draining" else self.freeness(e)

    def freeness(self, e: Engine) -> float:
        asked = sum(self.blocks(q.input + q.generated) for q in e.queue)
        return (self.room(e) - asked) / max(self.num_decoding(e) + e.coming + len(e.queue), 1)

    def num_decoding(self, e: Engine) -> int:
        return len(e.batch)

    def arrive(self, r: Request) -> None:
        e = self.route(r, False)
        if e is None:
            self.hold_back(r)
            return
        fits = [
            other
            for other in self.engines
            if self.blocks(r.input + (r.generated if other.role == "prefill" else r.output))
            <= other.rules.kv_tokens // self.fleet.block_tokens
            and self.serves(other, r)
        ]
        if r.refused or e not in fits or (e.role == "prefill" and all(other.role == "prefill" for other in fits)):
            r.state = "rejected"
            self.answer(r)
            return
        r.state, r.entry = "waiting", e
        self.join(e, r)

    def hold_back(self, r: Request) -> None:
        raise AssertionError("without changes an instance is always open")

    def pass_on(self, r: Request) -> None:
        e = self.route(r, True)
        if e is None:
            self.hold_back(r)
        else:
            self.join(e, r)

    def acquire(self, e: Engine, r: Request) -> bool:
        if r.adapter < 0:
            return True
        if r.adapter not in e.adapters:
            if len(e.adapters) == e.rules.adapter_slots:
                idle = [a for a in e.adapters if all(user.adapter != a for user in e.using)]
                if not idle:
                    return False
                del e.adapters[min(idle, key=lambda a: (e.adapters[a], a))]
            e.loads += 1
            e.penalty_s += e.rules.adapter_load_s
        e.adapters[r.adapter] = len(self.moments)
        e.using.append(r)
        return True

    def release(self, e: Engine, r: Request) -> None:
        if r.adapter >= 0:
            e.using.remove(r)

    def join(self, e: Engine, r: Request) -> None:
        keys = {"fcfs": self.now, "priority": float(r.priority), "shortest-predicted": float(r.predicted)}
        r.key, r.home = keys[self.fleet.queueing] if self.fleet.queueing != "feedback" else self.level(e, r), e
        e.outstanding.append(r)
        e.queue.append(r)

    def level(self, e: Engine, r: Request) -> float:
        grid, level, quantum_s = e.rules.grid, 0.0, self.fleet.quantum_s
        prefill_s = mixed_s(grid, (0.0, float(grid.contexts[0]), float(r.input), (r.input + 1) / 2))
        members = sum(other.leader == e.leader for other in self.engines)
        prefill_s += by_rank_tokens(grid, grid.joint_s.tolist(), r.input / members)
        while r.state != "handed" and quantum_s < prefill_s:
            level, quantum_s = level + 1.0, 2.0 * quantum_s
        r.left_s = quantum_s
        return level

    def demote(self, e: Engine) -> None:
        for r in e.batch:
            if r.due_s < 0:
                r.due_s = self.now + r.left_s
            elif self.now >= r.due_s:
                r.key += 1.0
                r.due_s = self.now + self.fleet.quantum_s * 2.0**r.key

    def make_way(self, e: Engine) -> None:
        while e.queue and (e.batch or e.partial):
            first = min(e.queue, key=lambda r: (r.key, r.id))
            last = max([*e.batch, *([e.partial] if e.partial else [])], key=lambda r: (r.key, r.id))
            tokens = first.input + first.generated
            needed = self.allocated(e, first, tokens)
            if first.state == "waiting":
                needed -= sum(self.size(block) for block in self.hits(e, first) if e.cache[block] > 0)
            blocked = self.running(e) >= e.rules.most_sequences or needed > self.room(e) - self.margin(e)
            if first.key >= last.key or not blocked:
                return
            self.preempt(e)

    def answer(self, r: Request) -> None:
        after = int(self.load.successor[r.id])
        if after < 0 and self.load.clients and self.next_client < len(self.requests):
            after = self.next_client
            self.next_client += 1
        if after >= 0:
            self.requests[after].arrival_s = self.now + float(self.load.think_s[after])
            self.to_come.append((self.requests[after].arrival_s + self.fleet.request_overhead_s, after))

    def finish(self, e: Engine, r: Request) -> None:
        self.let_go(e, r, r.blocks, r.shared, r.input + r.output - 1)
        self.release(e, r)
        r.shared = []
        r.state, r.finished_s = "complete", self.now
        e.outstanding.remove(r)
        self.answer(r)

    # --- steps
    def end_step(self, e: Engine) -> None:
        e.end_s = None
        if e.decoding:
            if e.drafts is not None:
                e.free += e.drafts
            for r in list(e.batch):
                r.generated += 1
                if e.drafts is not None:
                    self.accept(e, r)
            e.drafts = None
            for r in sorted((r for r in e.batch if r.generated == r.output), key=lambda r: r.id):
                e.batch.remove(r)
                self.finish(e, r)
        for r, _ in e.step:
            if r.done == r.input + r.generated:
                self.end_prefill(e, r)
        e.step = []
        self.move(e)

    def end_prefill(self, e: Engine, r: Request) -> None:
        self.publish(e, r)
        self.keep(r)
        r.generated += 1
        last = r.generated == r.output
        handed = e.role == "prefill" and not last
        if r.prefilled_s < 0:
            r.prefilled_s = self.now
        if r.first_s < 0 and (not handed or self.fleet.first_token_from == "prefill"):
            r.first_s = self.now
        if last:
            self.finish(e, r)
        elif handed:
            r.state, r.source, r.shared, r.blocks = "handed", (r.blocks, r.shared), [], 0
            self.pass_on(r)
        else:
            r.state = "decoding"
            e.batch.append(r)

    def end_transfer(self, r: Request) -> None:
        assert r.entry is not None
        assert r.home is not None
        self.let_go(r.entry, r, *r.source, r.input + r.generated - 1)
        self.release(r.entry, r)
        r.entry.outstanding.remove(r)
        if r.first_s < 0:
            r.first_s = self.now
        r.state = "ready"
        r.home.arrived.append(r)

    def migrate(self) -> None:
        for e in self.engines:
            if e.end_s is None:
                self.move(e)
        if self.tick_s > self.now:
            return
        while self.tick_s <= self.now:
            self.tick_s += self.fleet.migration_period_s
        able = [e for e in self.engines if e.role != "prefill"]
        able = [e for e in able if e.life in ("open", "draining")]
        if not able:
            return
        source = min(able, key=lambda e: (self.relief(e), e.id))
        goals = [e for e in able if e.life == "open" and e.rules.model == source.rules.model]
        if not goals:
            return
        goal = min(goals, key=lambda e: (-self.freeness(e), e.id))
        crowded = self.relief(source) < self.fleet.crowded_below
        if source is goal or not crowded or not self.freeness(goal) > self.fleet.spare_above or source.migrant:
            return
        if not source.batch or self.running(goal) >= goal.rules.most_sequences:
            return
        r = min(source.batch, key=lambda r: (r.input + r.generated, r.id))
        tokens = r.input + r.generated - 1
        blocks = self.allocated(goal, r, tokens)
        if blocks > self.room(goal) - self.watermark(goal) or not self.acquire(goal, r):
            return
        self.take(goal, blocks)
        goal.coming += 1
        source.migrant, source.goal, source.goal_blocks, source.migrant_preempted = r, goal, blocks, r.preempted
        source.copied_s = self.transferred_s(source, goal, tokens)

    def transferred_s(self, source: Engine, goal: Engine, tokens: int) -> float:
        pools = (source.rules.pool, goal.rules.pool)
        of_pools = [link for link in self.fleet.pool_links if (link.source, link.goal) == pools]
        shared = of_pools[-1].tokens_per_s if of_pools else math.inf
        begins_s = max(self.now, source.sent_s)
        source.sent_s = begins_s + tokens / source.rules.link_tokens_per_s
        self.link_free_s[pools] = max(begins_s, self.link_free_s.get(pools, 0.0)) + tokens / shared
        goal.received_s = max(begins_s, goal.received_s) + tokens / goal.rules.link_tokens_per_s
        latency = of_pools[-1].latency_s if of_pools else 0.0
        done_s = max(source.sent_s, self.link_free_s[pools], goal.received_s)
        return done_s + (max(source.rules.link_latency_s, goal.rules.link_latency_s) + latency)

    def move(self, e: Engine) -> None:
        r, goal = e.migrant, e.goal
        if r is None or goal is None or e.copied_s > self.now:
            return
        e.migrant = None
        tokens = r.input + r.generated - 1
        more = self.allocated(goal, r, tokens) - e.goal_blocks
        if r not in e.batch or r.preempted != e.migrant_preempted or more > self.room(goal):
            goal.free += e.goal_blocks
            goal.coming -= 1
            self.release(goal, r)
            return
        self.take(goal, more)
        e.batch.remove(r)
        self.let_go(e, r, r.blocks, r.shared, tokens)
        self.release(e, r)
        r.shared, r.blocks, r.home, r.due_s = [], e.goal_blocks + more, goal, -1.0
        e.outstanding.remove(r)
        goal.outstanding.append(r)
        goal.arrived.append(r)
        e.moved += 1

    def running(self, e: Engine) -> int:
        waiting = e.partial is not None and not e.step
        return len(e.batch) + e.coming + len(e.step) + waiting

    def preempt(self, e: Engine) -> None:
        r = max([*e.batch, *([e.partial] if e.partial else [])], key=lambda r: (r.key, r.id))
        r.preempted += 1
        swapped, tokens = False, r.input + r.generated - 1
        if r is e.partial:
            e.partial, tokens = None, r.done
        else:
            e.batch.remove(r)
            if r.due_s >= 0:
                r.left_s = max(r.due_s - self.now, 0.0)
            r.due_s = -1.0
            blocks = self.blocks(r.input + r.generated - 1)
            swapped = e.rules.preemption == "swap" and e.host_free >= blocks
            if swapped:
                e.host_free -= blocks
                e.penalty_s += blocks / (e.rules.swap_tokens_per_s / self.fleet.block_tokens)
        self.give_up(e, r, tokens)
        r.state = "swapped" if swapped else "waiting"
        e.queue.append(r)

    def give_up(self, e: Engine, r: Request, tokens: int) -> None:
        self.let_go(e, r, r.blocks, r.shared, tokens, self.names_at_once(e))
        self.release(e, r)
        r.shared, r.blocks = [], 0

    def make_room(self, e: Engine) -> bool:
        preempted = False
        while e.batch and len(self.growing(e)) > self.room(e):
            self.preempt(e)
            preempted = True
        return preempted

    def add_chunk(self, e: Engine, r: Request, tokens: int) -> None:
        e.step.append((r, tokens))
        r.done += tokens
        self.hold(e, r)
        self.name(e, r)
        e.partial = r if r.done < r.input + r.generated else None

    def hold(self, e: Engine, r: Request) -> None:
        """Takes the blocks of what has been scheduled."""
        more = self.missing(e, r, r.done)
        r.blocks += more
        self.take(e, more)

    def missing(self, e: Engine, r: Request, tokens: int) -> int:
        """Blocks that a prompt lacks for so many tokens; shared ones may hold more than are used."""
        return max(self.allocated(e, r, tokens) - self.size_all(r.shared) - r.blocks, 0)

    def go_on(self, e: Engine, budget: int) -> bool:
        """The next chunk of the prompt under way; whether any was preempted for it."""
        preempted = False
        while e.partial is not None and budget > 0:
            r, growing = e.partial, len(self.growing(e)) if e.rules.policy == "mixed" else 0
            tokens = min(r.input + r.generated - r.done, budget)
            if self.missing(e, r, r.done + tokens) <= self.room(e) - growing:
                self.add_chunk(e, r, tokens)
                break
            self.preempt(e)
            preempted = True
        return preempted

    def own(self, e: Engine, r: Request, hits: list[int]) -> int:
        """Blocks of its own chain that reach farther than the prefix blocks it finds."""
        left, reached = e.chains.get(r.id, 0), self.size_all(hits)
        return left if r.chain <= reached < r.chain + left else 0

    def admit_one(self, e: Engine, r: Request, left: int, margin: int) -> bool:
        room, tokens = self.room(e) - margin, r.input + r.generated
        if r.state == "waiting":
            if left <= 0 or e.partial is not None:
                return False
            hits = self.hits(e, r)
            own = self.own(e, r, hits)
            while own and self.size_all(hits) > r.chain:
                hits.pop()
            stored = 0 if own else self.stored(r, hits)
            cached = (self.size_all(hits) + own) * self.fleet.block_tokens + stored
            cached = min(cached, self.most_cached(r))
            if self.load.hit_tokens is not None and e.role != "decode":
                cached = max(cached, int(self.load.hit_tokens[r.id]))
            cached = min(cached, tokens - 1)
            chunk = tokens - cached
            if chunk > left:
                chunk = left if e.rules.chunked else 0 if e.step else chunk
            needed = self.allocated(e, r, tokens) - sum(self.size(block) for block in hits if e.cache[block] > 0)
            if chunk == 0 or needed > room or not self.acquire(e, r):
                return False
            e.queue.remove(r)
            for block in hits:
                self.share(e, block)
            r.shared, r.blocks = hits, self.drop_chain(e, r) if own else 0
            r.state, r.done = "prefilling", cached
            self.hold(e, r)
            e.penalty_s += stored / self.fleet.store_tokens_per_s
            if r.started_s < 0:
                r.started_s, r.cached = self.now, cached
            self.add_chunk(e, r, chunk)
            return True
        if self.allocated(e, r, tokens) > room or not self.acquire(e, r):
            return False
        e.queue.remove(r)
        r.blocks = self.allocated(e, r, tokens - 1)
        self.take(e, r.blocks)
        if r.state == "handed":
            assert r.entry is not None
            self.transfers.append((self.transferred_s(r.entry, e, tokens - 1), r))
            r.state = "moving"
            e.coming += 1
        else:
            e.host_free += self.blocks(tokens - 1)
            e.penalty_s += self.blocks(tokens - 1) / (e.rules.swap_tokens_per_s / self.fleet.block_tokens)
            r.state = "decoding"
            e.batch.append(r)
        return True

    def margin(self, e: Engine) -> int:
        margin = len(self.growing(e)) if e.rules.policy == "mixed" else 0
        if self.running(e) > 0:
            margin += self.watermark(e)
        return margin

    def watermark(self, e: Engine) -> int:
        return int(e.rules.watermark * (e.rules.kv_tokens // self.fleet.block_tokens))

    def fill(self, e: Engine, budget: int) -> None:
        self.go_on(e, budget)
        self.admit(e, budget)

    def admit(self, e: Engine, budget: int) -> None:
        while e.queue and self.running(e) < e.rules.most_sequences:
            r = min(e.queue, key=lambda r: (r.key, r.id))
            if not self.admit_one(e, r, budget - sum(tokens for _, tokens in e.step), self.margin(e)):
                return

    def schedule(self, e: Engine) -> None:
        for r in e.arrived:
            r.state = "decoding"
            e.batch.append(r)
        e.coming -= len(e.arrived)
        e.arrived = []
        if self.fleet.queueing == "feedback":
            self.demote(e)
            self.make_way(e)
        if e.rules.policy == "mixed":
            preempted = self.make_room(e)
            preempted |= self.go_on(e, e.rules.token_budget - len(e.batch))
            if not preempted or (not (e.batch or e.step) and self.starts_over(e)):
                self.admit(e, e.rules.token_budget - len(e.batch))
        else:
            self.fill(e, e.rules.token_budget)
            if not e.step and self.make_room(e) and not e.batch:
                self.fill(e, e.rules.token_budget)
        e.decoding = bool(e.batch) and (e.rules.policy == "mixed" or not e.step)
        if not e.decoding and not e.step:
            return
        if e.decoding:
            for r in self.growing(e):
                r.blocks += 1
                self.take(e, 1)
            self.propose(e)
        seconds = self.step_s(e)
        e.end_s = self.start_s(e) + seconds + e.penalty_s
        e.steps += 1
        e.penalty_s = 0.0

    def starts_over(self, e: Engine) -> bool:
        """Whether a step that preemption left empty is formed once more."""
        return True

    def propose(self, e: Engine) -> None:
        if e.rules.speculation is None or e.rules.speculation.draft_tokens == 0:
            return
        blocks = 0
        for r in e.batch:
            drafts = min(e.rules.speculation.draft_tokens, r.output - r.generated - 1)
            blocks += self.allocated(e, r, r.input + r.generated + drafts) - self.allocated(e, r, r.input + r.generated)
        if blocks <= self.room(e):
            self.take(e, blocks)
            e.drafts = blocks

    def accept(self, e: Engine, r: Request) -> None:
        assert e.rules.speculation is not None
        before, blocks = r.generated, self.allocated(e, r, r.input + r.generated - 1)
        most = min(e.rules.speculation.draft_tokens, r.output - r.generated)
        while r.generated < before + most:
            if self.draw(2 + r.generated, r.id, 1) >= e.rules.speculation.acceptance:
                break
            r.generated += 1
        more = self.allocated(e, r, r.input + r.generated - 1) - blocks
        r.blocks += more
        self.take(e, more)
        e.accepted += r.generated - before

    def step_s(self, e: Engine) -> float:
        batch = e.batch if e.decoding else []
        context = sum(r.input + r.generated for r in batch)
        grid = self.grid_of(e)
        if not e.step:
            return decode_s(grid, len(batch), context / len(batch))
        tokens = sum(count for _, count in e.step)
        pairs = 0.0
        for r, count in e.step:
            pairs += count * (r.done - count + (count + 1) / 2)
        mean = context / len(batch) if batch else float(grid.contexts[0])
        return mixed_s(grid, (float(len(batch)), mean, float(tokens), pairs / tokens))


def leaders(fleet: Fleet) -> list[int]:
    leaders: list[int] = []
    for size in fleet.groups or (1,) * len(fleet.instances):
        leaders += [len(leaders)] * size
    return leaders


def place(axis: list[float], point: float) -> int:
    """Where on an axis a point lies: after which value that has one behind it."""
    return min(max(bisect_right(axis, point) - 1, 0), max(len(axis) - 2, 0))


def decode_s(grid: StepGrid, sequences: int, context: float) -> float:
    axis, row = grid.contexts.tolist(), grid.decode_s[sequences].tolist()
    low = place(axis, context)
    slope = (row[low + 1] - row[low]) / (axis[low + 1] - axis[low]) if len(axis) > 1 else 0.0
    return float(row[low] + slope * (context - axis[low]))


def by_rank_tokens(grid: StepGrid, seconds: list[float], tokens: float) -> float:
    axis = grid.rank_tokens.tolist()
    low = place(axis, tokens)
    up = (tokens - axis[low]) / (axis[low + 1] - axis[low]) if len(axis) > 1 else 0.0
    return float(seconds[low] + up * (seconds[low + 1] - seconds[low])) if up else float(seconds[low])


def mixed_s(grid: StepGrid, point: tuple[float, float, float, float]) -> float:
    axes = [axis.tolist() for axis in (grid.batches, grid.contexts, grid.tokens, grid.attended)]
    lows = [place(axis, value) for axis, value in zip(axes, point, strict=True)]
    shares = [
        (value - axis[low]) / (axis[low + 1] - axis[low]) if len(axis) > 1 else 0.0
        for axis, value, low in zip(axes, point, lows, strict=True)
    ]
    seconds = 0.0
    for attended, tokens, context, batch in product((0, 1), repeat=4):
        corner = (batch, context, tokens, attended)
        weight = 1.0
        for up, share in zip(corner, shares, strict=True):
            weight *= share if up else 1.0 - share
        if weight != 0.0:
            seconds += weight * float(grid.mixed_s[tuple(low + up for low, up in zip(lows, corner, strict=True))])
    return seconds
