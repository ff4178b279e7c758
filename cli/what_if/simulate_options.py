"""Options of `planner simulate`: requests, and policies in place of the plan's own."""

from typing import Annotated

import typer

from planner.cli.options import INPUT

POLICY = "Policies"

Trace = Annotated[
    str | None,
    typer.Option("--trace", metavar="FILE", help="Requests; the plan's own workload if absent.", rich_help_panel=INPUT),
]
ServingPlan = Annotated[str, typer.Argument(metavar="PLAN", help="A serving plan; `-` is stdin.")]
Rate = Annotated[str | None, typer.Option(metavar="RATE", help="Send the trace at 12/s.", rich_help_panel=INPUT)]
RateScale = Annotated[
    float, typer.Option("--rate-scale", metavar="X", help="Send the trace X times as fast.", rich_help_panel=INPUT)
]
Clients = Annotated[
    int, typer.Option(metavar="N", min=0, help="Its lengths from N clients that wait.", rich_help_panel=INPUT)
]
WarmUp = Annotated[
    int, typer.Option("--warm-up", metavar="N", min=0, help="First requests not judged.", rich_help_panel=INPUT)
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Stop at this simulated time.", rich_help_panel=INPUT)]
Routing = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="round-robin, least-loaded, power-of-two, cache-aware, length-aware, freeness; else as planned.",
        rich_help_panel=POLICY,
    ),
]
DecodeRouting = Annotated[
    str | None,
    typer.Option("--decode-routing", metavar="NAME", help="From prefill to decode.", rich_help_panel=POLICY),
]
Queueing = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="fcfs, priority, shortest-predicted, feedback; else as planned.",
        rich_help_panel=POLICY,
    ),
]
EnginePolicy = Annotated[
    str | None,
    typer.Option(
        "--engine-policy", metavar="NAME", help="mixed, prefill-first; the engine's own.", rich_help_panel=POLICY
    ),
]
Preemption = Annotated[str, typer.Option(metavar="NAME", help="recompute or swap.", rich_help_panel=POLICY)]
PrefixCaching = Annotated[
    bool, typer.Option("--prefix-caching", help="Keep prompt blocks that recur.", rich_help_panel=POLICY)
]
Migrate = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Look so often for requests to move to freer engines.", rich_help_panel=POLICY),
]
OperationFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="What is done to the engines: drafts, failures, autoscaling, adapters, elastic engines, and so on.",
        rich_help_panel=POLICY,
    ),
]
CalibrationFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="Of the costs; that of the plan.", rich_help_panel=INPUT)
]
RequestsFile = Annotated[
    str | None, typer.Option("--requests", metavar="FILE", help="Table of requests, .parquet or .csv.")
]
