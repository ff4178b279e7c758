"""Instances of a simulated fleet: step times, KV memory, scheduler rules, routing policy."""

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from planner.errors import PlannerError, require_known
from planner.simulate.fleet.operation import Change, Control, ElasticEngines, PoolLink
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.loop import fields
from planner.simulate.loop.elastic.fields import MOST_INSTANCES

ROLES: Final = {"colocated": fields.COLOCATED, "prefill": fields.PREFILL, "decode": fields.DECODE}
POLICIES: Final = {"mixed": fields.MIXED, "prefill-first": fields.PREFILL_FIRST}
ROUTINGS: Final = {
    "round-robin": fields.ROUND_ROBIN,
    "least-loaded": fields.LEAST_LOADED,
    "power-of-two": fields.POWER_OF_TWO,
    "cache-aware": fields.CACHE_AWARE,
    "length-aware": fields.LENGTH_AWARE,
    "freeness": fields.FREENESS,
}
QUEUEINGS: Final = {
    "fcfs": fields.FCFS,
    "priority": fields.BY_PRIORITY,
    "shortest-predicted": fields.SHORTEST,
    "feedback": fields.FEEDBACK,
}
EVICTIONS: Final = {"lru": fields.LEAST_RECENT, "pgdsf": fields.PGDSF, "farthest": fields.FARTHEST}
PREEMPTIONS: Final = ("recompute", "swap")
UNLIMITED: Final = 2**31  # tokens of prompt and answer together
BLOCK_TOKENS: Final = 16  # of a block of the KV cache, where nobody says otherwise: a sequence takes whole ones


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding: `draft_tokens` are proposed for every sequence in a step, whose time `grid` gives.

    A draft is right with the chance `acceptance` where those before it are; a step without room for them has none.
    """

    draft_tokens: int
    acceptance: float
    grid: StepGrid  # steps that propose and verify, by sequences and their context; and those that prefill too

    def __post_init__(self) -> None:
        if self.draft_tokens < 0 or not 0.0 <= self.acceptance <= 1.0:
            raise PlannerError(
                f"{self.draft_tokens} draft tokens with an acceptance of {self.acceptance:g}",
                hint="give at least 0 tokens and an acceptance from 0 to 1",
            )


@dataclass(frozen=True, slots=True)
class Instance:
    """One engine with one scheduler, queue and KV cache: an attention rank of a replica.

    With several `stages` up to as many batches are in flight, each in the stages one after another, all of which take
    an equal part of the seconds of the step: `grid` has whole passes (`loop/groups.py` the rules, by `policy`).
    `policy` mixed: prompts ride on decode steps within the token budget (vLLM); prefill-first: a step that prefills
    does nothing else (SGLang, TensorRT-LLM). `asynchronous`: the next step is formed when the one before it starts, and
    who comes meanwhile joins the one after (vLLM's default). `reserves`: a request takes the KV blocks of its whole
    length when admitted (TensorRT-LLM's guaranteed no evict), else of its prompt, and then grows.
    """

    grid: StepGrid
    kv_tokens: int  # capacity of its KV cache, of all stages
    role: str = "colocated"
    policy: str = "mixed"
    token_budget: int = 8192  # of a step
    most_sequences: int = 256
    chunked: bool = True  # prompts longer than what is left of the budget are prefilled in parts
    reserves: bool = False
    preemption: str = "recompute"
    host_kv_tokens: int = 0  # of host memory, for swapping
    swap_tokens_per_s: float = float("inf")
    watermark: float = 0.0  # share of the KV blocks that admission leaves free, rounded down
    link_tokens_per_s: float = float("inf")  # KV cache in and out, tokens of it per second
    link_latency_s: float = 0.0
    speculation: Speculation | None = None
    model: int = 0  # that it serves; its number on the paths of a fleet that has some
    pool: int = 0  # that its links belong to
    adapter_slots: int = 2**31  # adapters that it holds at once
    adapter_load_s: float = 0.0  # by which loading one lengthens a step
    most_context: int = UNLIMITED  # of prompt and answer together: answers end there (`context`)
    up: bool = True  # from the beginning
    stages: int = 1  # of its pipeline
    asynchronous: bool = False  # a step is formed while the one before it runs
    encode_s: tuple[tuple[float, float], ...] = ()  # by workload: a run of the tower, and a token of it

    def __post_init__(self) -> None:
        require_known("role", self.role, ROLES)
        require_known("policy", self.policy, POLICIES)
        require_known("preemption", self.preemption, PREEMPTIONS)
        numbers: dict[str, float] = {"kv_tokens": self.kv_tokens, "token_budget": self.token_budget}
        numbers |= {"most_sequences": self.most_sequences, "link_tokens_per_s": self.link_tokens_per_s}
        numbers |= {"adapter_slots": self.adapter_slots, "stages": self.stages}
        for name, value in numbers.items():
            if not value > 0:
                raise PlannerError(f"`{name}` must be above 0, found {value}", where="instance")
        for grid in (self.grid, *([self.speculation.grid] if self.speculation else [])):
            if self.most_sequences > grid.most_sequences:
                raise PlannerError(
                    f"step times end at {grid.most_sequences} sequences, the instance runs {self.most_sequences}",
                    hint="build the grid for as many",
                )

    @property
    def may_form_ahead(self) -> bool:
        """Whether its rules go together with steps that are formed while others run."""
        plain = self.policy == "mixed" and not self.reserves and self.preemption == "recompute"
        return plain and self.speculation is None and self.stages == 1


@dataclass(frozen=True, slots=True)
class RequestPath:
    """A way of requests: those numbers (`Instance.model`) of the instances that take them first and last."""

    first: int
    last: int
    share: float  # of the requests of a workload


@dataclass(frozen=True, slots=True)
class MemoryTier:
    """Memory for prefixes beside instances: what one evicts falls to the next."""

    kv_tokens: int
    tokens_per_s: float = math.inf  # to one request after another
    request_tokens_per_s: float = math.inf  # to a request at the most

    def __post_init__(self) -> None:
        if self.kv_tokens < 1 or not (self.tokens_per_s > 0.0 and self.request_tokens_per_s > 0.0):
            raise PlannerError(
                f"a memory tier of {self.kv_tokens} tokens with {self.tokens_per_s:g} tokens/s",
                hint="give at least 1 token and rates above 0",
            )


@dataclass(frozen=True, slots=True)
class Fleet:
    """Instances, and the rules between them.

    `queueing` feedback is the skip-join multi-level feedback queue of FastServe (arXiv:2305.05920): `quantum_s` of
    decode time at the first level, twice as much at each that follows; a request begins at the first level whose
    quantum its prefill fits. `request_overhead_s` passes between client and front end. A front end takes
    `frontend_s` for one request after another, and `frontend_token_s` for each token of a prompt, in turn as well or,
    where it `tokenises_together`, beside other prompts; `front_ends` says which engines have one. The request goes to
    that which is free first, and its engine is chosen when it is tokenised. One that is prefilled elsewhere takes
    `handover_s` to the router of the instances that decode; when it has a place there, its cache moves.
    `first_token_from` decode: its client sees its first token when the cache has moved. Every `migration_period_s` a
    request is moved live from the instance of least freeness (free blocks less those asked for, over sequences), if
    below `crowded_below`, to that of most, if above `spare_above`.
    Instances step alone, or in `groups` of so many, one after another, whose members wait for the slowest in every step
    (attention ranks that share experts); steps are longer by the factors of `skew`, one step after another and again
    from the first (experts loaded unevenly). With prefix caching, prompts are also kept in memory tiers that all
    instances share; what the instance of a request does not have is brought from there before the request is queued.
    With `paths`, the requests of each workload are shared out over its paths, and instances take requests of their
    number alone; without, requests go by their model.
    """

    instances: tuple[Instance, ...]
    routing: str = "least-loaded"
    decode_routing: str = "least-loaded"
    queueing: str = "fcfs"
    block_tokens: int = BLOCK_TOKENS
    prefix_caching: bool = False
    request_overhead_s: float = 0.0
    frontend_s: float = 0.0
    frontend_token_s: float = 0.0
    tokenises_together: bool = False
    handover_s: float = 0.0
    first_token_from: str = "decode"
    quantum_s: float = 0.1
    migration_period_s: float = math.inf
    crowded_below: float = 2.0
    spare_above: float = 16.0
    groups: tuple[int, ...] = ()  # sizes; empty: each by itself
    skew: tuple[float, ...] = ()
    changes: tuple[Change, ...] = ()
    control: Control | None = None
    pool_links: tuple[PoolLink, ...] = ()
    tiers: tuple[MemoryTier, ...] = ()  # of prefixes, fastest first, that all instances share
    eviction: str = "lru"  # what tiers evict: the least recent, the least worth (pgdsf), or the farthest next use
    paths: tuple[tuple[RequestPath, ...], ...] = ()  # by workload
    elastic: ElasticEngines | None = None  # instances work on requests together, none by itself

    def __post_init__(self) -> None:
        require_known("routing", self.routing, ROUTINGS)
        require_known("routing", self.decode_routing, ROUTINGS)
        require_known("queueing", self.queueing, QUEUEINGS)
        require_known("eviction", self.eviction, EVICTIONS)
        require_known("first_token_from", self.first_token_from, ("decode", "prefill"))
        roles = {instance.role for instance in self.instances}
        if not self.instances or ("prefill" in roles) != ("decode" in roles):
            raise PlannerError(
                f"instances have the roles {', '.join(sorted(roles)) or 'of none'}",
                hint="give colocated instances, or both prefill and decode",
            )
        if not self.quantum_s > 0.0:
            raise PlannerError(f"`quantum_s` must be above 0, found {self.quantum_s:g}")
        if not self.migration_period_s > 0.0:
            raise PlannerError(f"`migration_period_s` must be above 0, found {self.migration_period_s:g}")
        if self.block_tokens < 1:
            raise PlannerError(f"`block_tokens` must be at least 1, found {self.block_tokens}")
        self._check_operation()

    def _check_operation(self) -> None:
        """Refuses groups, factors, changes and links that do not belong to these instances."""
        count = len(self.instances)
        if self.groups and (sum(self.groups) != count or min(self.groups) < 1):
            raise PlannerError(
                f"groups of {', '.join(str(size) for size in self.groups)} for {count} instances",
                hint="give sizes that add up to the instances",
            )
        if any(not 0.0 < factor < math.inf for factor in self.skew):
            raise PlannerError("a factor of `skew` is not above 0 and finite")
        beyond = [change.instance for change in self.changes if not 0 <= change.instance < count]
        if beyond:
            raise PlannerError(f"a change of instance {beyond[0]}", hint=f"instances are 0 to {count - 1}")
        self._check_paths()
        self._check_elastic()
        self._check_pipelines()
        self._check_asynchronous()
        pools = {instance.pool for instance in self.instances}
        for link in self.pool_links:
            if not {link.source, link.goal} <= pools:
                raise PlannerError(
                    f"a link from pool {link.source} to pool {link.goal}",
                    hint=f"instances are in the pools {', '.join(map(str, sorted(pools)))}",
                )

    def _check_paths(self) -> None:
        """Refuses paths without requests, or along instances that there are not."""
        first = {instance.model for instance in self.instances if instance.role != "decode"}
        last = {instance.model for instance in self.instances if instance.role != "prefill"}
        for workload, paths in enumerate(self.paths):
            if not paths or any(not path.share > 0.0 for path in paths):
                raise PlannerError(f"workload {workload} has no path, or one without requests")
            for path in paths:
                if path.first not in first or path.last not in last:
                    raise PlannerError(
                        f"a path of workload {workload} from instances {path.first} to {path.last}",
                        hint=(
                            f"first are {', '.join(map(str, sorted(first)))}, last {', '.join(map(str, sorted(last)))}"
                        ),
                    )

    def _check_pipelines(self) -> None:
        """Refuses groups whose pipelines differ, and what batches in flight cannot do."""
        leader = 0
        for size in self.groups:
            stages = {instance.stages for instance in self.instances[leader : leader + size]}
            if len(stages) > 1:
                raise PlannerError(
                    f"pipelines of {', '.join(map(str, sorted(stages)))} stages step together",
                    hint="give the members of a group equal pipelines",
                )
            leader += size
        if self.migration_period_s < math.inf and any(instance.stages > 1 for instance in self.instances):
            raise PlannerError(
                "sequences in the stages of a pipeline cannot move to another instance",
                where="migration",
                hint="leave migration out (`--migrate`), or give instances of one stage",
            )

    def _check_asynchronous(self) -> None:
        """Refuses what engines that form steps ahead do not do here."""
        ahead = [instance for instance in self.instances if instance.asynchronous]
        if not ahead:
            return
        refused = {
            "engines of their group that form steps when they start": any(
                len({instance.asynchronous for instance in self.instances[end - size : end]}) > 1
                for size, end in zip(self.groups, accumulate(self.groups), strict=True)
            ),
            "steps of prompts alone, whole lengths reserved, swapping, drafts or pipelines": not all(
                instance.may_form_ahead for instance in ahead
            ),
            "feedback queues": self.queueing == "feedback",
            "migration": self.migration_period_s < math.inf,
            "changes and autoscaling": len(self.changes) > 0 or self.control is not None,
            "elastic instances": self.elastic is not None,
        }
        for what, present in refused.items():
            if present:
                raise PlannerError(
                    f"{what} with engines that form a step while the one before it runs",
                    where="asynchronous",
                    hint="give `asynchronous=False`",
                )

    def _check_elastic(self) -> None:
        """Refuses what instances that share one cache do not do."""
        if self.elastic is None:
            return
        first, count = self.instances[0], len(self.instances)
        if any(other != first for other in self.instances) or not first.up or count > MOST_INSTANCES:
            raise PlannerError(
                f"{count} instances, equal ones or not, share one cache",
                where="elastic",
                hint=f"give at most {MOST_INSTANCES} equal ones that are up",
            )
        joint = max(self.groups, default=1) > 1 or len(first.grid.joint_s) > 1 or len(self.skew) > 0
        policies = (self.routing, self.decode_routing, self.queueing == "feedback", self.migration_period_s)
        refused = {
            f"instances of role `{first.role}`": first.role != "colocated",
            "speculative decoding": first.speculation is not None,
            "experts that instances share": joint,
            "pipelines": first.stages > 1,
            "changes and autoscaling": len(self.changes) > 0 or self.control is not None,
            "prefix caching": self.prefix_caching or len(self.tiers) > 0,
            "routing, feedback queues and migration": policies != ("least-loaded", "least-loaded", False, math.inf),
        }
        for what, present in refused.items():
            if present:
                raise PlannerError(f"{what} with elastic instances", where="elastic", hint="leave one of the two out")
