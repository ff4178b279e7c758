"""`planner rl`: problems of RL resource planning in the form of the benchmark, solved and judged."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import SOLVER, Json, Output, fraction, seconds
from planner.cli.rl.rl_horizon import horizon
from planner.cli.rl.rl_predict import predict
from planner.cli.rl.rl_timeline import timeline
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.rl.plan import RlEvaluation, RlPlan
    from planner.rl.problem import RlProblem
    from planner.rl.search.search import RlSolution

HELP = "RL post-training on measured curves: solve and evaluate benchmark problems."
EXIT_NO, EXIT_STOPPED = 1, 3

ProblemPath = Annotated[str, typer.Argument(metavar="PROBLEM", help="JSON or YAML; `-` is stdin.")]


def solve(
    problem: ProblemPath,
    output: Output = None,
    as_json: Json = False,
    time_limit: Annotated[
        str | None,
        typer.Option(
            "--time-limit", envvar="PLANNER_TIME_LIMIT", metavar="TIME", help="Such as 30s.", rich_help_panel=SOLVER
        ),
    ] = None,
    gap: Annotated[
        str, typer.Option("--gap", metavar="PERCENT", help="Stop this near the bound.", rich_help_panel=SOLVER)
    ] = "0%",
) -> int:
    """Find the best split, parallelism and synchrony of an RL problem, with a proven bound.

    Exits 1 when no plan keeps within `max_iteration_s`, naming the shortest iteration there is; 3 when the time limit
    came before any plan.

    Examples:

      planner rl solve problem.json --output plan.json

      planner rl solve examples/rl-problems/agentic-moves.json --time-limit 30s --json
    """
    from planner.cli.output import say, write_data, write_json
    from planner.documents.read import load_document
    from planner.rl.formats.agentic_format import is_agentic
    from planner.rl.formats.benchmark_plan import plan_document
    from planner.rl.formats.benchmark_problem import read_problem
    from planner.rl.formats.horizon_format import is_horizon
    from planner.rl.search.search import solve as solve_problem

    document = load_document(problem)
    if is_horizon(document):
        where, hint = f"{document.where(('workload', 'periods'))}: workload.periods", "use `planner rl horizon`"
        raise PlannerError("a problem of several periods", where=where, hint=hint)
    limit_s, wanted_gap = seconds(time_limit, "--time-limit"), fraction(gap, "--gap")
    if is_agentic(document):
        from planner.cli.rl.rl_agentic import solve_document

        return solve_document(document, output, as_json=as_json, time_limit_s=limit_s, gap=wanted_gap)
    given = read_problem(document)
    solution = solve_problem(given, time_limit_s=limit_s, gap=wanted_gap)
    if solution.plan is None or solution.evaluation is None:
        return _say_no_plan(given, solution, as_json=as_json)
    plan = plan_document(solution.plan)
    if output is not None:
        write_json(plan, output)
    if as_json and output != "-":
        write_json(_solution_document(given, solution, plan))
    elif output != "-":
        write_data(_solution_text(given, solution, solution.plan, solution.evaluation))
    say(f"solved in {solution.solve_s:.2f} s")
    return 0


def evaluate(
    problem: ProblemPath,
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="JSON, as `planner rl solve` or `horizon` writes.")],
    as_json: Json = False,
) -> int:
    """Price a plan of an RL problem exactly, over training time too; exits 1 where it breaks a rule.

    Examples:

      planner rl evaluate problem.json plan.json

      planner rl evaluate problem.json plan.json --json
    """
    from planner.cli.output import write_data, write_json
    from planner.documents.read import load_document
    from planner.rl.evaluate import evaluate as evaluate_plan
    from planner.rl.formats.agentic_format import is_agentic
    from planner.rl.formats.benchmark_plan import read_plan
    from planner.rl.formats.benchmark_problem import read_problem
    from planner.rl.formats.horizon_format import is_horizon

    document = load_document(problem)
    if is_horizon(document):
        from planner.cli.rl.rl_horizon import evaluate_document as evaluate_horizon_document

        return evaluate_horizon_document(document, load_document(plan), as_json=as_json)
    if is_agentic(document):
        from planner.cli.rl.rl_agentic import evaluate_document

        return evaluate_document(document, load_document(plan), as_json=as_json)
    given = read_problem(document)
    found = evaluate_plan(given, read_plan(load_document(plan), given))
    if as_json:
        write_json({"schema": "planner.rl.evaluation/1", **_evaluation_document(found)})
    else:
        broken = [f"  FAIL  {rule}" for rule in found.broken] or ["  ok    every rule holds"]
        write_data("\n".join([*_evaluation_lines(given, found), *broken]))
    return 0 if found.feasible else EXIT_NO


def _say_no_plan(problem: "RlProblem", solution: "RlSolution", *, as_json: bool) -> int:
    from planner.cli.output import say, write_data, write_json

    if solution.stop_reason == "time_limit":
        if as_json:
            write_json({"schema": "planner.stopped/1", "reason": "time_limit", "bound": solution.bound})
        say("stopped: time limit reached with neither a plan nor a proof that there is none")
        say("  hint: raise `--time-limit`")
        return EXIT_STOPPED
    nearest, cap = solution.nearest_iteration_s, problem.max_iteration_s
    if as_json:
        document = {"max_iteration_s": cap, "nearest_iteration_s": nearest, "seen": solution.seen}
        write_json({"schema": "planner.infeasible/1", "proved": True, **document})
    else:
        known = f"the shortest iteration takes {nearest:.6g} s" if nearest is not None else "no split fits the GPUs"
        wanted = f" iterates within {cap:.6g} s" if cap is not None else " fits"
        write_data(f"infeasible: no plan{wanted}\n  nearest: {known}")
    return EXIT_NO


def _solution_document(problem: "RlProblem", solution: "RlSolution", plan: dict[str, object]) -> dict[str, Any]:
    assert solution.evaluation is not None
    return {
        "schema": "planner.rl.solution/1",
        "status": solution.status.value,
        "stop_reason": solution.stop_reason,
        "objective_name": problem.objective,
        "objective": solution.objective,
        "bound": solution.bound,
        "gap": solution.gap,
        "seen": solution.seen,
        "pruned": solution.pruned,
        "plan": plan,
        "evaluation": _evaluation_document(solution.evaluation),
    }


def _evaluation_document(found: "RlEvaluation") -> dict[str, Any]:
    return {
        "objective": found.objective,
        "feasible": found.feasible,
        "broken": list(found.broken),
        "iteration_s": found.iteration_s,
        "cost_usd": found.cost_usd,
        "generation_s": found.generation_s,
        "training_s": found.training_s,
        "handover_s": found.handover_s,
        "gpus_of_pool": found.gpus_of_pool,
    }


def _solution_text(problem: "RlProblem", solution: "RlSolution", plan: "RlPlan", found: "RlEvaluation") -> str:
    from planner.cli.render.plan import table

    gap = f", gap {solution.gap:.2%}" if solution.gap is not None else ""
    lines = [f"{plan.mode.placement}, {plan.mode.sync}: {solution.status}{gap}", "", table(*_roles(plan)), ""]
    lines += _evaluation_lines(problem, found)
    lines.append(f"  space: {solution.seen} plans priced exactly, {solution.pruned} pruned by a bound or a limit")
    return "\n".join(lines)


def _roles(plan: "RlPlan") -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    header = ("role", "pool", "replicas", "parallel", "gpus", "samples")
    shares = (
        ["all"] if len(plan.groups) == 1 else [f"{1 - plan.tail_fraction:.4g}", f"{plan.tail_fraction:.4g} longest"]
    )
    rows: list[tuple[str, ...]] = [
        ("generation", one.option.pool, str(one.replicas), f"tp{one.option.tp}", str(one.gpus), share)
        for one, share in zip(plan.groups, shares, strict=True)
    ]
    if plan.training is not None:
        option = plan.training.option
        shape = f"tp{option.tp} pp{option.pp}"
        rows.append(("training", option.pool, str(plan.training.dp), shape, str(plan.training.gpus), "all"))
    return header, rows


def _evaluation_lines(problem: "RlProblem", found: "RlEvaluation") -> list[str]:
    unit = "s" if problem.objective == "iteration_time" else "USD"
    times = f"generation {found.generation_s:.4g} s   training {found.training_s:.4g} s"
    return [
        f"  {problem.objective}: {found.objective:.6g} {unit}",
        f"  iteration {found.iteration_s:.4g} s   {times}   handover {found.handover_s:.4g} s",
        f"  cost {found.cost_usd:.4g} USD an iteration",
    ]


COMMANDS = {"solve": solve, "evaluate": evaluate, "horizon": horizon, "predict": predict, "timeline": timeline}
