"""`planner import`: what a launch script, a manifest or a recipe decides, and what it leaves open."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import INPUT, OUTPUT, Json, Output
from planner.cli.output import refuse_overwriting, refuse_unwritable, write_json, write_result
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.importing.records import Reading

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...", help="Scripts, manifests, recipes, configurations; folders of them; `-` is stdin."
    ),
]
Environment = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="A variable that the artifact leaves to its environment; repeatable.",
        rich_help_panel=INPUT,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="A field that the artifact leaves open: model, gpu_type, gpus, ROLE.FIELD; repeatable.",
        rich_help_panel=INPUT,
    ),
]


def import_(
    files: Files,
    env: Environment = None,
    settings: Settings = None,
    summary: Annotated[
        str | None,
        typer.Option("--summary", metavar="FILE", help="Write what was read here, as JSON.", rich_help_panel=OUTPUT),
    ] = None,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Read what people run: engine, model, GPUs, the settings of every role, and contradictions among them.

    Nothing of an artifact is run or fetched. What it leaves to its environment is listed as unresolved, and is given
    with --env or --set; settings that it leaves to the engine stay open.

    Examples:

      planner import deploy.yaml --summary read.json

      planner import serve.sh --env MODEL=openai/gpt-oss-120b --env TP=4

      cat serve.sh | planner import - --json
    """
    refuse_unwritable(summary)
    refuse_unwritable(output)
    refuse_overwriting({"--summary": summary, "--output": output}, {f"FILE {name}": name for name in files})
    reading = read(files, env, settings)
    document = {"schema": "planner.import/1"} | reading.summary()
    if summary is not None:
        write_json(reading.summary(), summary)
    if summary != "-":
        write_result(document, lambda: render_reading(reading), output, as_json=as_json)
    return 0


def read(files: list[str], env: list[str] | None, settings: list[str] | None) -> "Reading":
    """What the artifacts decide, with the variables and fields that flags give. Raises PlannerError."""
    from planner.importing.files import read_files
    from planner.importing.given import with_fields

    return with_fields(read_files(files, _pairs(env, "--env")), _pairs(settings, "--set"))


def _pairs(texts: list[str] | None, flag: str) -> dict[str, str]:
    pairs = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise PlannerError(
                f"must be NAME=VALUE, found `{text}`", where=flag, hint=f"write for example `{flag} TP=4`"
            )
        pairs[name] = value
    return pairs


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
    return str(value)
