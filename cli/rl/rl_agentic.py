"""Agentic problems of `planner rl`: solved, judged, shown."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.documents.read import Document
    from planner.rl.agentic import AgenticEvaluation, AgenticPlan, AgenticProblem
    from planner.rl.search.agentic_search import AgenticSolution

EXIT_NO, EXIT_STOPPED = 1, 3


def solve_document(
    document: "Document", output: str | None, *, as_json: bool, time_limit_s: float | None, gap: float
) -> int:
    """Solves the agentic problem in `document`, writes and prints as `planner rl solve`; returns the exit code."""
    from planner.cli.output import say, write_data, write_json
    from planner.rl.formats.agentic_format import agentic_plan_document, read_agentic
    from planner.rl.search.agentic_search import solve_agentic

    problem = read_agentic(document)
    solution = solve_agentic(problem, time_limit_s=time_limit_s, gap=gap)
    if solution.plan is None or solution.evaluation is None:
        return _say_no_plan(solution, as_json=as_json)
    plan = agentic_plan_document(solution.plan)
    if output is not None:
        write_json(plan, output)
    if as_json and output != "-":
        write_json(_solution_document(problem, solution, solution.evaluation, plan))
    elif output != "-":
        write_data(_solution_text(problem, solution, solution.plan, solution.evaluation))
    say(f"solved in {solution.solve_s:.2f} s")
    return 0


def evaluate_document(document: "Document", plan: "Document", *, as_json: bool) -> int:
    """Prices a plan of the agentic problem in `document`; 1 where it breaks a rule."""
    from planner.cli.output import write_data, write_json
    from planner.rl.agentic import evaluate_agentic
    from planner.rl.formats.agentic_format import read_agentic, read_agentic_plan

    problem = read_agentic(document)
    found = evaluate_agentic(problem, read_agentic_plan(plan, problem))
    if as_json:
        write_json({"schema": "planner.rl.evaluation/1", **_evaluation_document(found)})
    else:
        lines = [] if found.broken else _evaluation_lines(problem, found)
        write_data("\n".join([*lines, *([f"  FAIL  {rule}" for rule in found.broken] or ["  ok    every rule holds"])]))
    return EXIT_NO if found.broken else 0


def _say_no_plan(solution: "AgenticSolution", *, as_json: bool) -> int:
    from planner.cli.output import say, write_data, write_json

    stopped = solution.stop_reason == "time_limit"
    if as_json:
        answer = {"reason": "time_limit", "bound": None} if stopped else {"proved": not solution.unproven}
        write_json({"schema": "planner.stopped/1" if stopped else "planner.infeasible/1", **answer})
    elif not stopped:
        write_data("infeasible: no plan keeps all rules\n  nearest: raise `max_iteration_s`, or add GPUs")
    if stopped:
        say("stopped: time limit reached with neither a plan nor a proof that there is none")
        say("  hint: raise `--time-limit`")
    return EXIT_STOPPED if stopped else EXIT_NO


def _evaluation_document(found: "AgenticEvaluation") -> dict[str, Any]:
    finite = not found.broken or found.iteration_s < float("inf")
    return {
        "objective": found.objective if finite else None,
        "feasible": not found.broken,
        "broken": list(found.broken),
        "iteration_s": found.iteration_s if finite else None,
        "cost_usd": found.cost_usd if finite else None,
        "generation_s_of_batch": list(found.generation_s_of_batch) if finite else None,
        "training_s_of_batch": list(found.training_s_of_batch),
        "moved": found.moved,
        "gpus_of_pool": found.gpus_of_pool,
    }


def _solution_document(
    problem: "AgenticProblem", solution: "AgenticSolution", found: "AgenticEvaluation", plan: dict[str, object]
) -> dict[str, Any]:
    return {
        "schema": "planner.rl.solution/1",
        "status": solution.status.value,
        "stop_reason": solution.stop_reason,
        "objective_name": problem.curves.objective,
        "objective": solution.objective,
        "bound": solution.bound,
        "gap": solution.gap,
        "seen": solution.seen,
        "pruned": solution.pruned,
        "unproven": solution.unproven,
        "plan": plan,
        "evaluation": _evaluation_document(found),
    }


def _solution_text(
    problem: "AgenticProblem", solution: "AgenticSolution", plan: "AgenticPlan", found: "AgenticEvaluation"
) -> str:
    from planner.cli.render.plan import table

    rows = [
        ("generation", one.option.pool, str(one.replicas), f"tp{one.option.tp}", str(one.gpus)) for one in plan.groups
    ]
    option = plan.training.option
    shape = f"tp{option.tp} pp{option.pp}"
    rows.append(("training", option.pool, str(plan.training.dp), shape, str(plan.training.gpus)))
    moves = "never" if plan.move_threshold == float("inf") else f"from a step {plan.move_threshold:g} times as long on"
    gap = f", gap {solution.gap:.2%}" if solution.gap is not None else ""
    lines = [
        f"{plan.mode.placement}, staleness {plan.mode.staleness}: {solution.status}{gap}",
        "",
        table(("role", "pool", "replicas", "parallel", "gpus"), rows),
        "",
        f"  dispatch: {plan.dispatch}   priority: {plan.priority}   moves: {moves}",
        *_evaluation_lines(problem, found),
        f"  space: {solution.seen} plans priced exactly, {solution.pruned} pruned by a bound or a limit",
    ]
    if solution.unproven:
        lines.append(f"  {solution.unproven} mixes of workers were simulated with a heuristic assignment")
    return "\n".join(lines)


def _evaluation_lines(problem: "AgenticProblem", found: "AgenticEvaluation") -> list[str]:
    unit = "s" if problem.curves.objective == "iteration_time" else "USD"
    generation = sum(found.generation_s_of_batch) / len(found.generation_s_of_batch)
    training = sum(found.training_s_of_batch) / len(found.training_s_of_batch)
    return [
        f"  {problem.curves.objective}: {found.objective:.6g} {unit}",
        f"  iteration {found.iteration_s:.4g} s   generation {generation:.4g} s   training {training:.4g} s   "
        f"cost {found.cost_usd:.4g} USD   moved {found.moved}",
    ]
