"""`planner rl horizon`: plans over training time, as lengths drift."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import Json, Output

if TYPE_CHECKING:
    from planner.documents.read import Document
    from planner.rl.formats.horizon_format import HorizonProblem
    from planner.rl.plan import RlPlan
    from planner.rl.search.horizon import HorizonEvaluation, HorizonPlan


def horizon(
    problem: Annotated[str, typer.Argument(metavar="PROBLEM", help="JSON or YAML with periods; `-` is stdin.")],
    output: Output = None,
    as_json: Json = False,
) -> int:
    """Plan every period of a training run whose lengths drift, each change of the plan charged; exact.

    The file is a problem of `planner rl solve` with `workload.periods` in place of `workload.batches`, and `change`:
    what a change takes. Exits 1 when some period has no plan.

    Examples:

      planner rl horizon examples/rl-problems/horizon-drift.json -o horizon.json

      planner rl horizon examples/rl-problems/horizon-drift.json --json
    """
    from planner.cli.output import say_infeasible, write_data, write_json
    from planner.documents.read import load_document
    from planner.errors import Infeasible
    from planner.rl.formats.horizon_format import horizon_plan_document, read_horizon
    from planner.rl.search.horizon import evaluate_horizon, plan_horizon

    given = read_horizon(load_document(problem))
    try:
        found = plan_horizon(given.problem, given.periods, given.change, given.running)
    except Infeasible as answer:
        return say_infeasible(answer, as_json=as_json)
    judged = evaluate_horizon(given.problem, given.periods, given.change, found.plans, given.running)
    plan = horizon_plan_document(given, found.plans)
    if output is not None:
        write_json(plan, output)
    if as_json and output != "-":
        write_json(_solution_document(given, found, judged, plan))
    elif output != "-":
        write_data(_solution_text(given, found, judged))
    return 0


def evaluate_document(document: "Document", plan: "Document", *, as_json: bool) -> int:
    """Prices a plan over training time of the problem in `document`; 1 where it breaks a rule."""
    from planner.cli.output import write_data, write_json
    from planner.rl.formats.horizon_format import read_horizon, read_horizon_plan
    from planner.rl.search.horizon import evaluate_horizon

    given = read_horizon(document)
    plans = read_horizon_plan(plan, given)
    judged = evaluate_horizon(given.problem, given.periods, given.change, plans, given.running)
    if as_json:
        write_json({"schema": "planner.rl.horizon_evaluation/1", **_evaluation_document(judged)})
    else:
        rules = [f"  FAIL  {rule}" for rule in judged.broken] or ["  ok    every rule holds"]
        write_data("\n".join([_periods_table(given, plans, judged), "", _total_line(given, judged), *rules]))
    return 1 if judged.broken else 0


def _evaluation_document(judged: "HorizonEvaluation") -> dict[str, Any]:
    periods = [
        {"objective": one.objective, "iteration_s": one.iteration_s, "cost_usd": one.cost_usd, "changed": list(changed)}
        for one, changed in zip(judged.evaluations, judged.changed, strict=True)
    ]
    return {
        "objective": judged.total,
        "change_objective": judged.change_total,
        "feasible": not judged.broken,
        "broken": list(judged.broken),
        "periods": periods,
    }


def _solution_document(
    given: "HorizonProblem", found: "HorizonPlan", judged: "HorizonEvaluation", plan: dict[str, object]
) -> dict[str, Any]:
    from math import isfinite

    from planner.solvers.result import relative_gap

    return {
        "schema": "planner.rl.horizon_solution/1",
        "status": found.status.value,
        "objective_name": given.problem.objective,
        "objective": found.total,
        "bound": found.bound,
        "gap": relative_gap(found.total, found.bound),
        "changes": found.changes,
        "states": found.states,
        "one_plan_objective": found.fixed_total if isfinite(found.fixed_total) else None,
        "best_of_every_period_objective": found.greedy_total,
        "plan": plan,
        "evaluation": _evaluation_document(judged),
    }


def _solution_text(given: "HorizonProblem", found: "HorizonPlan", judged: "HorizonEvaluation") -> str:
    from math import isfinite

    one = _beside(found.fixed_total, found.total) if isfinite(found.fixed_total) else "no plan does all periods"
    return "\n".join(
        [
            f"{len(given.periods)} periods, {found.changes} changes: {found.status}",
            "",
            _periods_table(given, found.plans, judged),
            "",
            _total_line(given, judged),
            f"  one plan for all periods: {one}   "
            f"best of every period: {_beside(found.greedy_total, found.total)}   ({found.states} plans a period)",
        ]
    )


def _beside(other: float, total: float) -> str:
    return f"{other:.6g} ({other / total - 1:+.2%})"


def _total_line(given: "HorizonProblem", judged: "HorizonEvaluation") -> str:
    unit = "s" if given.problem.objective == "iteration_time" else "USD"
    return f"  all iterations and changes: {judged.total:.6g} {unit}, of it changes {judged.change_total:.6g} {unit}"


def _periods_table(given: "HorizonProblem", plans: "tuple[RlPlan, ...]", judged: "HorizonEvaluation") -> str:
    from planner.cli.render.plan import table

    rows = [
        (str(index), str(period.iterations), *_roles(plan), f"{one.iteration_s:.4g} s", ", ".join(changed) or "-")
        for index, (period, plan, one, changed) in enumerate(
            zip(given.periods, plans, judged.evaluations, judged.changed, strict=True)
        )
    ]
    return table(("period", "iterations", "mode", "generation", "training", "iteration", "changed"), rows)


def _roles(plan: "RlPlan") -> tuple[str, str, str]:
    groups = " + ".join(f"{one.replicas} x tp{one.option.tp} {one.option.pool}" for one in plan.groups)
    assert plan.training is not None
    option = plan.training.option
    training = f"{plan.training.dp} x tp{option.tp} pp{option.pp} {option.pool}"
    return f"{plan.mode.placement}, {plan.mode.sync}", groups, training
