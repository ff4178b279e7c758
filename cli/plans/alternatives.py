"""`planner solve --alternatives`: the best few distinct plans, printed beside each other and written one by one."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import SOLVER
from planner.cli.output import say, write_data, write_json
from planner.cli.render.columns import fitted, wrapped
from planner.documents.units import figure
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.alternatives.ranking import Alternatives
    from planner.plan.schema import Envelope
    from planner.problem.resolve import Resolved
    from planner.progress import Limits


MostPlans = Annotated[
    int | None,
    typer.Option("--alternatives", metavar="K", help="The K best distinct plans, by formulas.", rich_help_panel=SOLVER),
]
FewestShapes = Annotated[
    str | None,
    typer.Option(
        "--fewest-shapes",
        metavar="PERCENT",
        help="The fewest instance types that lose no more than this.",
        rich_help_panel=SOLVER,
    ),
]


def refuse_together(*, most: int | None, fewest_shapes: str | None, level: str | None) -> None:
    """Raises PlannerError for flags of which one leaves the other without effect."""
    if most is not None and fewest_shapes is not None:
        raise PlannerError("goes with no `--fewest-shapes`", where="--alternatives", hint="leave one of them out")
    if most is not None and level not in (None, "static"):
        raise PlannerError(
            "alternatives are ranked by formulas", where=f"--level {level}", hint="take `--level static`, or none"
        )


def hand_over_all(resolved: "Resolved", most: int, limits: "Limits", output: str | None, *, as_json: bool) -> int:
    """Solves, prints and writes them: `plan.json`, `plan.2.json` and so on; the exit code."""
    from planner.alternatives.ranking import alternatives
    from planner.plan.store import plan_json

    if output == "-" and not as_json:
        raise PlannerError("several plans do not go to stdout", where="--output -", hint="name a file, or add `--json`")
    answer = alternatives(resolved, most, limits)
    if as_json:
        document = {"schema": "planner.alternatives/1", "distinct": answer.distinct, "plans": _data(*answer.plans)}
        preferred = {} if answer.preferred is None else {"preferred": _data(answer.preferred)[0]}
        write_json(document | preferred, output)
        return 0
    write_data(_rendered(answer))
    if output is not None:
        path = Path(output)
        for place, plan in enumerate(answer.plans, 1):
            write_data(plan_json(plan), str(path if place == 1 else path.with_suffix(f".{place}{path.suffix}")))
    if len(answer.plans) < most:
        say(f"note: no more than {len(answer.plans)} plans are distinct")
    return 0


def _data(*plans: "Envelope") -> list[dict[str, Any]]:
    return [plan.model_dump(mode="json", by_alias=True, exclude_none=True) for plan in plans]


def _rendered(answer: "Alternatives") -> str:
    metric = answer.plans[0].certificate.objective.metric
    from planner.alternatives.why_not import shapes_of as stages_of

    workflow = answer.plans[0].kind == "workflow"
    rows, shapes_of = [], [stages_of(plan) if workflow else _shapes(plan) for plan in answer.plans]
    for place, plan in enumerate(answer.plans):
        shapes = shapes_of[place]
        if shapes_of.count(shapes) > 1:
            shapes += f"; {', '.join(sorted(answer.parts[place]))}"
        loss = "-" if place == 0 else f"{100 * answer.loss(place):.2f} %"
        rows.append((str(place + 1), figure(metric, plan.certificate.objective.value), loss, shapes))
    how = "" if workflow else " by formulas"  # workflows are simulated
    head = wrapped(f"{answer.plans[0].name}: the {len(rows)} best plans{how}; {answer.distinct}", indent=0)
    return f"{head}\n\n{fitted(('plan', metric, 'worse by', 'of'), rows)}{_preferred(answer)}"


def _preferred(answer: "Alternatives") -> str:
    """What `solve` takes instead of the best by the costs alone, and why; empty where it takes that."""
    from planner.explain.stated import other_plans, passed_text

    plan = answer.preferred
    if plan is None:
        return ""
    why = next((text.removeprefix("; ") for other in other_plans(plan) if (text := passed_text(other))), "")
    told = f"`planner solve` takes {_shapes(plan)}, {100 * answer.loss_of(plan):.2f} % worse by the costs alone"
    return f"\n{wrapped(told + (f', as plan 1 has {why}' if why else ''))}\n"


def _shapes(plan: "Envelope") -> str:
    """`15 x prefill tp2, 4 x decode 1 GPU`."""
    roles = (f"{role.replicas} x {role.function} {role.parallelism.text or '1 GPU'}" for role in plan.roles)
    return ", ".join(dict.fromkeys(roles))
