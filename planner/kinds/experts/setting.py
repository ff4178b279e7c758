"""An expert-placement problem with its loads and ranks, or the reasons why it is none."""

from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.costs.operators.work import Shards
from planner.costs.serving.memory import weight_bytes
from planner.documents.units import format_si
from planner.errors import Conflict, Infeasible, PlannerError
from planner.experts.instance import ExpertsInstance, SolveOptions, confined_rows
from planner.experts.layout import spread_problems
from planner.experts.ranks import Ranks, make_ranks
from planner.experts.readers import Loads, read_resident
from planner.experts.step_time import expert_bytes, experts_per_token
from planner.experts.steps import CopyRules
from planner.experts.worth import in_micro_batches
from planner.hardware.cluster import Pool
from planner.hardware.unspecified import UNSPECIFIED
from planner.kinds.experts.decision import OF_WINDOWS, STEPWISE, ExpertsOptions
from planner.kinds.experts.recorded import Recorded, read_recorded
from planner.kinds.experts.stands import devices_of, pool_of
from planner.models.architecture import Architecture
from planner.plan.schema import (
    Memory,
)
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.schema.base import Where
from planner.solvers.layouts.spread import TOLERANCE as OF_BOUND
from planner.solvers.layouts.spread import SpreadProblem

MICRO_BATCHES = ("min_chunk_tokens", "copy_domain", "relays", "micro_batch_tokens")
OF_POLICY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("shares", "ahead", "most_moved_bytes"), OF_WINDOWS),
    "tolerance": (*OF_WINDOWS, "micro_batches"),
    "resident": (*OF_WINDOWS, "periodic"),
    "nodes_per_group": ("static",),
    "imbalance_price": ("affinity",),
    "num_experts": ("affinity",),
    "home_slots": ("micro_batches",),
}
"""Options that some policies alone read."""
INSTANCES = {"static": "static", "windows": "drift", "micro_batches": "realtime", "affinity": "affinity"}
"""Kinds of instances by the policy that solves them."""


@dataclass(frozen=True, slots=True)
class ExpertsSetting:
    """A resolved problem with its loads: everything the solve reads; no model where the options say what it would."""

    resolved: Resolved
    options: ExpertsOptions
    key: str | None  # of the problem's models
    model: Architecture | None
    pool: Pool
    recorded: Recorded
    ranks: Ranks

    @property
    def loads(self) -> Loads:
        return self.recorded.loads

    @property
    def expert_bytes(self) -> float:
        """Weights of one expert of one layer; 0 where nobody says."""
        if self.options.expert_bytes is not None or self.model is None:
            return self.options.expert_bytes or 0.0
        return expert_bytes(self.model)

    @property
    def devices(self) -> Ints:
        """Of the ranks, in order."""
        return devices_of(self.pool, self.options.ep)

    @property
    def near(self) -> Pool:
        """The nodes that the ranks stand on."""
        return pool_of(self.pool, self.devices)

    @property
    def rules(self) -> CopyRules:
        """Of copies in every micro-batch."""
        options = self.options
        return CopyRules(float(options.min_chunk_tokens or 0), options.copy_domain, options.relays)

    @property
    def priced(self) -> Architecture:
        """The model, where copies in micro-batches are priced on it."""
        if self.model is None:
            where = self.resolved.where(("models",))
            hint = "name the model, or write `policy: micro_batches` for what is recorded"
            raise PlannerError("`policy: realtime` prices micro-batches of a model", where=where, hint=hint)
        return self.model

    @property
    def micro_batch_WLE(self) -> Floats:
        """Tokens of every micro-batch."""
        tokens, load_WLE = self.options.micro_batch_tokens, self.loads.load_WLE
        if tokens is None:
            return load_WLE
        return in_micro_batches(load_WLE, float(tokens), self.options.ep, experts_per_token(self.priced))

    @property
    def planned_LE(self) -> Floats:
        """The loads that figures of a layout are for, a row for each of its rows.

        The last window where layouts change from window to window; all of them where each has a layout of its own.
        """
        load_WLE = self.loads.load_WLE
        if self.options.policy in STEPWISE:
            return load_WLE.reshape(-1, load_WLE.shape[2])
        return load_WLE[-1] if self.options.policy == "periodic" else self.loads.total_LE

    @property
    def num_windows(self) -> int:
        """Windows or micro-batches with layouts of their own."""
        return len(self.loads.load_WLE) if self.options.policy in STEPWISE else 1

    @property
    def instance(self) -> ExpertsInstance:
        """What is laid out, as arrays."""
        counted, policy = self.recorded.counted, self.options.policy
        array = self.loads.load_WLE if policy == "windows" else self.planned_LE if counted is None else counted
        by_layer = self.options.slots_by_layer
        return ExpertsInstance(
            name=self.resolved.problem.name,
            kind=INSTANCES[policy],
            array=array,
            ranks=self.ranks,
            num_experts=self.loads.load_WLE.shape[2],
            groups=self.options.groups,
            expert_bytes=self.expert_bytes,
            slots_LR=np.array(by_layer, np.int64) if by_layer else None,
        )

    def wishes(self, limits: Limits) -> SolveOptions:
        """How the instance is solved."""
        options = self.options
        near = options.tolerance if limits.gap == 0.0 else limits.gap
        if options.policy == "static" and not options.ahead and near is None:
            near = OF_BOUND
        price = options.imbalance_price
        return SolveOptions(
            shares=options.shares,
            ahead=options.ahead,
            tolerance=near,
            most_moved_bytes=options.most_moved_bytes,
            imbalance_price=None if price is None else 100.0 * price,
            nodes_per_group=options.nodes_per_group,
            resident_LP=None if options.resident is None else read_resident(options.resident),
            seed=self.resolved.problem.seed,
        )

    def row_problems(self) -> list[SpreadProblem]:
        """What balances each row of a layout, on the slots and ranks that it may use."""
        by_layer = np.array(self.options.slots_by_layer, np.int64)
        confined = confined_rows(self.instance, self.wishes(Limits())) if self.options.nodes_per_group else None
        return spread_problems(self.planned_LE, self.ranks, by_layer if by_layer.size else None, confined)


def read_setting(resolved: Resolved, recorded: Recorded | None = None) -> ExpertsSetting:
    """The setting of a problem, with the loads that it names where none are given.

    Raises PlannerError for loads that do not fit the model or the ranks, Infeasible where slots do not hold experts.
    """
    problem, where = resolved.problem, resolved.where
    options = ExpertsOptions.model_validate(problem.options)
    if len(problem.models) > 1 or len(resolved.pools) != 1:
        raise PlannerError(
            f"{len(problem.models)} models on {len(resolved.pools)} pools",
            where=where(("models",)),
            hint="lay out one model on one pool",
        )
    if problem.objective.minimize != "imbalance":
        raise PlannerError(
            "expert layouts minimise imbalance", where=where(("objective",)), hint="write `minimize: imbalance`"
        )
    if options.loads is None and recorded is None:
        raise PlannerError(
            "needs `loads` to be solved",
            where=where(("options",)),
            hint="record loads with the engine and name the file: `loads: loads.npz`",
        )
    if (options.policy == "periodic") != (options.interval_s is not None):
        raise PlannerError(
            f"policy `{options.policy}`",
            where=where(("options", "interval")),
            hint="give `interval` with `policy: periodic`, and with no other",
        )
    _require_rules(options, where)
    key, model = next(iter(resolved.models.items()), (None, None))
    if key is not None:
        resolved.require_priceable(key)
    pool = resolved.pools[0]
    recorded = recorded or read_recorded(options, model, where)
    _require_devices(options, pool, where(("options", "ep")))
    experts = recorded.loads.load_WLE.shape[2]
    if sum(options.slots_by_rank) < experts:
        raise _too_few_slots(options, experts)
    home = experts // options.ep if options.policy == "realtime" else options.home_slots or 0
    ranks = make_ranks(
        options.ep,
        options.slots_by_rank,
        speeds=options.rank_speeds,
        ranks_per_node=min(pool.node.num_gpus, options.ep),
        node_of_rank=options.node_of_rank,
        home_slots=home,
    )
    return ExpertsSetting(resolved, options, key, model, pool, recorded, ranks)


def _require_rules(options: ExpertsOptions, where: Where) -> None:
    """Refuses what the policy would pass over, and domains that do not divide the ranks."""
    for name in MICRO_BATCHES:
        if getattr(options, name) is not None and options.policy != "realtime":
            raise PlannerError(
                f"policy `{options.policy}` plans no copies in micro-batches",
                where=where(("options", name)),
                hint="write `policy: realtime`, or leave it out",
            )
    for name, policies in OF_POLICY.items():
        if getattr(options, name) not in (None, False, "equal") and options.policy not in policies:
            hint = f"write `policy: {' or '.join(policies)}`, or leave it out"
            raise PlannerError(
                f"has no effect with policy `{options.policy}`", where=where(("options", name)), hint=hint
            )
    if options.slots_by_layer and options.policy != "static":
        raise PlannerError(
            f"policy `{options.policy}` has as many slots in every layer",
            where=where(("options", "slots_per_rank")),
            hint="write `policy: static`, or one figure a rank",
        )
    if options.copy_domain is not None and options.ep % options.copy_domain:
        near = max(ranks for ranks in range(1, options.copy_domain + 1) if options.ep % ranks == 0)
        raise PlannerError(
            f"domains of {options.copy_domain} ranks do not divide ep {options.ep}",
            where=where(("options", "copy_domain")),
            hint=f"write `copy_domain: {near}`",
        )


def _require_devices(options: ExpertsOptions, pool: Pool, where: str) -> None:
    usable = len(pool.job_devices)
    if options.ep > usable:
        raise PlannerError(
            f"{options.ep} ranks need as many GPUs; pool `{pool.name}` has {usable} in service",
            where=where,
            hint="lower `ep`, or give the pool more nodes",
        )


def _too_few_slots(options: ExpertsOptions, experts: int) -> Infeasible:
    total, ranks = sum(options.slots_by_rank), options.ep
    more = -(-experts * ranks // total)
    conflict: list[Conflict] = [
        {"limit": f"{_slots(options)}", "nearest": f"{-(-experts // ranks)} slots with {ranks} ranks"},
        {"limit": f"ep = {ranks}", "nearest": f"{more} ranks with {_each(options)}"},
    ]
    return Infeasible(conflict, proved=True)


def _slots(options: ExpertsOptions) -> str:
    return f"slots_per_rank = {_each(options).removesuffix(' slots')}"


def _each(options: ExpertsOptions) -> str:
    given = sorted(set(options.slots_by_rank))
    return f"{given[0]} slots" if len(given) == 1 else f"{given[0]} to {given[-1]} slots"


def memory_of(setting: ExpertsSetting) -> Memory | None:
    """Weights of a rank, redundant slots included; Infeasible where they exceed what the engine may use.

    None where nobody names the model or the GPU.
    """
    options, model, pool = setting.options, setting.model, setting.pool
    if model is None or pool.node.name == UNSPECIFIED:
        return None
    shards = Shards.of(1, dp=options.ep, ep=options.ep)
    layers, experts = setting.loads.load_WLE.shape[1:]
    widest = max(options.slots_by_rank)
    redundant = widest - experts / options.ep
    weights = float(weight_bytes(model, shards)[0]) + redundant * layers * setting.expert_bytes
    share = setting.resolved.problem.engine.memory_utilisation
    capacity = pool.node.accelerator.usable_bytes(share)
    if weights > capacity:
        most = int(widest - (weights - capacity) / (layers * setting.expert_bytes))
        conflict: list[Conflict] = [
            {"limit": f"slots_per_rank = {widest}", "nearest": f"{most} slots" if most > 0 else ""},
            {"limit": f"memory of {pool.name} = {format_si(capacity, 'B')}", "nearest": format_si(weights, "B")},
        ]
        raise Infeasible(conflict, proved=True)
    return Memory(weights_bytes=weights, capacity_bytes=capacity)
