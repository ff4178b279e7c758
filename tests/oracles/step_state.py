"""What the slow simulator knows: one object a request and an instance, and its clock."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.shares import instances_of
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
    token_s: list[float] = field(default_factory=list)  # when its client got something
    fetched: tuple[int, int] | None = None  # prefix blocks and tokens before, and tokens that tiers bring
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
    front_free_s: float = 0.0  # of its front end
    front_ready_s: float = 0.0  # of the last prompt there


class StepState:
    """A fleet and its requests, before anything has happened."""

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
        self.memory: list[list[int]] = [[] for _ in fleet.tiers]  # blocks of every tier, oldest first
        self.tier_free_s = [0.0 for _ in fleet.tiers]
        self.uses: Counter[int] = Counter()  # prompts with each block that were prefilled
        self.worth: dict[int, float] = {}  # of blocks in a tier, to what it evicts
        self.clock = [0.0 for _ in fleet.tiers]
        self.link_free_s: dict[tuple[int, int], float] = {}
        self.caches = caches = fleet.prefix_caching and len(requests.prefix_tokens) > 0
        self.memory = self.memory if caches else []
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
        self.to_come = [(r.arrival_s + overhead, 0, r.id) for r in self.requests[: requests.num_open]]
        self.transfers: list[tuple[float, Request]] = []
        self.next_client = requests.num_open
        self.turn: Counter[tuple[bool, int]] = Counter()
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


def leaders(fleet: Fleet) -> list[int]:
    leaders: list[int] = []
    for size in fleet.groups or (1,) * len(fleet.instances):
        leaders += [len(leaders)] * size
    return leaders
