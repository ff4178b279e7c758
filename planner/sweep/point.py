"""Solves one point of a sweep: a resolved problem in, one record of results out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.documents.files import digest
from planner.errors import Infeasible, PlannerError, Stopped
from planner.plan.records import Parallelism
from planner.sweep.journal import PointRecord

if TYPE_CHECKING:
    from planner.plan.schema import Envelope
    from planner.problem.resolve import Resolved
    from planner.progress import Limits


@dataclass(frozen=True, slots=True)
class SolveTask:
    """A problem to solve, and the digest of everything its result depends on."""

    key: str
    resolved: "Resolved"
    limits: "Limits"


def solve_task(job: SolveTask) -> PointRecord:
    """The record of one problem; a mistake in the problem becomes a record too, so that the other points go on.

    Plans are estimates, unless the problem says what judges them: thousands of points are not simulated.

    Raises KeyboardInterrupt when a solver was interrupted: what it had so far is no answer to keep.
    """
    from planner.api import solve

    try:
        return _solved(solve(job.resolved, job.limits, level="static"))
    except Infeasible as answer:
        conflict = [dict(limit) for limit in answer.conflict]
        status = "infeasible" if answer.proved else "none-found"
        return {"status": status, "conflict": conflict, "proved": answer.proved}
    except Stopped as answer:
        if answer.reason == "interrupted":
            raise KeyboardInterrupt from None
        return {"status": "stopped", "error": f"stopped: {answer.reason.replace('_', ' ')}"}
    except PlannerError as error:
        return failed(error)


def failed(error: PlannerError) -> PointRecord:
    """The record of a point whose problem is wrong."""
    where = f"{error.where}: " if error.where else ""
    return {"status": "error", "error": f"{where}{error.what}", "hint": error.hint}


def _solved(envelope: "Envelope") -> PointRecord:
    from planner.plan.store import plan_digest, plan_json

    certificate = envelope.certificate
    if certificate.stop_reason == "interrupted":
        raise KeyboardInterrupt
    mode = envelope.decision.get("mode")
    return {
        "status": "ok",
        "objective_metric": certificate.objective.metric,
        "sense": certificate.objective.sense,
        "objective": certificate.objective.value,
        "bound": certificate.bound,
        "gap": certificate.gap,
        "metrics": _figures(envelope),
        "mode": mode if isinstance(mode, str) else None,
        "plan": plan_label(envelope.decision),
        "within": certificate.within_text or None,
        "plan_digest": plan_digest(plan_json(envelope)),
    }


def _figures(envelope: "Envelope") -> dict[str, float]:
    """Every predicted figure by metric: of the whole plan, else over workloads: the largest of a time, the sum of a
    rate."""
    figures: dict[str, float] = {}
    whole = {prediction.metric for prediction in envelope.predictions if not prediction.of}
    for prediction in envelope.predictions:
        if prediction.of and prediction.metric in whole:
            continue
        name, value = prediction.metric, prediction.value
        known = figures.get(name)
        if known is None:
            figures[name] = value
        else:
            figures[name] = max(known, value) if name.endswith("_s") and "per_s" not in name else known + value
    return dict(sorted(figures.items()))


def plan_label(decision: Mapping[str, Any]) -> str:
    """A decision in one short line, such as `1 x prefill pp2 + 8 x decode tp2`; equal lines mean equal decisions.

    Of a day, node hours of every job, and a name of the split that has them; of a workflow, what is chosen for every
    stage, and a name of its schedule.
    """
    roles, days = decision.get("roles", []), decision.get("days")
    if days:
        hours = " + ".join(f"{day['job']} {day['node_hours']:.4g}" for day in days)
        split = [{**window, "idle_nodes": None} for window in decision["windows"]]
        return f"{hours} node hours, split {_short_digest(split)}"
    if decision.get("stages"):
        return _workflow_label(decision)
    return _roles_label(roles)


def _workflow_label(decision: Mapping[str, Any]) -> str:
    roles = {role["name"]: role for role in decision.get("roles", [])}
    batches, functions = decision.get("batches"), [stage.get("functions") or 0 for stage in decision["stages"]]
    if batches:
        return f"{len(batches)} batches, schedule {_short_digest(batches)}"
    if any(functions):
        groups = decision.get("groups") or []
        schedule = _short_digest([functions, groups])
        return f"{sum(functions)} functions, {len(groups)} groups, schedule {schedule}"
    parts = []
    for stage in decision["stages"]:
        if stage.get("plan"):
            served = _roles_label([roles[name] for name in stage["roles"]])
            parts.append(f"{stage['stage']} ({served})")
        else:
            servers = f" x {stage['servers']}" if stage.get("servers") else ""
            parts.append(f"{stage['stage']} {stage['option']}{servers}")
    pools = {"first_chunk_tokens": "first chunk {}", "split_images": "images split {}"}
    parts += [text.format(decision[name]) for name, text in pools.items() if decision.get(name) is not None]
    return " + ".join(parts)


def _short_digest(of: Any) -> str:  # noqa: ANN401 - parsed JSON
    """Four characters that tell one from another."""
    return digest(of).removeprefix("sha256:")[:4]


def _roles_label(roles: Sequence[Mapping[str, Any]]) -> str:
    several = len({role["pool"] for role in roles}) > 1
    models = len({role.get("model") for role in roles}) > 1
    return " + ".join(_role_label(role, pool=several, model=models) for role in roles)


def _role_label(role: Mapping[str, Any], *, pool: bool, model: bool) -> str:
    shape = Parallelism(**role.get("parallelism", {})).text or "tp1"
    place = f" on {role['pool']}" if pool else ""
    served = f" of {role['model']}" if model and role.get("model") else ""
    return f"{role['replicas']} x {role['function']} {shape}{served}{place}"
