"""`planner rl horizon`: plans over training time, re-split as response lengths grow."""

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import Json, Output
from planner.cli.output import EXIT_NO, write_data, write_json, write_result
from planner.cli.render.columns import table

if TYPE_CHECKING:
    from planner.documents.read import Document
    from planner.rl.plan import RlPlan
    from planner.rl.search.horizon import HorizonEvaluation, HorizonPlan, HorizonProblem


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
    from planner.api import solve
    from planner.documents.read import given_document, load_document
    from planner.interchange.rl_horizon import (
        horizon_of_envelope,
        horizon_plan_document,
        read_horizon,
        rl_horizon_problem,
    )
    from planner.load.problems import resolve_document
    from planner.rl.search.horizon import evaluate_horizon

    document = load_document(problem)
    given = read_horizon(document)
    resolved = resolve_document(given_document(rl_horizon_problem(document), document.source), Path())
    optimum = horizon_of_envelope(solve(resolved), given)
    evaluation = evaluate_horizon(given, optimum.plans)
    plan = horizon_plan_document(given, optimum.plans)
    if output is not None:
        write_json(plan, output)
    if as_json and output != "-":
        write_json(_solution_document(given, optimum, evaluation, plan))
    elif output != "-":
        write_data(_solution_text(given, optimum, evaluation))
    return 0


def evaluate_document(document: "Document", plan: "Document", *, as_json: bool) -> int:
    """Prices a plan over training time of the problem in `document`; 1 where it breaks a rule."""
    from planner.cli.rl.rl_forms import rule_lines
    from planner.interchange.rl_horizon import read_horizon, read_horizon_plan
    from planner.rl.search.horizon import evaluate_horizon

    given = read_horizon(document)
    plans = read_horizon_plan(plan, given)
    evaluation = evaluate_horizon(given, plans)
    result = {"schema": "planner.rl_horizon_evaluation/1", **_evaluation_document(evaluation)}
    rules = rule_lines(evaluation.broken)
    lines = [_periods_table(given, plans, evaluation), "", _total_line(given, evaluation), *rules]
    write_result(result, lambda: "\n".join(lines), as_json=as_json)
    return EXIT_NO if evaluation.broken else 0


def _evaluation_document(evaluation: "HorizonEvaluation") -> dict[str, Any]:
    periods = [
        {
            "objective": priced.objective,
            "iteration_s": priced.iteration_s,
            "cost_usd": priced.cost_usd,
            "changed": list(changed),
        }
        for priced, changed in zip(evaluation.evaluations, evaluation.changed, strict=True)
    ]
    return {
        "objective": evaluation.total,
        "change_objective": evaluation.change_total,
        "feasible": not evaluation.broken,
        "broken": list(evaluation.broken),
        "periods": periods,
    }


def _solution_document(
    given: "HorizonProblem", optimum: "HorizonPlan", evaluation: "HorizonEvaluation", plan: dict[str, object]
) -> dict[str, Any]:

    from planner.solvers.result import relative_gap

    return {
        "schema": "planner.rl_horizon_solution/1",
        "status": optimum.status.value,
        "objective_name": given.problem.objective,
        "objective": optimum.total,
        "bound": optimum.bound,
        "gap": relative_gap(optimum.total, optimum.bound),
        "changes": optimum.changes,
        "states": optimum.states,
        "one_plan_objective": optimum.fixed_total if isfinite(optimum.fixed_total) else None,
        "best_of_every_period_objective": optimum.greedy_total,
        "plan": plan,
        "evaluation": _evaluation_document(evaluation),
    }


def _solution_text(given: "HorizonProblem", optimum: "HorizonPlan", evaluation: "HorizonEvaluation") -> str:

    fixed = _beside(optimum.fixed_total, optimum.total) if isfinite(optimum.fixed_total) else "no plan does all periods"
    return "\n".join(
        [
            f"{len(given.periods)} periods, {optimum.changes} changes: {optimum.status}",
            "",
            _periods_table(given, optimum.plans, evaluation),
            "",
            _total_line(given, evaluation),
            f"  one plan for all periods: {fixed}   "
            f"best of every period: {_beside(optimum.greedy_total, optimum.total)}   ({optimum.states} plans a period)",
        ]
    )


def _beside(other: float, total: float) -> str:
    return f"{other:.6g} ({other / total - 1:+.2%})"


def _total_line(given: "HorizonProblem", evaluation: "HorizonEvaluation") -> str:
    unit = "s" if given.problem.objective == "iteration_time" else "USD"
    changes = f"{evaluation.change_total:.6g} {unit}"
    return f"  all iterations and changes: {evaluation.total:.6g} {unit}, of it changes {changes}"


def _periods_table(given: "HorizonProblem", plans: "tuple[RlPlan, ...]", evaluation: "HorizonEvaluation") -> str:

    rows = [
        (str(index), str(period.iterations), *_roles(plan), f"{priced.iteration_s:.4g} s", ", ".join(changed) or "-")
        for index, (period, plan, priced, changed) in enumerate(
            zip(given.periods, plans, evaluation.evaluations, evaluation.changed, strict=True)
        )
    ]
    return table(("period", "iterations", "mode", "generation", "training", "iteration", "changed"), rows)


def _roles(plan: "RlPlan") -> tuple[str, str, str]:
    groups = " + ".join(f"{group.replicas} x tp{group.option.tp} {group.option.pool}" for group in plan.groups)
    assert plan.training is not None
    option = plan.training.option
    training = f"{plan.training.dp} x tp{option.tp} pp{option.pp} {option.pool}"
    return f"{plan.mode.placement}, {plan.mode.sync}", groups, training
