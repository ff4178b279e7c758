"""What a serving plan proves: the space searched, what was pruned by which rule, the bound and its derivation."""

import dataclasses
from typing import TYPE_CHECKING

from pydantic import JsonValue

from planner.kinds.serve.candidates import CHUNK_TOKENS, DECODE_BATCHES, PREFILL_CHUNK_TOKENS
from planner.plan.schema import Certificate, Objective
from planner.solvers.mix import Role
from planner.solvers.mix_solve import MixCertificate, next_best
from planner.solvers.result import Status

if TYPE_CHECKING:
    from planner.kinds.serve.solve import Outcome, Setting

TOLERANCE = 1e-6


def certificate(setting: "Setting", outcome: "Outcome", proof: MixCertificate) -> Certificate:
    """The certificate of a solved mix; its bound is the one that `proof` re-derives."""
    factor = outcome.formulated.factor
    scaled = dataclasses.replace(proof, objective_unit=proof.objective_unit * factor)
    value, bound = outcome.objective, scaled.bound()
    assert value is not None
    maximising = outcome.formulated.problem.maximising
    if bound is not None:
        bound = max(bound, value) if maximising else min(bound, value)
    gap = None if bound is None else abs(value - bound) / max(abs(value), 1e-9)
    closed = gap is not None and gap <= TOLERANCE and outcome.result.status is Status.OPTIMAL
    dropped = dict(sorted(outcome.tally.pruned.items()))
    return Certificate(
        claim=_claim(closed, outcome.formulated.metric),
        status="optimal" if closed else "feasible",
        stop_reason=outcome.result.stop_reason if outcome.result.stop_reason != "finished" or closed else "node_limit",
        objective=Objective(
            metric=outcome.formulated.metric, sense="maximize" if maximising else "minimize", value=value
        ),
        bound=bound,
        gap=gap,
        tolerance=TOLERANCE,
        axes=_axes(setting),
        candidates=outcome.tally.evaluated,
        pruned=dropped,
        proof={"method": "dual_tree", **scaled.to_dict()},
        next_best=_alternatives(outcome),
    )


def _claim(closed: bool, metric: str) -> str:
    space = "over the stated axes, under the stated costs and assumptions"
    if closed:
        return (
            f"no mix of instances has a better {metric} {space}; limits on percentiles are judged by a queueing model"
        )
    return f"no mix of instances is proven to beat the bound on {metric} {space}"


def _axes(setting: "Setting") -> dict[str, list[JsonValue]]:
    """Every axis of the space with its values."""
    axes: dict[str, set[int]] = {}
    for space in setting.spaces.values():
        for name, values in space.axes.items():
            axes.setdefault(name, set()).update(values)
    options = setting.options
    found: dict[str, list[JsonValue]] = {
        "mode": list(options.modes),
        "pool": [pool.name for pool in setting.resolved.pools],
        **{name: sorted(values) for name, values in axes.items()},
        "max_batch": list(options.max_batch or DECODE_BATCHES),
        "chunk_tokens": list(options.chunk_tokens or CHUNK_TOKENS),
        "instances": ["every number that fits"],
    }
    if "disaggregated" in options.modes:
        found["prefill_chunk_tokens"] = list(options.chunk_tokens or PREFILL_CHUNK_TOKENS)
    return found


def _alternatives(outcome: "Outcome") -> list[JsonValue]:
    """The best plans of another make, with what they lose: each mode alone, and the nearest different mix."""
    problem, solution, value = outcome.formulated.problem, outcome.result.solution, outcome.objective
    assert solution is not None
    assert value is not None
    roles = {shape.role for shape, count in zip(problem.shapes, solution.counts, strict=True) if count}
    rows: list[JsonValue] = []
    for name, barred in (("colocated only", {Role.FIRST, Role.SECOND}), ("disaggregated only", {Role.WHOLE})):
        if roles & barred:
            result = next_best(problem, solution, forbid_roles=barred)
            rows.append(_alternative(name, result.objective, outcome.formulated.factor, value))
    return rows


def _alternative(name: str, objective: float | None, factor: float, value: float) -> JsonValue:
    if not objective:
        return {"plan": name, "objective": None, "loss": None}
    found = objective * factor
    return {"plan": name, "objective": found, "loss": abs(found - value) / max(abs(value), 1e-9)}
