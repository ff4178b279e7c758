"""Decode units of a plan priced again: sides, batch and micro-batches as stated, with the costs that the plan names."""

import math
from collections.abc import Iterator

import numpy as np
from pydantic import JsonValue

from planner.costs.operators.work import Shards
from planner.costs.serving.attention_ffn import ffn_weight_bytes
from planner.costs.serving.memory import weight_bytes
from planner.documents.units import format_si
from planner.errors import PlannerError
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.steady.candidates import type_name, unit_name
from planner.kinds.serve.steady.demand import Target
from planner.kinds.serve.steady.search import prepare
from planner.kinds.serve.steady.shapes import InstanceShape
from planner.kinds.serve.steady.units import Sides
from planner.models.architecture import Architecture
from planner.plan.findings import Finding
from planner.plan.schema import Envelope, Role
from planner.plan.sides import ffn_roles
from planner.problem.recorded import INPUTS
from planner.problem.resolve import resolve
from planner.problem.schema import Problem
from planner.solvers.mix_data import problem_from_dict

REL_TOL = 1e-6
_HINT = "solve again: the unit is not what these costs give"


def shape_of(role: Role) -> InstanceShape:
    """The degrees of a role; micro-batches that take turns between two sides are none of one side."""
    part = role.parallelism
    halves = 1 if role.function in ("attention", "ffn") else int(role.limits.get("micro_batches", 1))
    return InstanceShape(part.tp, part.pp, part.dp, part.moe_tp, part.ep, halves)


def name_of_role(role: Role) -> str:
    """What a proof calls the instance type of a role, without a feed-forward side."""
    limits = (role.limits.get(name, 0) for name in ("max_batch", "chunk_tokens", "draft_tokens"))
    return type_name(role.function, role.model or "", shape_of(role).degrees, *limits)


def repriced(envelope: Envelope, decision: ServeDecision, problem: Problem) -> Iterator[Finding]:
    """Of each attention role: its step at the full batch, weights of both sides, and the rate in the proof."""
    sides = ffn_roles(decision)
    if not sides:
        return
    try:
        setting = prepare(resolve(problem, INPUTS))
    except PlannerError as error:
        yield Finding("serve.unit", True, f"not judged: {error.what}", "roles", skipped=True)
        return
    if setting.calibration.digest != envelope.digests.calibration:
        yield Finding("serve.unit", True, "not judged: the calibration has changed", "roles", skipped=True)
        return
    labels = [pool.name for pool in setting.resolved.pools]
    for role in decision.roles:
        ffn = sides.get(role.name)
        if ffn is not None and role.model is not None and {role.pool, ffn.pool} <= set(labels):
            costs_of_pool = (setting.costs_of_pool[role.model, labels.index(one.pool)] for one in (role, ffn))
            homes = {route.workload for route in decision.routing if route.to == role.name}
            mine = [target for target in setting.targets if target.name in homes]
            filled = [setting.options.filled(target.clients) for target in mine]
            yield from _unit(envelope, role, ffn, Sides(*costs_of_pool), mine, filled)


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
        limit_s = target.tpot_limit_s
        what = f"a step of {batch} sequences a rank takes {format_si(tpot_s, 's')}"
        what += f", at most {format_si(limit_s, 's')}" if math.isfinite(limit_s) else ""
        hint = "lower `max_batch`, or solve again"
        yield Finding("serve.unit_step", tpot_s <= limit_s * (1 + REL_TOL), what, where, hint, approximate=True)
        yield _rate(envelope, role, ffn, target, share * batch * role.parallelism.dp / (target.osl * tpot_s))
    yield from _weights(role, ffn, sides.attention.costs.arch)


def _rate(envelope: Envelope, role: Role, ffn: Role, target: Target, rate_per_s: float) -> Finding:
    """Whether the proof counts on the rate that the unit has."""
    pool = None if ffn.pool == role.pool else ffn.pool
    name = unit_name(name_of_role(role), shape_of(ffn).degrees, role.limits.get("micro_batches"), pool)
    stated = _stated_rate(envelope.certificate.proof.get("mix"), name, target.index)
    where = f"roles.{role.name}"
    if stated is None:
        return Finding("serve.unit_rate", True, "not judged: the proof has no such unit", where, skipped=True)
    what = f"{rate_per_s:.6g} requests/s of a replica, the proof has {stated:.6g}"
    return Finding("serve.unit_rate", math.isclose(stated, rate_per_s, rel_tol=REL_TOL), what, where, _HINT)


def _stated_rate(mix: JsonValue, name: str, workload: int) -> float | None:
    if not isinstance(mix, dict):
        return None
    try:
        shapes = problem_from_dict(mix).shapes
    except (PlannerError, TypeError, ValueError):
        return None
    rates = [one.rate_per_s[workload] for one in shapes if one.name.partition("#")[0] == name]
    return next((rate for rate in rates if rate > 0.0), None)


def _weights(role: Role, ffn: Role, arch: Architecture) -> Iterator[Finding]:
    shape = shape_of(ffn)
    alone = Shards.of(role.parallelism.tp, 1, 1, role.parallelism.tp, 1)
    found = {
        role.name: float(weight_bytes(arch, alone)[0] - ffn_weight_bytes(arch, alone)[0]),
        ffn.name: float(ffn_weight_bytes(arch, Shards.of(*shape.degrees))[0]),
    }
    for one in (role, ffn):
        if one.memory is not None:
            stated, wanted = one.memory.weights_bytes, found[one.name]
            what = f"weights of {format_si(stated, 'B')} a device, its layers have {format_si(wanted, 'B')}"
            right = math.isclose(stated, wanted, rel_tol=REL_TOL)
            yield Finding("serve.unit_weights", right, what, f"roles.{one.name}.memory", _HINT)
