"""`planner import`: what a launch script, a manifest or a recipe decides, and what it leaves open."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.artifacts.asked import Asked, of_artifacts
from planner.cli.options import INPUT, OUTPUT, Json
from planner.cli.output import refuse_unwritable, say, write_json, write_result
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.importing.plans.question import Question
    from planner.importing.records import Reading


@of_artifacts
def import_(
    asked: Asked,
    cache: Annotated[
        str | None,
        typer.Option(
            "--cache",
            metavar="FIELDS",
            help="Memory for prefixes: `pool.size=512GB,pool.usd_per_gb_hour=0.001,pool.bandwidth=25GB/s`.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option("--problem", metavar="FILE", help="Write the problem that it answers.", rich_help_panel=OUTPUT),
    ] = None,
    summary: Annotated[
        str | None,
        typer.Option("--summary", metavar="FILE", help="Write what was read here, as JSON.", rich_help_panel=OUTPUT),
    ] = None,
    as_json: Json = False,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the plan that it is.", rich_help_panel=OUTPUT),
    ] = None,
) -> int:
    """Read what people run: engine, model, GPUs, the settings of every role, and contradictions among them.

    Nothing of an artifact is run or fetched. What it leaves to its environment is listed as unresolved, and is given
    with --env or --set; settings that it leaves to the engine stay open. With -o it becomes a plan, with the problem
    that it answers; what an artifact never says (requests, limits, machines) is given beside it.

    Examples:

      planner import deploy.yaml --summary read.json

      planner import serve.sh --env MODEL=openai/gpt-oss-120b --env TP=4

      planner import deploy.yaml --workload input=1500,output=300,rate=20/s --cluster gpu=h100,nodes=4 -o plan.json

      cat serve.sh | planner import - --json
    """
    for path in (summary, problem, output):
        refuse_unwritable(path)
    reading = _read(asked)
    document = {"schema": "planner.import/1"} | reading.summary()
    if summary is not None:
        write_json(reading.summary(), summary)
    if output is not None or problem is not None:
        _write_plan(reading, asked.question(cache), problem, output)
    if "-" not in (summary, problem, output):
        write_result(document, lambda: render_reading(reading), as_json=as_json)
    return 0


def _write_plan(reading: "Reading", question: "Question", problem: str | None, output: str | None) -> None:
    """The problem and the plan, the plan first: a problem without one would promise what does not run."""
    from planner.importing.plans.any_kind import plan_of_reading, problem_of_reading

    if reading.unresolved:
        names = ", ".join(reading.unresolved)
        raise PlannerError(
            f"a plan waits for {names}", where="--output", hint=f"write `--env {reading.unresolved[0]}=VALUE`"
        )
    if output is not None:
        plan, notes = plan_of_reading(reading, question)
        for note in notes:
            say(f"note: {note}")
        write_json(plan.model_dump(mode="json", by_alias=True, exclude_none=True), output)
    if problem is not None:
        write_json(problem_of_reading(reading, question), problem)


def _read(asked: Asked) -> "Reading":
    """What the artifacts decide, with the variables and fields that flags give. Raises PlannerError."""
    from planner.importing.files import read_files
    from planner.importing.given import with_fields

    return with_fields(read_files(asked.files, asked.variables), asked.given)


def render_reading(reading: "Reading") -> str:
    """The fields that are known, one a line, then what is open, found and guessed."""
    lines: list[str] = []
    for key, value in reading.fields.items():
        if key != "roles" and value is not None:
            lines.append(f"{key:<20} {_shown(value)}")
    for role in reading.fields.get("roles", ()):
        lines += ["", f"{role['role']}"]
        lines += [f"  {key:<18} {_shown(value)}" for key, value in role.items() if key != "role" and value is not None]
    for title, texts in (("unresolved", reading.unresolved), ("audit", reading.findings), ("guessed", reading.guesses)):
        lines += ["", title, *(f"  {text}" for text in texts)] if texts else []
    if reading.unresolved:
        lines.append("  give variables with `--env NAME=VALUE`, fields with `--set FIELD=VALUE`")
    return "\n".join(lines)


def _shown(value: Any) -> str:  # noqa: ANN401 - plain data
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_shown(below)}" for key, below in value.items() if below is not None)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
