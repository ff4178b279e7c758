"""The file forms that `planner rl solve` and `evaluate` take, single-turn and agentic: how each is read and printed."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isinf
from pathlib import Path
from typing import Any

from planner.api import solve as solve_problem
from planner.cli.render.columns import table
from planner.documents.read import Document, given_document
from planner.errors import Infeasible, PlannerError, Stopped
from planner.interchange.rl_agentic import (
    agentic_plan_document,
    agentic_solution,
    is_agentic,
    read_agentic,
    read_agentic_plan,
    rl_agentic_problem,
)
from planner.interchange.rl_plan import plan_document, read_plan, solution_of
from planner.interchange.rl_problem import read_problem, rl_problem
from planner.load.problems import resolve_document
from planner.plan.schema import Envelope
from planner.progress import Limits
from planner.rl.agentic import AgenticPlan, AgenticProblem, evaluate_agentic
from planner.rl.evaluate import evaluate
from planner.rl.plan import GenerationGroup, RlEvaluation, RlPlan, TrainingChoice
from planner.rl.problem import RlProblem
from planner.rl.search.agentic_search import solve_agentic
from planner.rl.search.search import RlSolution
from planner.rl.search.search import solve as search
from planner.solvers.result import Status

PRICED = ("objective", "feasible", "broken", "iteration_s", "cost_usd")
PLAIN = (*PRICED, "generation_s", "training_s", "handover_s", "gpus_of_pool")
AGENTIC = (*PRICED, "generation_s_of_batch", "training_s_of_batch", "moved", "gpus_of_pool")
"""What of an evaluation its document has, in order."""


@dataclass(frozen=True, slots=True)
class ProblemForm:
    """A form of problem: what reads, solves and prices it, and what is shown of its plans.

    Problem and plan are `RlProblem` and `RlPlan`, or `AgenticProblem` and `AgenticPlan`.
    """

    read: Callable[[Document], Any]
    solve: Callable[[Document, Any, Limits], RlSolution[Any]]
    evaluate: Callable[[Any, Any], RlEvaluation]
    plan_document: Callable[[Any], dict[str, object]]
    read_plan: Callable[[Document, Any], Any]
    priced: tuple[str, ...]  # keys of an evaluation
    proven: tuple[str, ...]  # keys of a solution, beyond those of every form
    infeasible: "Callable[[Any, RlSolution[Any]], tuple[dict[str, object], str]]"  # as document and as text
    describe: Callable[[Any], list[str]]
    times: Callable[[RlEvaluation], list[str]]


def form_of(document: Document) -> ProblemForm:
    """The form of the problem in `document`; raises PlannerError for a problem of a kind, which is no benchmark's."""
    if isinstance(document.data, dict) and "kind" in document.data:
        raise PlannerError(
            "a problem of a kind, and no benchmark problem on curves",
            where=document.where(("kind",)),
            hint="use `planner solve`, and `planner check` for what its plan is worth",
        )
    return AGENTIC_FORM if is_agentic(document) else PLAIN_FORM


def evaluation_document(form: ProblemForm, evaluation: RlEvaluation) -> dict[str, object]:
    """The evaluation as plain data; null where a broken rule leaves no time."""
    return {name: _finite(getattr(evaluation, name)) for name in form.priced}


def _finite(value: object) -> object:
    numbers = value if isinstance(value, tuple) else (value,)
    return None if any(isinstance(number, float) and isinf(number) for number in numbers) else value


def solution_document(
    form: ProblemForm, problem: RlProblem | AgenticProblem, solution: RlSolution[Any], evaluation: RlEvaluation
) -> dict[str, Any]:
    """The plan, what was proven of it, and its evaluation."""
    names = ("objective", "bound", "gap", "seen", "pruned", *form.proven)
    return {
        "schema": "planner.rl_solution/1",
        "status": solution.status.value,
        "stop_reason": solution.stop_reason,
        "objective_name": problem.objective,
        **{name: getattr(solution, name) for name in names},
        "plan": form.plan_document(solution.plan),
        "evaluation": evaluation_document(form, evaluation),
    }


def solution_text(
    form: ProblemForm, problem: RlProblem | AgenticProblem, solution: RlSolution[Any], evaluation: RlEvaluation
) -> str:
    """The same for people."""
    gap = f", gap {solution.gap:.2%}" if solution.gap is not None else ""
    title, *lines = form.describe(solution.plan)
    lines += evaluation_lines(form, problem, evaluation)
    lines.append(f"  space: {solution.seen} plans priced exactly, {solution.pruned} pruned by a bound or a limit")
    if solution.unproven:
        lines.append(f"  {solution.unproven} mixes of workers were simulated with a heuristic assignment")
    return "\n".join([f"{title}: {solution.status}{gap}", *lines])


def evaluation_lines(form: ProblemForm, problem: RlProblem | AgenticProblem, evaluation: RlEvaluation) -> list[str]:
    """Objective, times and cost; nothing where a broken rule leaves no time."""
    if isinf(evaluation.iteration_s):
        return []
    unit = "s" if problem.objective == "iteration_time" else "USD"
    return [f"  {problem.objective}: {evaluation.objective:.6g} {unit}", *form.times(evaluation)]


def rule_lines(broken: tuple[str, ...]) -> list[str]:
    """Every rule that is broken, or that none is."""
    return [f"  FAIL  {rule}" for rule in broken] or ["  ok    every rule holds"]


def _no_plan(problem: RlProblem, solution: RlSolution[Any]) -> tuple[dict[str, object], str]:
    nearest, cap = solution.nearest_iteration_s, problem.max_iteration_s
    known = f"the shortest iteration takes {nearest:.6g} s" if nearest is not None else "no split fits the GPUs"
    wanted = f" iterates within {cap:.6g} s" if cap is not None else " fits"
    proved = not solution.unproven
    told = f"infeasible: no plan{wanted}"
    if not proved:
        told = f"no plan was found that{wanted}, and none is proven impossible"
    document: dict[str, object] = {"max_iteration_s": cap, "nearest_iteration_s": nearest, "seen": solution.seen}
    return {"proved": proved, **document}, f"{told}\n  nearest: {known}"


def _no_agentic_plan(problem: AgenticProblem, solution: RlSolution[AgenticPlan]) -> tuple[dict[str, object], str]:
    return _no_plan(problem.curves, solution)


def _plan_lines(plan: RlPlan) -> list[str]:
    fraction = plan.tail_fraction
    shares = ["all"] if len(plan.groups) == 1 else [f"{1 - fraction:.4g}", f"{fraction:.4g} longest"]
    rows = _role_rows(plan.groups, plan.training)
    rows = [(*row, share) for row, share in zip(rows, [*shares, "all"][: len(rows)], strict=True)]
    header = ("role", "pool", "replicas", "parallel", "gpus", "samples")
    return [f"{plan.mode.placement}, {plan.mode.sync}", "", table(header, rows), ""]


def _agentic_lines(plan: AgenticPlan) -> list[str]:
    moves = "never" if isinf(plan.move_threshold) else f"from a step {plan.move_threshold:g} times as long on"
    return [
        f"{plan.mode.placement}, staleness {plan.mode.staleness}",
        "",
        table(("role", "pool", "replicas", "parallel", "gpus"), _role_rows(plan.groups, plan.training)),
        "",
        f"  dispatch: {plan.dispatch}   priority: {plan.priority}   moves: {moves}",
    ]


def _role_rows(groups: tuple[GenerationGroup, ...], training: TrainingChoice | None) -> list[tuple[str, ...]]:
    rows = [
        ("generation", group.option.pool, str(group.replicas), f"tp{group.option.tp}", str(group.gpus))
        for group in groups
    ]
    if training is not None:
        option = training.option
        rows.append(("training", option.pool, str(training.dp), f"tp{option.tp} pp{option.pp}", str(training.gpus)))
    return [*rows]


def _plain_times(evaluation: RlEvaluation) -> list[str]:
    return [f"{_phases(evaluation)}   handover {evaluation.handover_s:.4g} s", f"{_cost(evaluation)} an iteration"]


def _agentic_times(evaluation: RlEvaluation) -> list[str]:
    return [f"{_phases(evaluation)} {_cost(evaluation)}   moved {evaluation.moved}"]


def _phases(evaluation: RlEvaluation) -> str:
    times = f"generation {evaluation.generation_s:.4g} s   training {evaluation.training_s:.4g} s"
    return f"  iteration {evaluation.iteration_s:.4g} s   {times}"


def _cost(evaluation: RlEvaluation) -> str:
    return f"  cost {evaluation.cost_usd:.4g} USD"


def _by_planner_solve(
    state: Callable[[Document], dict[str, Any]],
    read: Callable[[Envelope, Any, float], RlSolution[Any]],
    again: Callable[..., RlSolution[Any]],
) -> Callable[[Document, Any, Limits], RlSolution[Any]]:
    """Solves as `planner solve` does; where no plan keeps the deadline, `again` finds the shortest iteration."""

    def solve(document: Document, given: Any, limits: Limits) -> RlSolution[Any]:  # noqa: ANN401 - of the form
        resolved = resolve_document(given_document(state(document), document.source), Path())
        try:
            return read(solve_problem(resolved, limits), given, limits.gap)
        except Infeasible:
            return again(given, time_limit_s=limits.time_limit_s)
        except Stopped as answer:
            return RlSolution(Status.UNKNOWN, answer.reason, None, None, answer.bound, 0, 0, 0.0)

    return solve


PLAIN_FORM = ProblemForm(
    read_problem,
    _by_planner_solve(rl_problem, solution_of, search),
    evaluate,
    plan_document,
    read_plan,
    PLAIN,
    (),
    _no_plan,
    _plan_lines,
    _plain_times,
)
AGENTIC_FORM = ProblemForm(
    read_agentic,
    _by_planner_solve(rl_agentic_problem, agentic_solution, solve_agentic),
    evaluate_agentic,
    agentic_plan_document,
    read_agentic_plan,
    AGENTIC,
    ("unproven",),
    _no_agentic_plan,
    _agentic_lines,
    _agentic_times,
)
