"""Options of `planner sweep`: what is solved, where, and the gate on it."""

from typing import Annotated

import typer

from planner.cli.options import INPUT, OUTPUT, SOLVER

GATE = "Gate"

SweepPath = Annotated[str, typer.Argument(metavar="SWEEP", help="YAML or JSON; `-` is stdin.")]
ResultsFile = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="Results as .parquet, .csv or .json.", rich_help_panel=OUTPUT),
]
SweepGap = Annotated[
    str | None, typer.Option(envvar="PLANNER_GAP", metavar="PERCENT", help="As of solve.", rich_help_panel=SOLVER)
]
AlongLine = Annotated[
    str | None,
    typer.Option(
        metavar="AXIS=LOW..HIGH",
        help="Of a problem: exact breakpoints along rate, a limit or gpus.",
        rich_help_panel=INPUT,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        envvar="PLANNER_WORKERS", min=0, max=1024, help="Processes; the cores by default.", rich_help_panel=SOLVER
    ),
]
EngineName = Annotated[str, typer.Option(metavar="local|ray", help="Where points are solved.", rich_help_panel=SOLVER)]
RayAddress = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="A running cluster, in place of a local one.", rich_help_panel=SOLVER),
]
CacheFolder = Annotated[
    str | None, typer.Option(metavar="DIR", help="Where solved points are kept.", rich_help_panel=SOLVER)
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Keep nothing, start afresh.", rich_help_panel=SOLVER)]
PointTimeLimit = Annotated[
    str | None,
    typer.Option(envvar="PLANNER_TIME_LIMIT", metavar="TIME", help="Of each point.", rich_help_panel=SOLVER),
]
BaselineFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="Results to compare with.", rich_help_panel=GATE)
]
Rules = Annotated[
    list[str] | None,
    typer.Option(metavar="RULE", help="Such as 'cost_per_mtok > +3%'; repeatable.", rich_help_panel=GATE),
]
JunitFile = Annotated[str | None, typer.Option(metavar="FILE", help="JUnit XML.", rich_help_panel=GATE)]
SummaryFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="Markdown for a pull request.", rich_help_panel=GATE)
]
CommentFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Ten lines for a pull request, where something changed.", rich_help_panel=GATE),
]
Annotate = Annotated[bool, typer.Option("--annotate", help="GitHub annotations on stderr.", rich_help_panel=GATE)]
