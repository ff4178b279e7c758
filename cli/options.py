"""Command-line options that several verbs share, and their texts parsed to numbers."""

import os
from collections.abc import Mapping
from typing import Annotated

import typer

from planner.documents.units import FRACTION, TIME_S, parse_quantity
from planner.errors import PlannerError, did_you_mean
from planner.progress import MAX_SEED

INPUT, SOLVER, OUTPUT = "Input", "Solver", "Output"

WRITTEN = frozenset(
    f"--{name}"
    for name in (
        "comment", "junit", "moves", "output", "perfetto", "plot", "problem", "requests", "runs", "summary",
    )
)  # fmt: skip
"""Flags that name a file to write."""
READ = frozenset(("--calibration", "--faults", "--measured", "--operation", "--plan", "--report", "--tiers", "--trace"))
"""Flags that name a file to read, but for those of a former answer, which a new one may replace, such as `--from`."""
NO_FILES = frozenset(("KIND", "NAME", "[FIELD]", "ACCELERATOR", "URL...", "problem|plan|sweep", "bash|zsh|fish"))
"""What the help calls arguments that are no files."""

PlanFile = Annotated[str, typer.Argument(metavar="PLAN", help="A plan; `-` is stdin.")]
RlPlanFile = Annotated[str, typer.Argument(metavar="PLAN", help="A plan of kind `rl`; `-` is stdin.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document with a `schema` field.", rich_help_panel=OUTPUT)
]
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write here; `-` is stdout.", rich_help_panel=OUTPUT),
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", help="All of the proof: claim, space, notes, assumptions.", rich_help_panel=OUTPUT),
]
Perfetto = Annotated[
    str | None,
    typer.Option("--perfetto", metavar="FILE", help="Trace for ui.perfetto.dev, as JSON.", rich_help_panel=OUTPUT),
]
TimeLimit = Annotated[
    str | None,
    typer.Option(envvar="PLANNER_TIME_LIMIT", metavar="TIME", help="Such as 30s.", rich_help_panel=SOLVER),
]
Gap = Annotated[
    str | None,
    typer.Option(envvar="PLANNER_GAP", metavar="PERCENT", help="Stop this near the bound.", rich_help_panel=SOLVER),
]
Seed = Annotated[
    int | None,
    typer.Option(envvar="PLANNER_SEED", min=0, max=MAX_SEED, help="In place of the file's.", rich_help_panel=SOLVER),
]
Threads = Annotated[
    int | None,
    typer.Option(envvar="PLANNER_THREADS", min=1, max=1024, help="Of the solver.", rich_help_panel=SOLVER),
]
Backend = Annotated[
    str | None,
    typer.Option(envvar="PLANNER_BACKEND", metavar="NAME", help="Solver to use.", rich_help_panel=SOLVER),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Override one field; repeatable.", rich_help_panel=INPUT),
]
First = Annotated[
    int | None, typer.Option("--first", metavar="N", min=1, help="Only so many requests.", rich_help_panel=INPUT)
]
DropEmpty = Annotated[bool, typer.Option("--drop-empty", help="Leave rows without tokens out.", rich_help_panel=INPUT)]
DrawSeed = Annotated[
    int, typer.Option("--seed", metavar="N", min=0, max=MAX_SEED, help="Of the draws.", rich_help_panel=INPUT)
]
Match = Annotated[
    str | None,
    typer.Option("--match", metavar="TEXT", help="Only names that hold this text.", rich_help_panel=INPUT),
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace a file of the same name in your catalog.", rich_help_panel=OUTPUT)
]
Profiles = Annotated[
    list[str] | None,
    typer.Option(
        "--profiles",
        metavar="PATH",
        help="Kernel tables to cost with; repeatable; `none`: data sheets alone. Also PLANNER_PROFILES.",
        rich_help_panel=INPUT,
    ),
]


def profile_paths(flags: list[str] | None) -> tuple[str, ...]:
    """Paths from `--profiles`, else from the environment; neither means those of the problem file."""
    if flags:
        return tuple(flags)
    return tuple(path for path in os.environ.get("PLANNER_PROFILES", "").split(os.pathsep) if path)


VARIABLES = frozenset(
    f"PLANNER_{name}"
    for name in (
        "BACKEND", "CACHE_DIR", "CATALOG", "DEBUG", "GAP", "LEVEL", "NO_PROGRESS", "PARSED_YAML", "PROFILES", "SEED",
        "THREADS", "TIME_LIMIT", "WORKERS",
    )
)  # fmt: skip
"""Environment variables that some verb reads."""


def refuse_unknown_variables() -> None:
    """Raises PlannerError for an environment variable of planner's that no verb reads, and names the nearest."""
    for name in sorted(os.environ):
        if name.startswith("PLANNER_") and name not in VARIABLES:
            hint = did_you_mean(name, sorted(VARIABLES), otherwise="unset it")
            raise PlannerError("no verb reads this environment variable", where=name, hint=hint)


def refuse_variables(verb: str, instead: Mapping[str, str]) -> None:
    """Raises PlannerError for an environment variable that is set and that `verb` does not read; what to give there."""
    for name, flag in instead.items():
        if os.environ.get(name):
            raise PlannerError(f"`planner {verb}` does not read it", where=name, hint=f"unset it, and give `{flag}`")


def seconds(text: str | None, flag: str) -> float | None:
    """`30s` as 30.0; a time limit is positive."""

    if text is None:
        return None
    hint = f"write for example `{flag} 30s`"
    try:
        value = parse_quantity(text, TIME_S)
    except PlannerError as error:
        raise PlannerError(error.what, where=flag, hint=hint) from None
    if value <= 0:
        raise PlannerError(f"must be positive, found `{text}`", where=flag, hint=hint)
    return value


def fraction(text: str | None, flag: str) -> float:
    """`1%` or `0.01` as 0.01; at least 0 and below 1; none where there is no text."""
    if text is None:
        return 0.0
    value = parse_quantity(text if text.strip().endswith("%") else _number(text, flag), FRACTION, where=flag)
    if not 0 <= value < 1:
        raise PlannerError(f"must be at least 0 and below 100%, found `{text}`", where=flag, hint=f"write `{flag} 1%`")
    return value


def _number(text: str, flag: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise PlannerError(
            f'must be a fraction such as "1%", found `{text}`', where=flag, hint=f"write `{flag} 1%`"
        ) from None
