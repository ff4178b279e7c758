"""`planner rl solve` and `evaluate`: RL resource-planning problems in the benchmark's file format."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import SOLVER, Json, Output, TimeLimit, fraction, seconds
from planner.cli.output import EXIT_NO, EXIT_STOPPED, say, write_data, write_json, write_result
from planner.cli.rl.rl_circuits import circuits
from planner.cli.rl.rl_horizon import horizon
from planner.cli.rl.rl_predict import predict
from planner.cli.rl.rl_timeline import timeline
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.cli.rl.rl_forms import ProblemForm
    from planner.rl.search.search import RlSolution

HELP = "RL post-training on measured curves: solve and evaluate benchmark problems."

ProblemPath = Annotated[str, typer.Argument(metavar="PROBLEM", help="JSON or YAML; `-` is stdin.")]


def solve(
    problem: ProblemPath,
    output: Output = None,
    as_json: Json = False,
    time_limit: TimeLimit = None,
    gap: Annotated[
        str, typer.Option("--gap", metavar="PERCENT", help="Stop this near the bound.", rich_help_panel=SOLVER)
    ] = "0%",
) -> int:
    """Find the best split, parallelism and synchrony of an RL problem, with a proven bound.

    Exits 1 when no plan keeps within `max_iteration_s`, naming the shortest iteration there is; 3 when the time limit
    came before any plan, or none was found and none is proven impossible.

    Examples:

      planner rl solve problem.json --output plan.json

      planner rl solve examples/rl-problems/agentic-moves.json --time-limit 30s --json
    """
    from planner.cli.rl.rl_forms import form_of, solution_document, solution_text
    from planner.documents.read import load_document
    from planner.interchange.rl_horizon import is_horizon
    from planner.progress import Limits

    document = load_document(problem)
    if is_horizon(document):
        where, hint = f"{document.where(('workload', 'periods'))}: workload.periods", "use `planner rl horizon`"
        raise PlannerError("a problem of several periods", where=where, hint=hint)
    limits = Limits(time_limit_s=seconds(time_limit, "--time-limit"), gap=fraction(gap, "--gap"))
    form = form_of(document)
    given = form.read(document)
    started = time.perf_counter()
    solution = form.solve(document, given, limits)
    if solution.evaluation is None:
        return _say_no_plan(form, given, solution, as_json=as_json)
    if output is not None:
        write_json(form.plan_document(solution.plan), output)
    if as_json and output != "-":
        write_json(solution_document(form, given, solution, solution.evaluation))
    elif output != "-":
        write_data(solution_text(form, given, solution, solution.evaluation))
    say(f"solved in {time.perf_counter() - started:.2f} s")
    return 0


def evaluate(
    problem: ProblemPath,
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="As `planner solve`, `rl solve` or `rl horizon` writes.")],
    as_json: Json = False,
) -> int:
    """Price a plan of an RL problem exactly, over training time too; exits 1 where it breaks a rule.

    Examples:

      planner rl evaluate problem.json plan.json

      planner rl evaluate problem.json plan.json --json
    """
    from planner.cli.rl.rl_forms import evaluation_document, evaluation_lines, form_of, rule_lines
    from planner.documents.read import load_document
    from planner.interchange.rl_horizon import is_horizon

    document = load_document(problem)
    if is_horizon(document):
        from planner.cli.rl.rl_horizon import evaluate_document

        return evaluate_document(document, load_document(plan), as_json=as_json)
    form = form_of(document)
    given = form.read(document)
    evaluation = form.evaluate(given, form.read_plan(load_document(plan), given))
    result = {"schema": "planner.rl_evaluation/1", **evaluation_document(form, evaluation)}
    lines = [*evaluation_lines(form, given, evaluation), *rule_lines(evaluation.broken)]
    write_result(result, lambda: "\n".join(lines), as_json=as_json)
    return 0 if evaluation.feasible else EXIT_NO


def _say_no_plan(
    form: "ProblemForm",
    problem: Any,  # noqa: ANN401 - of the form
    solution: "RlSolution[Any]",
    *,
    as_json: bool,
) -> int:
    if solution.stop_reason == "time_limit":
        if as_json:
            write_json({"schema": "planner.stopped/1", "reason": "time_limit", "bound": solution.bound})
        say("stopped: time limit reached with neither a plan nor a proof that there is none")
        say("  hint: raise `--time-limit`")
        return EXIT_STOPPED
    document, text = form.infeasible(problem, solution)
    write_result({"schema": "planner.infeasible/1", **document}, lambda: text, as_json=as_json)
    return EXIT_STOPPED if solution.unproven else EXIT_NO


COMMANDS = {
    "solve": solve,
    "evaluate": evaluate,
    "horizon": horizon,
    "predict": predict,
    "timeline": timeline,
    "circuits": circuits,
}
