"""`planner solve`: reads a problem file, solves it and writes the plan."""

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import (
    INPUT,
    Backend,
    Gap,
    Json,
    Output,
    Overrides,
    Profiles,
    Seed,
    Threads,
    TimeLimit,
    Verbose,
    fraction,
    profile_paths,
    seconds,
)
from planner.cli.output import (
    EXIT_STOPPED,
    refuse_unwritable,
    say,
    say_infeasible,
    write_data,
    write_json,
    write_result,
)
from planner.cli.plans.alternatives import FewestShapes, MostPlans, hand_over_all, refuse_together
from planner.cli.plans.moves import Loss, MovesFile, Running, hand_over_moves, replanned_from, require_running
from planner.cli.progress import progress
from planner.cli.render.columns import table
from planner.cli.render.plan import render_plan
from planner.cli.tables import say_tables
from planner.errors import Infeasible, Stopped, require_known

ProblemFile = Annotated[
    str, typer.Argument(metavar="PROBLEM", help="YAML, JSON, or an instance of a benchmark; `-` is stdin.")
]
Level = Annotated[
    str | None,
    typer.Option(
        envvar="PLANNER_LEVEL",
        metavar="LEVEL",
        help="Serving plans: verified by simulation; static, an estimate by formulas. Verified where it can be.",
        rich_help_panel=INPUT,
    ),
]
Fix = Annotated[
    list[str] | None,
    typer.Option(
        "--fix", metavar="AXIS=VALUE", help="Fix a part of the plan by hand; repeatable.", rich_help_panel=INPUT
    ),
]
ShowConfig = Annotated[
    bool,
    typer.Option("--show-config", help="Print every field and its origin; solve nothing.", rich_help_panel=INPUT),
]
MOST_SHOWN = 200  # characters of a value of the configuration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.moves.replan import Replan
    from planner.plan.schema import Envelope
    from planner.problem.resolve import Resolved
    from planner.progress import Limits


def solve(
    problem: ProblemFile,
    output: Output = None,
    as_json: Json = False,
    overrides: Overrides = None,
    level: Level = None,
    fix: Fix = None,
    most: MostPlans = None,
    fewest_shapes: FewestShapes = None,
    profiles: Profiles = None,
    verbose: Verbose = False,
    show_config: ShowConfig = False,
    time_limit: TimeLimit = None,
    gap: Gap = None,
    seed: Seed = None,
    threads: Threads = None,
    backend: Backend = None,
    running: Running = None,
    loss: Loss = None,
    moves: MovesFile = None,
) -> int:
    """Find the best plan for a problem, with a proven bound.

    A serving plan keeps its limits when it is simulated on requests that it was not chosen on, as `planner check PLAN
    --level simulate` does. What is not simulated is called an estimate, and says why.

    Exits 1 when no plan meets the limits, naming the smallest set of limits in conflict; 3 when a limit of the solve
    came first, or a search found no plan and nothing proves that there is none.

    Examples:

      planner solve examples/serve-qwen3-32b-h200.yaml -o plan.json

      planner solve problem.yaml --set slo.ttft=200ms --time-limit 30s --json

      planner solve examples/serve-qwen3-32b-h200.yaml --level static -o estimate.json

      planner solve problem.yaml --fix role.prefill.tp=4 --alternatives 3 -o plan.json

      planner solve problem.yaml --from plan.json --loss 1% -o next.json --moves moves.json
    """
    from planner.progress import Limits

    started = time.perf_counter()
    given = Limits(
        time_limit_s=seconds(time_limit, "--time-limit"), gap=fraction(gap, "--gap"), threads=threads, backend=backend
    )
    paths = profile_paths(profiles)
    if show_config:
        changes = [*(overrides or ()), *_of_level(level)]
        return _show_config(problem, changes, paths, seed, as_json=as_json, output=output)
    try:
        resolved = _read(problem, overrides or (), fix or (), level, paths, seed)
        refuse_unwritable(output)
        refuse_together(most=most, fewest_shapes=fewest_shapes, level=level)
        refuse_unwritable(moves)
        require_running(running, loss, moves, most)
        _say_own_tables(resolved)
        with progress() as tell:
            limits = replace(given, tell=tell)
            if most is not None:
                return hand_over_all(resolved, most, limits, output, as_json=as_json)
            replan, envelope = _solved(resolved, limits, fewest_shapes, running, loss)
    except Infeasible as answer:
        return say_infeasible(answer, as_json=as_json)
    except Stopped as answer:
        return _say_stopped(answer, given, as_json=as_json)
    _hand_over(envelope, output, as_json=as_json, verbose=verbose, took_s=time.perf_counter() - started)
    hand_over_moves(replan, moves, told=not as_json and output != "-")
    return 0


def _read(
    problem: str,
    overrides: "Sequence[str]",
    fix: "Sequence[str]",
    level: str | None,
    paths: tuple[str, ...],
    seed: int | None,
) -> "Resolved":
    """The problem at its level with parts fixed; raises Infeasible where no plan has them."""
    from planner.alternatives.axes import fixed
    from planner.api import at_level
    from planner.load.problems import load_problem

    resolved = load_problem(problem, overrides=overrides, profiles=paths, seed=seed)
    if level is not None:
        resolved = at_level(resolved, level)
    return fixed(resolved, fix) if fix else resolved


def _say_own_tables(resolved: "Resolved") -> None:
    """One line for the kernel tables of this machine, where the kind of plan is priced by them unasked."""
    from planner.hardware.profiles.installed import unasked_profiles
    from planner.kinds.registry import find_kind

    if find_kind(resolved.problem.kind).tables_unasked:
        costs = resolved.problem.costs
        say_tables(() if costs.profiles == unasked_profiles() else costs.profiles)


def _solved(
    resolved: "Resolved", limits: "Limits", fewest_shapes: str | None, running: str | None, loss: str | None
) -> "tuple[Replan | None, Envelope]":
    """The moves from the plan that runs, where one does, and the plan."""
    from planner.alternatives.preferences import with_fewest_shapes
    from planner.api import solve as solve_problem

    if fewest_shapes is not None:
        resolved = with_fewest_shapes(resolved, fraction(fewest_shapes, "--fewest-shapes"), limits)
    replan = replanned_from(resolved, limits, running, loss)
    return replan, solve_problem(resolved, limits) if replan is None else replan.plan


def _of_level(level: str | None) -> list[str]:
    """The overrides that a level of serving plans stands for."""
    from planner.kinds.registry import find_kind

    levels = find_kind("serve").levels
    if level is None:
        return []
    require_known("level", level, levels, listing="levels are", where="--level")
    return [f"options.{name}={value}" for name, value in levels[level].items()]


def _hand_over(envelope: "Envelope", output: str | None, *, as_json: bool, verbose: bool, took_s: float) -> None:
    from planner.kinds.registry import find_kind
    from planner.plan.store import plan_json

    text = plan_json(envelope)
    if not as_json and output != "-":
        decision = find_kind(envelope.kind).decision.model_validate(envelope.decision)
        write_data(render_plan(envelope, decision, verbose=verbose))
    if output is not None:
        write_data(text, output)
    if as_json and output != "-":
        write_data(text)
    by = f" ({envelope.software.solver})" if envelope.software.solver else ""
    say(f"solved in {took_s:.2f} s{by}")


def _say_stopped(answer: "Stopped", limits: "Limits", *, as_json: bool) -> int:
    if as_json:
        write_json({"schema": "planner.stopped/1", "reason": answer.reason, "bound": answer.bound})
    limit = (
        f" of {limits.time_limit_s:g} s" if limits.time_limit_s is not None and answer.reason == "time_limit" else ""
    )
    say(f"stopped: {answer.reason.replace('_', ' ')}{limit} reached with neither a plan nor a proof that there is none")
    say("  hint: raise `--time-limit`, or narrow `options` in the problem")
    return EXIT_STOPPED


def _clipped(text: str) -> str:
    """Values such as recorded lengths are cut short in the table; `--json` has them whole."""
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 4]} ..."


def _show_config(
    problem: str,
    overrides: list[str],
    profiles: tuple[str, ...],
    seed: int | None,
    *,
    as_json: bool,
    output: str | None,
) -> int:
    from planner.load.merged import merged_config

    rows = merged_config(problem, overrides, profiles=profiles, seed=seed)
    fields = {path: {"value": value, "origin": origin} for path, value, origin in rows}

    cells = [(path, _clipped(json.dumps(value, ensure_ascii=False)), origin) for path, value, origin in rows]
    write_result(
        {"schema": "planner.config/1", "fields": fields},
        lambda: table(("field", "value", "from"), cells, indent=0),
        output,
        as_json=as_json,
    )
    return 0
