"""Solves an expert-placement problem: reads loads, places the experts of each layer, with a proven bound each."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from planner import __version__
from planner.arrays import Floats, Ints
from planner.costs.operators.work import Shards
from planner.costs.serving.memory import weight_bytes
from planner.documents.files import digest
from planner.documents.units import format_si
from planner.errors import Conflict, Infeasible, PlannerError
from planner.experts.ahead import plan_ahead
from planner.experts.instance import ExpertsInstance, SolveOptions, confined_rows, judged_tokens, lay_out
from planner.experts.layout import Layout, spread_problems
from planner.experts.model_layers import layers_of
from planner.experts.ranks import Ranks, linear_layout, make_ranks
from planner.experts.readers import Loads, read_resident
from planner.experts.replay import served_imbalance
from planner.experts.step_time import MoeCosts, expert_bytes, experts_per_token
from planner.experts.steps import CopyRules, StepPlanner
from planner.experts.worth import CopiesWorth, copies_worth, in_micro_batches
from planner.hardware.cluster import Pool
from planner.hardware.unspecified import UNSPECIFIED
from planner.kinds.experts.decision import OF_WINDOWS, STEPWISE, ExpertsDecision, ExpertsOptions, LayerLayout
from planner.kinds.experts.proof import METHOD, bound_records
from planner.kinds.experts.recorded import Recorded, read_recorded
from planner.kinds.experts.stands import devices_of, pool_of
from planner.models.architecture import Architecture
from planner.plan.blocks import block_on
from planner.plan.schema import (
    SCHEMA,
    Axis,
    Certificate,
    Digests,
    Engine,
    Envelope,
    Evidence,
    Memory,
    Objective,
    Parallelism,
    Prediction,
    Role,
    Software,
)
from planner.problem.resolve import Resolved, normalised
from planner.progress import Limits
from planner.schema.base import Where
from planner.solvers.layouts.spread import TOLERANCE as OF_BOUND
from planner.solvers.layouts.spread import SpreadProblem
from planner.solvers.result import Status

ROLE = "experts"
TOLERANCE = 1e-6
EVEN = 1.0  # imbalance where all ranks are equally loaded, which no layout beats
ASSUMPTIONS = (
    "loads come as recorded; copies of an expert share its tokens equally unless the plan gives quotas",
    "a rank's time is its load over its speed; ranks are equally fast unless the problem gives speeds",
)


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


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The layout of every expert layer, as a plan.

    Raises PlannerError for loads that do not fit the model or the ranks, and Infeasible where the slots do not hold
    the experts, or their weights not the memory.
    """
    setting = read_setting(resolved)
    memory = memory_of(setting)
    layout = _layout(setting, limits)
    require_room(setting, layout)
    return envelope(setting, layout, memory)


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


def _layout(setting: ExpertsSetting, limits: Limits) -> Layout:
    options, ranks = setting.options, setting.ranks
    if options.policy == "realtime":
        return _homes(ranks, setting.micro_batch_WLE.mean(axis=0), setting.rules)
    if options.policy == "periodic":
        resident = None if options.resident is None else read_resident(options.resident)
        return plan_ahead(setting.loads.load_WLE, ranks, groups=options.groups, resident_LP=resident)
    return lay_out(setting.instance, setting.wishes(limits))


def require_room(setting: ExpertsSetting, layout: Layout) -> None:
    """Infeasible where a rank gets more tokens of one layer than it has room for, in any window."""
    most = setting.options.peak_tokens
    if most is None:
        return
    planned = setting.planned_LE
    top = float(setting.ranks.speed_R.max() / setting.ranks.speed_R.sum())
    reached, least = (
        float((planned.sum(axis=1) * ratio * top).max()) for ratio in (layout.imbalance_L, layout.bound_L)
    )
    if reached > most:
        conflict: list[Conflict] = [
            {"limit": f"peak_tokens = {most}", "nearest": f"{int(np.ceil(reached))} tokens"},
            {"limit": f"ep = {setting.options.ep}", "nearest": "more ranks, or smaller steps"},
        ]
        raise Infeasible(conflict, proved=least > most)


def _homes(ranks: Ranks, load_LE: Floats, rules: CopyRules) -> Layout:
    """Homes, and the copies that the mean load asks for until the first step is planned."""
    rows = StepPlanner(ranks, load_LE.shape[1], rules=rules).plan_rows(load_LE)
    filled_NP = rows.expert_NP.copy()
    for row_P, load_E in zip(filled_NP, load_LE, strict=True):
        heaviest = np.argsort(-load_E, kind="stable")
        for rank in range(ranks.num_ranks):
            slots_P = row_P[ranks.first_R[rank] : ranks.first_R[rank + 1]]
            spare = (expert for expert in heaviest if expert not in slots_P)
            for slot in np.nonzero(slots_P < 0)[0]:
                slots_P[slot] = next(spare)
    bound_L = np.minimum(EVEN, rows.imbalance_N)
    closed = bool((rows.imbalance_N <= 1.0 + 1e-9).all())
    status = Status.OPTIMAL if closed else Status.FEASIBLE
    return Layout(filled_NP, rows.quota_NP, rows.imbalance_N, bound_L, status)


def envelope(setting: ExpertsSetting, layout: Layout, memory: Memory | None) -> Envelope:
    """The plan of a layout."""
    problem = setting.resolved.problem
    inputs = _inputs(setting)
    worth = _worth(setting) if setting.options.policy == "realtime" else None
    return Envelope(
        schema=SCHEMA,
        kind="experts",
        name=problem.name,
        software=Software(planner=__version__, solver="spread local search"),
        seed=problem.seed,
        digests=_digests(setting, inputs),
        inputs=inputs,
        decision=_decision(setting, layout, memory).model_dump(mode="json", exclude_none=True),
        predictions=(*_predictions(layout), *_of_tokens(setting, layout), *_of_copies(worth)),
        certificate=_certificate(setting, layout),
        evidence=Evidence(
            basis={"measured": 1.0},
            sources=(f"{len(setting.loads.load_WLE)} windows of recorded loads",),
            notes=("imbalance is that of the recorded loads; loads to come differ", *_notes(worth)),
        ),
        assumptions=ASSUMPTIONS,
    )


def _inputs(setting: ExpertsSetting) -> dict[str, JsonValue]:
    """The problem with files by their names alone."""
    inputs = normalised(setting.resolved)
    options = dict(setting.resolved.problem.options)
    for name in ExpertsOptions.paths:
        if options.get(name):
            options[name] = Path(str(options[name])).name
    return {**inputs, "options": options}


def _digests(setting: ExpertsSetting, inputs: dict[str, JsonValue]) -> Digests:
    known = setting.resolved.digests()
    counted = setting.recorded.counted
    read = setting.loads.load_WLE if counted is None else counted
    traces = {**known["traces"], "loads": digest(read.tolist())}
    return Digests(problem=digest(inputs), models=known["models"], hardware=known["hardware"], traces=traces)


def _decision(setting: ExpertsSetting, layout: Layout, memory: Memory | None) -> ExpertsDecision:
    options, engine, pool = setting.options, setting.resolved.problem.engine, setting.pool
    moved = layout.moved_experts or 0
    model = setting.model
    by_layer = options.slots_by_layer
    return ExpertsDecision(
        roles=(
            Role(
                name=ROLE,
                function="experts",
                model=setting.key,
                engine=Engine(name=engine.name, version=engine.version),
                pool=pool.name,
                replicas=1,
                parallelism=Parallelism(dp=options.ep, ep=options.ep),
                memory=memory,
            ),
        ),
        placement=(
            block_on(
                setting.devices.tolist(),
                ROLE,
                pool.name,
                (Axis(name="dp", size=options.ep, stride=1),) if options.ep > 1 else (),
            ),
        ),
        policy=options.policy,
        num_experts=setting.loads.load_WLE.shape[2],
        num_layers=len(layout.expert_LP) // setting.num_windows,
        num_windows=setting.num_windows,
        layer_ids=setting.loads.layer_ids if model is not None else (),
        mtp_layer_ids=layers_of(model).mtp_ids if model is not None else (),
        num_model_layers=model.num_layers if model is not None else 0,
        slots_per_rank=options.slots_by_rank if len(set(options.slots_by_rank)) > 1 else options.slots_by_rank[:1],
        slots_by_layer=by_layer,
        home_slots_per_rank=setting.ranks.home_slots,
        interval_s=options.interval_s,
        moved_bytes=moved * setting.expert_bytes,
        layouts=tuple(_layers(layout, len(layout.expert_LP) // setting.num_windows)),
    )


def _layers(layout: Layout, num_layers: int) -> Iterator[LayerLayout]:
    for row, row_P in enumerate(layout.expert_LP.tolist()):
        quota = None if layout.quota_LP is None else tuple(np.maximum(layout.quota_LP[row], 0.0).tolist())
        window, layer = divmod(row, num_layers)
        yield LayerLayout(first_layer=layer, window=window, expert_of_slot=tuple(row_P), quota=quota)


def _predictions(layout: Layout) -> Iterator[Prediction]:
    yield Prediction(metric="imbalance", value=float(layout.imbalance_L.mean()))
    yield Prediction(metric="imbalance", statistic="max", value=float(layout.imbalance_L.max()))


def _of_tokens(setting: ExpertsSetting, layout: Layout) -> Iterator[Prediction]:
    """Of choices of tokens: nodes that a token visits, and the imbalance to expect of as many fresh ones."""
    if setting.options.policy != "affinity" or setting.recorded.counted is None:
        return
    tokens = judged_tokens(setting.instance, layout.expert_LP)
    yield Prediction(metric="nodes_per_token", value=float(tokens.nodes_per_token_L.mean()))
    yield Prediction(metric="fresh_imbalance", value=float(tokens.fresh_imbalance_L.mean()))


def _worth(setting: ExpertsSetting) -> CopiesWorth:
    """What copies gain in the micro-batches of the loads."""
    load_WLE, options = setting.micro_batch_WLE, setting.options
    routed = float(load_WLE.sum(axis=2).mean())
    tokens = routed / (options.ep * experts_per_token(setting.priced))
    costs = MoeCosts(setting.priced, setting.near, options.ep, tokens)
    return copies_worth(load_WLE, setting.ranks, setting.rules, costs)


def _of_copies(worth: CopiesWorth | None) -> Iterator[Prediction]:
    """Of a mean micro-batch, forward, where copies are planned in each."""
    if worth is None:
        return
    yield Prediction(metric="micro_batch_s", value=worth.copied_s)
    yield Prediction(metric="micro_batch_in_order_s", value=worth.in_order_s)
    yield Prediction(metric="copies_planned_s", value=worth.planned_s)
    yield Prediction(metric="copies_sent_s", value=worth.sent_s)
    yield Prediction(metric="net_gain", value=worth.net_gain)


def _notes(worth: CopiesWorth | None) -> Iterator[str]:
    if worth is not None:
        gained = "save" if worth.net_gain > 0 else "cost"
        yield (
            f"copies in every micro-batch {gained} {abs(worth.net_gain):.1%} of its forward pass, net of planning and "
            "sending them one layer after the other"
        )


def _certificate(setting: ExpertsSetting, layout: Layout) -> Certificate:
    """The mean imbalance over layers beside the mean of the layers' bounds."""
    value, bound = float(layout.imbalance_L.mean()), float(layout.bound_L.mean())
    gap = abs(value - bound) / max(abs(value), 1e-9)
    closed = gap <= TOLERANCE
    space = "of these slots, with any copies, places and shares, for the recorded loads"
    claim = f"no layout {space} is better balanced" if closed else f"no layout {space} is below the bound"
    above = bound_records(setting.row_problems(), layout.bound_L)
    return Certificate(
        claim=claim,
        status="optimal" if closed else "feasible",
        objective=Objective(metric="imbalance", sense="minimize", value=value),
        bound=min(bound, value),
        gap=gap,
        tolerance=TOLERANCE,
        axes={"copies": ["every number"], "places": ["every rank"], "layers": [len(layout.bound_L)]},
        candidates=len(layout.bound_L),
        proof={
            "method": METHOD,
            "bound_by_layer": layout.bound_L.tolist(),
            "imbalance_by_layer": layout.imbalance_L.tolist(),
            "slots": digest(layout.expert_LP.tolist()),
            **({} if above is None else {"bounds_above_1": above}),
            "rules": ["all ranks busy to the end", "slots for the copies that no rank time holds", "heaviest items"],
        },
        next_best=[_in_order(setting, value)],
    )


def _in_order(setting: ExpertsSetting, value: float) -> dict[str, JsonValue]:
    """What engines start with: experts in order over the ranks, no copies, under the same loads."""
    load_LE = setting.planned_LE
    start_LP = np.tile(linear_layout(setting.ranks, load_LE.shape[1]), (len(load_LE), 1))
    before = float(served_imbalance(setting.ranks, start_LP, load_LE).mean())
    return {"plan": "experts in order, as engines start", "objective": before, "loss": before / value - 1.0}
