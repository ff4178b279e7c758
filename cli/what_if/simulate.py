"""`planner simulate`: a discrete-event simulation of a serving plan on a request stream."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import INPUT, Json, Output, Perfetto, Profiles, profile_paths, seconds
from planner.cli.output import refuse_unwritable, say, write_result, write_spans
from planner.cli.progress import announce_compilation
from planner.documents.units import PER_S, parse_quantity
from planner.errors import require_known
from planner.progress import MAX_SEED

if TYPE_CHECKING:
    from planner.simulate.plans.setting import Policies
    from planner.simulate.plans.simulation import PlanSimulation

POLICY = "Policies"

Trace = Annotated[
    str | None,
    typer.Option("--trace", metavar="FILE", help="Requests; the plan's own workload if absent.", rich_help_panel=INPUT),
]


def simulate(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A serving plan; `-` is stdin.")],
    trace: Trace = None,
    first: Annotated[
        int | None, typer.Option("--first", metavar="N", min=1, help="Only so many requests.", rich_help_panel=INPUT)
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="RATE", help="Send the trace at 12/s.", rich_help_panel=INPUT)
    ] = None,
    rate_scale: Annotated[
        float, typer.Option("--rate-scale", metavar="X", help="Send the trace X times as fast.", rich_help_panel=INPUT)
    ] = 1.0,
    clients: Annotated[
        int, typer.Option(metavar="N", min=0, help="Its lengths from N clients that wait.", rich_help_panel=INPUT)
    ] = 0,
    drop_empty: Annotated[
        bool, typer.Option("--drop-empty", help="Leave rows without tokens out.", rich_help_panel=INPUT)
    ] = False,
    warm_up: Annotated[
        int, typer.Option("--warm-up", metavar="N", min=0, help="First requests not judged.", rich_help_panel=INPUT)
    ] = 0,
    limit: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop at this simulated time.", rich_help_panel=INPUT)
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, max=MAX_SEED, help="Of the draws.", rich_help_panel=INPUT)
    ] = 0,
    routing: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="round-robin, least-loaded, power-of-two, cache-aware, length-aware, freeness; else as planned.",
            rich_help_panel=POLICY,
        ),
    ] = None,
    decode_routing: Annotated[
        str | None,
        typer.Option("--decode-routing", metavar="NAME", help="From prefill to decode.", rich_help_panel=POLICY),
    ] = None,
    queueing: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="fcfs, priority, shortest-predicted, feedback; else as planned.",
            rich_help_panel=POLICY,
        ),
    ] = None,
    engine_policy: Annotated[
        str | None,
        typer.Option(
            "--engine-policy", metavar="NAME", help="mixed, prefill-first; the engine's own.", rich_help_panel=POLICY
        ),
    ] = None,
    preemption: Annotated[
        str, typer.Option(metavar="NAME", help="recompute or swap.", rich_help_panel=POLICY)
    ] = "recompute",
    prefix_caching: Annotated[
        bool, typer.Option("--prefix-caching", help="Keep prompt blocks that recur.", rich_help_panel=POLICY)
    ] = False,
    migrate: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Look so often for requests to move to freer engines.", rich_help_panel=POLICY
        ),
    ] = None,
    operation: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="What is done to the engines: drafts, failures, autoscaling, adapters, elastic engines, and so on.",
            rich_help_panel=POLICY,
        ),
    ] = None,
    profiles: Profiles = None,
    calibration: Annotated[
        str | None, typer.Option(metavar="FILE", help="Of the costs; that of the plan.", rich_help_panel=INPUT)
    ] = None,
    requests: Annotated[
        str | None, typer.Option("--requests", metavar="FILE", help="Table of requests, .parquet or .csv.")
    ] = None,
    perfetto: Perfetto = None,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Simulate a serving plan on requests: TTFT, TPOT and latency of each, and where time went.

    Every step of every engine is simulated, with the step times that the plan was costed with. Exits 1 when
    requests are left unanswered, or all are rejected.

    Examples:

      planner simulate plan.json --trace azure_llm_2023_conv.csv.gz --rate 12/s

      planner simulate plan.json --trace conv.csv --prefix-caching --routing cache-aware --requests out.parquet
    """
    from planner.load.problems import load_plan
    from planner.simulate.fleet.operation_spec import load_operation
    from planner.simulate.plans.setting import Policies
    from planner.simulate.plans.simulation import Traffic, simulate_plan

    for path in (requests, perfetto, output):
        refuse_unwritable(path)
    rate_per_s = None if rate is None else parse_quantity(rate, PER_S)
    load = Traffic(trace, first, rate_per_s, rate_scale, clients, drop_empty, warm_up)
    period_s = seconds(migrate, "--migrate") or float("inf")
    policies = Policies(routing, decode_routing, queueing, engine_policy, preemption, prefix_caching, period_s)
    _refuse_unknown(policies)
    if operation is not None:
        policies = replace(policies, operation=load_operation(operation))
    envelope, decision = load_plan(plan)
    announce_compilation(elastic=policies.operation is not None and policies.operation.elastic is not None)
    simulation = simulate_plan(
        envelope,
        decision,
        load,
        policies,
        seed=seed,
        limit_s=seconds(limit, "--limit") or float("inf"),
        profiles=profile_paths(profiles),
        calibration=calibration,
    )
    _write(simulation, requests, perfetto, as_json, output)
    return 0 if simulation.result.drained and simulation.result.complete.any() else 1


def _refuse_unknown(policies: "Policies") -> None:
    """Raises PlannerError at the flag of a policy that there is none of."""
    from planner.simulate.fleet.instances import POLICIES, PREEMPTIONS, QUEUEINGS, ROUTINGS

    for flag, name, known in (
        ("--routing", policies.routing, ROUTINGS),
        ("--decode-routing", policies.decode_routing, ROUTINGS),
        ("--queueing", policies.queueing, QUEUEINGS),
        ("--engine-policy", policies.engine_policy, POLICIES),
        ("--preemption", policies.preemption, PREEMPTIONS),
    ):
        if name is not None:
            require_known("policy", name, known, where=flag)


def _write(
    simulation: "PlanSimulation", requests: str | None, perfetto: str | None, as_json: bool, output: str | None
) -> None:
    from planner.cli.render.simulation import render_simulation
    from planner.simulate.run.outputs import request_spans, write_requests

    if requests is not None:
        write_requests(simulation.result, requests)
        say(f"wrote {requests}")
    write_spans(perfetto, lambda: request_spans(simulation.result, simulation.planned.role_of_instance))
    write_result(
        {"schema": "planner.simulation/1", **simulation.summary, "notes": list(simulation.planned.notes)},
        lambda: render_simulation(simulation.summary, simulation.planned.notes),
        output,
        as_json=as_json,
    )
