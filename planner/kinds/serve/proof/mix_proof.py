"""Verifies that a serving plan's proof is about this plan: its model, cluster, load, instances and objective.

A proof that only holds together, as `planner.verify` judges, could be one for an easier problem. So the mix that it
states is compared with the problem in the plan, and its point with the plan's own instances. What is taken on trust are
the rates in it: they rest on the costs.
"""

import math
from collections import Counter
from collections.abc import Iterator

from pydantic import JsonValue

from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.proof.availability import availability_findings
from planner.kinds.serve.steady.failures import losses
from planner.kinds.serve.steady.formulate import ROLES, gpus_at_hand, mix_limits, mix_links, mix_pools
from planner.plan.findings import Finding
from planner.plan.instance_types import name_of_role
from planner.plan.schema import Envelope, Objective
from planner.plan.sides import ffn_roles
from planner.problem.recorded import INPUTS
from planner.problem.resolve import resolve_pool
from planner.problem.schema import Problem
from planner.solvers.backends.model import LinearModel
from planner.solvers.mix import MixObjective, MixProblem
from planner.solvers.mix_data import problem_from_dict
from planner.solvers.mix_model import Vars, build

_HINT = "solve again: the proof is not one for this plan"
_OBJECTIVES = {
    "goodput_per_gpu": MixObjective.SCALE,
    "tokens_per_s_per_gpu": MixObjective.SCALE,
    "gpus": MixObjective.DEVICES,
    "usd_per_hour": MixObjective.PRICE,
}


def proof_findings(envelope: Envelope, decision: ServeDecision, problem: Problem) -> Iterator[Finding]:
    """One finding a rule: model, cluster, load, instances, objective; none for plans that prove nothing."""
    proof = envelope.certificate.proof
    if proof.get("method") != "dual_tree" or envelope.certificate.status == "stated":
        return
    try:
        mix = problem_from_dict(_part(proof, "mix"))
        model, columns = build(mix)
        stated = LinearModel.from_dict(_part(proof, "model"))
        values = _numbers(proof, "values")
    except (PlannerError, TypeError, ValueError) as error:
        what = getattr(error, "what", str(error))
        yield Finding("certificate.model", False, what, "certificate.proof", _HINT)
        return
    same = model.to_dict() == stated.to_dict()
    what = f"the model is {'that' if same else 'not that'} of the {len(mix.shapes)} instance types in the proof"
    yield Finding("certificate.model", same, what, "certificate.proof.model", _HINT)
    if len(values) != len(model.names):
        what = f"{len(values)} values for {len(model.names)} columns"
        yield Finding("certificate.point", False, what, "certificate.proof.values", _HINT)
    pools = _pools(problem)
    if pools is not None:
        yield _cluster(mix, problem, pools)
        yield from availability_findings(mix, decision, problem, pools, columns, values)
        yield _objective(envelope.certificate.objective, proof, mix, columns, problem, pools)
    yield _load(mix, problem)
    yield _instances(mix, decision, problem, columns, values)


def _pools(problem: Problem) -> list[Pool] | None:
    """The pools of the problem; None when the catalog does not know one, which the check says by itself."""
    try:
        return [resolve_pool(spec, index, INPUTS) for index, spec in enumerate(problem.cluster.pools)]
    except PlannerError:
        return None


def _cluster(mix: MixProblem, problem: Problem, pools: list[Pool]) -> Finding:
    wrong = [
        name
        for name, right in (
            ("free devices", mix.pools == mix_pools(pools)),
            ("limits", mix.limits == mix_limits(problem)),
            ("links", mix.links == mix_links(problem)),
            ("availability", _losses_stated(mix, problem, pools)),
        )
        if not right
    ]
    prices = [pool.usd_per_gpu_hour or 0.0 for pool in pools]
    if any(
        not all(0 <= part.pool < len(pools) for part in shape.slots)
        or not math.isclose(
            shape.price_per_hour, sum(part.devices * prices[part.pool] for part in shape.slots), rel_tol=1e-9
        )
        for shape in mix.shapes
    ):
        wrong.append("prices")
    what = f"the proof is about other {wrong[0]}" if wrong else "the proof is about the devices of the problem"
    return Finding("certificate.cluster", not wrong, what, "certificate.proof.mix", _HINT)


def _losses_stated(mix: MixProblem, problem: Problem, pools: list[Pool]) -> bool:
    """Whether every instance type is reckoned to fail as the problem says."""
    per = None if problem.availability is None else problem.availability.per
    return all(
        shape.pool < len(pools) and (shape.lost, shape.spread) == losses(pools[shape.pool], per) for shape in mix.shapes
    )


def _objective(
    objective: Objective,
    proof: dict[str, JsonValue],
    mix: MixProblem,
    columns: Vars,
    problem: Problem,
    pools: list[Pool],
) -> Finding:
    """Whether the proof optimises what the problem asks for, and turns it into the stated metric rightly."""
    wanted = problem.objective
    metric = wanted.maximize or {"gpus": "gpus", "cost": "usd_per_hour"}.get(
        wanted.minimize or "", "tokens_per_s_per_gpu"
    )
    sense = "minimize" if wanted.minimize else "maximize"
    in_use = problem.serves_rates
    goal = MixObjective.DEVICES if in_use else _OBJECTIVES.get(metric)
    right = objective.metric == metric and objective.sense == sense and mix.objective is goal
    outputs = [w.output_tokens if isinstance(w.output_tokens, int) else None for w in problem.workloads]
    gpus = 1 if in_use else gpus_at_hand(problem, pools)
    served = [(w.load.rate_per_s or 0.0) if in_use and w.load is not None else w.share for w in problem.workloads]
    factor: float | None = 1.0
    if metric == "goodput_per_gpu":
        factor = sum(served) / gpus
    elif metric == "tokens_per_s_per_gpu":
        known = [part * tokens for part, tokens in zip(served, outputs, strict=True) if tokens is not None]
        factor = sum(known) / gpus if len(known) == len(outputs) else None
    unit = proof.get("objective_unit")
    if factor is not None:
        wanted_unit = factor / columns.objective_unit if in_use else columns.objective_unit * factor
        right = right and isinstance(unit, (int, float)) and math.isclose(unit, wanted_unit, rel_tol=1e-9)
    what = f"proves {mix.objective.value} in units of {unit} {objective.metric}"
    return Finding("certificate.objective", right, what, "certificate.objective", _HINT)


def _load(mix: MixProblem, problem: Problem) -> Finding:
    wrong = [
        demand.name
        for demand, workload in zip(mix.demands, problem.workloads, strict=False)
        if demand.name != workload.name
        or demand.share != workload.share
        or demand.rate_per_s != (None if workload.load is None else workload.load.rate_per_s)
        or demand.clients != (None if workload.load is None else workload.load.concurrency)
    ]
    if len(mix.demands) != len(problem.workloads):
        wrong.append("the number of workloads")
    what = f"the proof is about another load: {wrong[0]}" if wrong else "the proof is about the load of the problem"
    return Finding("certificate.load", not wrong, what, "certificate.proof.mix", _HINT)


def _instances(
    mix: MixProblem, decision: ServeDecision, problem: Problem, columns: Vars, values: tuple[float, ...]
) -> Finding:
    """Whether the point of the proof has the plan's instances: the same number of each type, on as many devices."""
    labels = [pool.label for pool in problem.cluster.pools]
    wanted: Counter[tuple[object, ...]] = Counter()
    sides = ffn_roles(decision)
    for role in decision.roles:
        if role.function == "ffn":
            continue
        shape, ffn = role.parallelism, sides.get(role.name)
        index = labels.index(role.pool) if role.pool in labels else -1
        devices = shape.devices + (ffn.parallelism.devices if ffn is not None else 0)
        wanted[ROLES.get(role.function), index, devices, name_of_role(role, ffn)] += role.replicas
    proven: Counter[tuple[object, ...]] = Counter()
    for mix_shape, n in zip(mix.shapes, columns.n, strict=True):
        count = round(values[n.column]) if n.column < len(values) else -1
        if count:
            name = mix_shape.name.rpartition("#")[0]
            proven[mix_shape.role, mix_shape.pool, mix_shape.devices, name] += count
    what = "the proof's point has the instances of the plan"
    if wanted != proven:
        what = f"the proof's point has {sum(proven.values())} instances, not the {sum(wanted.values())} of the plan"
        what += " or not of their types"
    return Finding("certificate.instances", wanted == proven, what, "certificate.proof.values", _HINT)


def _part(proof: dict[str, JsonValue], name: str) -> dict[str, JsonValue]:
    part = proof.get(name)
    if not isinstance(part, dict):
        raise PlannerError(f"the proof has no `{name}`")
    return part


def _numbers(proof: dict[str, JsonValue], name: str) -> tuple[float, ...]:
    part = proof.get(name)
    if not isinstance(part, list):
        raise PlannerError(f"the proof has no `{name}`")
    numbers = tuple(float(value) for value in part if isinstance(value, (int, float)))
    if len(numbers) != len(part):
        raise PlannerError(f"`{name}` of the proof holds something that is no number")
    return numbers
