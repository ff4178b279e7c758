"""File format of RL problems and plans over training time (docs/rl-problems.md), read and written."""

from math import inf
from typing import Any

from planner.documents.read import Document
from planner.errors import PlannerError
from planner.interchange.rl_plan import HORIZON_SCHEMA, PlanDocument, envelope_of, is_envelope, plan_document, plan_of
from planner.interchange.rl_problem import options_of, placed_errors, problem_of, read_batches, records_of, stated
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.horizon import plan_named, running_of
from planner.plan.schema import Envelope
from planner.rl.document_part import DocumentPart
from planner.rl.plan import RlPlan
from planner.rl.problem import validate
from planner.rl.search.horizon import (
    ChangeCosts,
    HorizonPlan,
    HorizonProblem,
    Period,
    changes_on_the_way,
    evaluate_horizon,
)
from planner.solvers.result import Status


def is_horizon(document: Document) -> bool:
    """Whether the document states lengths period by period."""
    workload = document.data.get("workload") if isinstance(document.data, dict) else None
    return isinstance(workload, dict) and workload.get("periods") is not None


def read_horizon(document: Document) -> HorizonProblem:
    """The problem in `document`. Raises PlannerError naming file, line and field, with a value that would work."""
    top = DocumentPart(document, document.data)
    if not isinstance(document.data, dict):
        raise top.refuse("must be a mapping", "write a problem of docs/rl-problems.md")
    if top.text("stage", "full") != "full":
        raise top.refuse("a horizon is planned for generation and training together", "write `stage: full`", "stage")
    workload = top.part("workload")
    periods = tuple(
        Period(read_batches(part, workload), part.count("iterations")) for part in workload.parts("periods")
    )
    problem = problem_of(top, tuple(batch for period in periods for batch in period.batches))
    with placed_errors(document, {"batches": ("workload", "periods")}):
        validate(problem)
    change = top.part("change")
    costs = ChangeCosts(change.number("generation_s"), change.number("training_s"), change.number("circuit_s", 0.0))
    running = plan_of(top.part("current"), problem) if "current" in top else None
    return HorizonProblem(problem, periods, costs, running)


def rl_horizon_problem(document: Document) -> dict[str, Any]:
    """The problem of kind `rl` over a horizon that `document` states; raises PlannerError as `read_horizon` does."""
    given = read_horizon(document)
    change = given.change
    horizon: dict[str, Any] = {
        "periods": [
            {"iterations": period.iterations, "records": records_of(period.batches)} for period in given.periods
        ],
        "generation_change_s": change.generation_s,
        "training_change_s": change.training_s,
        "circuit_change_s": change.circuit_s,
    }
    if given.running is not None:
        horizon["running"] = running_of(given.running).model_dump()
    return {**stated(document, given.problem), "options": {**options_of(given.problem), "horizon": horizon}}


def horizon_of_envelope(envelope: Envelope, given: HorizonProblem) -> HorizonPlan:
    """The plans of an envelope and what its certificate proves, beside one plan for all and the best of each period."""
    certificate, plans = envelope.certificate, plans_of_envelope(envelope, given)
    total = evaluate_horizon(given, plans).total
    others = certificate.next_best if isinstance(certificate.next_best, list) else []
    worth = [row.get("objective") for row in others if isinstance(row, dict)]
    fixed, greedy = (float(value) if isinstance(value, int | float) else inf for value in worth)
    return HorizonPlan(
        status=Status(certificate.status),
        plans=plans,
        total=total,
        bound=total if certificate.bound is None else certificate.bound,
        changes=sum(map(bool, changes_on_the_way(given.running, plans))),
        fixed_plan=None,
        fixed_total=fixed,
        greedy_total=greedy,
        states=certificate.candidates,
    )


def plans_of_envelope(envelope: Envelope, given: HorizonProblem) -> tuple[RlPlan, ...]:
    """The plan of every period on the curves of the problem; raises PlannerError where the problem has no such plan."""
    decision = RlDecision.model_validate(envelope.decision)
    plans = tuple(plan for step in decision.horizon if (plan := plan_named(step, given.problem)) is not None)
    if len(plans) != len(given.periods):
        raise PlannerError("is no plan of this problem", where="decision.horizon", hint="solve the problem again")
    return plans


def horizon_plan_document(given: HorizonProblem, plans: tuple[RlPlan, ...]) -> PlanDocument:
    """`plans`, one a period, each in the form of the benchmark and with what changes on entering its period."""
    changes = changes_on_the_way(given.running, plans)
    return {
        "schema": HORIZON_SCHEMA,
        "periods": [
            {"iterations": period.iterations, "changed": list(changed), "plan": plan_document(plan)}
            for period, changed, plan in zip(given.periods, changes, plans, strict=True)
        ],
    }


def read_horizon_plan(document: Document, given: HorizonProblem) -> tuple[RlPlan, ...]:
    """The plan of every period; raises PlannerError where periods or curves are not those of the problem."""
    if is_envelope(document):
        return plans_of_envelope(envelope_of(document), given)
    top = DocumentPart(document, document.data)
    if not isinstance(document.data, dict):
        raise top.refuse("must be a mapping", "give a plan that `planner rl horizon` wrote")
    parts = top.parts("periods")
    if len(parts) != len(given.periods):
        raise top.refuse(
            f"plans of {len(parts)} periods, the problem has {len(given.periods)}",
            f"give {len(given.periods)} periods",
            "periods",
        )
    return tuple(plan_of(part.part("plan"), given.problem) for part in parts)
