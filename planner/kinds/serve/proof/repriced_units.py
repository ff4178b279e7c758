"""Prices attention-FFN-disaggregated decode units of a plan again, with the costs that the plan names."""

import math
from collections.abc import Iterator

import numpy as np

from planner.costs.operators.work import Shards
from planner.costs.serving.attention_ffn import ffn_weight_bytes
from planner.costs.serving.memory import weight_bytes
from planner.documents.units import format_si
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.proof.stated import not_judged, setting_of_plan, shape_of, stated_types
from planner.kinds.serve.steady.demand import Target
from planner.kinds.serve.steady.time_limits import MEAN, TimeLimit
from planner.kinds.serve.steady.units import JOINING_STEPS, Sides
from planner.models.architecture import Architecture
from planner.plan.findings import Finding
from planner.plan.instance_types import name_of_role
from planner.plan.schema import Envelope, Role
from planner.plan.sides import ffn_roles
from planner.problem.schema import Problem
from planner.solvers.stochastic.gap_averages import SteadySteps

REL_TOL = 1e-6
_HINT = "solve again: the unit is not what these costs give"


def repriced(envelope: Envelope, decision: ServeDecision, problem: Problem) -> Iterator[Finding]:
    """Of each attention role: its step at the full batch, weights of both sides, and the rate in the proof."""
    partners = ffn_roles(decision)
    if not partners:
        return
    setting = setting_of_plan(envelope, problem, "serve.unit")
    if isinstance(setting, Finding):
        yield setting
        return
    labels = [pool.name for pool in setting.resolved.pools]
    for role in decision.roles:
        ffn = partners.get(role.name)
        if ffn is not None and role.model is not None and {role.pool, ffn.pool} <= set(labels):
            sides = Sides(*(setting.costs_of_pool[role.model, labels.index(pool)] for pool in (role.pool, ffn.pool)))
            routed = {route.workload for route in decision.routing if route.to == role.name}
            targets = [target for target in setting.targets if target.name in routed]
            filled = [setting.options.filled(target.clients) for target in targets]
            yield from _unit(envelope, role, ffn, sides, targets, filled)


def _unit(
    envelope: Envelope, role: Role, ffn: Role, sides: Sides, targets: list[Target], filled: list[float]
) -> Iterator[Finding]:
    batch, turns = role.limits.get("max_batch"), role.limits.get("micro_batches")
    if not isinstance(batch, int) or not isinstance(turns, int) or min(batch, turns) < 1:
        return
    units = sides.units(shape_of(role), shape_of(ffn), turns)
    where = f"roles.{role.name}"
    for target, share in zip(targets, filled, strict=True):
        tpot_s = float(sides.tpot_s(units, np.array([float(batch)]), target.context)[0])
        hint = "lower `max_batch`, or solve again"
        for limit in target.tpot_limits or (MEAN,):
            value_s = _tpot_s(tpot_s, batch, target, limit)
            what = f"a step of {batch} sequences a rank takes {format_si(tpot_s, 's')}"
            what += f", {limit.statistic} tpot is {format_si(value_s, 's')}" if limit.quantile is not None else ""
            what += f", at most {format_si(limit.limit_s, 's')}" if math.isfinite(limit.limit_s) else ""
            right = value_s <= limit.limit_s * (1 + REL_TOL)
            yield Finding("serve.unit_step", right, what, where, hint, approximate=True)
        yield _rate(envelope, role, ffn, target, share * batch * role.parallelism.dp / (target.osl * tpot_s))
    yield from _weights(role, ffn, sides.attention.costs.arch)


def _tpot_s(step_s: float, batch: int, target: Target, limit: TimeLimit) -> float:
    """The time per output token of a full unit at the statistic of a limit."""
    if limit.quantile is None:
        return step_s
    ones, step = np.ones(1), np.full(1, step_s)
    full = SteadySteps(step, step, batch * ones, ones, ones, 0.0 * ones, 0.0 * ones, JOINING_STEPS)
    return float(full.at_full_batch(target.answers).quantile_s(limit.quantile)[0])


def _rate(envelope: Envelope, role: Role, ffn: Role, target: Target, rate_per_s: float) -> Finding:
    """Whether the proof counts on the rate that the unit has."""
    rates = [shape.rate_per_s[target.index] for shape in stated_types(envelope, name_of_role(role, ffn))]
    stated = next((rate for rate in rates if rate > 0.0), None)
    where = f"roles.{role.name}"
    if stated is None:
        return not_judged("serve.unit_rate", "the proof has no such unit", where)
    what = f"{rate_per_s:.6g} requests/s of a replica, the proof has {stated:.6g}"
    return Finding("serve.unit_rate", math.isclose(stated, rate_per_s, rel_tol=REL_TOL), what, where, _HINT)


def _weights(role: Role, ffn: Role, arch: Architecture) -> Iterator[Finding]:
    shape = shape_of(ffn)
    alone = Shards.of(role.parallelism.tp, 1, 1, role.parallelism.tp, 1)
    weights = {
        role.name: float(weight_bytes(arch, alone)[0] - ffn_weight_bytes(arch, alone)[0]),
        ffn.name: float(ffn_weight_bytes(arch, Shards.of(*shape.degrees))[0]),
    }
    for side in (role, ffn):
        if side.memory is not None:
            stated, wanted = side.memory.weights_bytes, weights[side.name]
            what = f"weights of {format_si(stated, 'B')} a device, its layers have {format_si(wanted, 'B')}"
            right = math.isclose(stated, wanted, rel_tol=REL_TOL)
            yield Finding("serve.unit_weights", right, what, f"roles.{side.name}.memory", _HINT)
