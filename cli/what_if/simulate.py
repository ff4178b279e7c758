"""`planner simulate`: a discrete-event simulation of a serving plan on a request stream."""

from dataclasses import replace
from typing import TYPE_CHECKING

from planner.cli.options import (
    DrawSeed,
    DropEmpty,
    First,
    Json,
    Output,
    Perfetto,
    Profiles,
    profile_paths,
    seconds,
)
from planner.cli.output import refuse_unwritable, say, write_result, write_spans
from planner.cli.progress import announce_compilation
from planner.cli.what_if.simulate_options import (
    CalibrationFile,
    Clients,
    DecodeRouting,
    EnginePolicy,
    Migrate,
    OperationFile,
    Preemption,
    PrefixCaching,
    Queueing,
    Rate,
    RateScale,
    RequestsFile,
    Routing,
    ServingPlan,
    Trace,
    Until,
    WarmUp,
)
from planner.documents.units import PER_S, parse_quantity
from planner.errors import require_known

if TYPE_CHECKING:
    from planner.simulate.plans.setting import Policies
    from planner.simulate.plans.simulation import PlanSimulation


def simulate(
    plan: ServingPlan,
    trace: Trace = None,
    first: First = None,
    rate: Rate = None,
    rate_scale: RateScale = 1.0,
    clients: Clients = 0,
    drop_empty: DropEmpty = False,
    warm_up: WarmUp = 0,
    limit: Until = None,
    seed: DrawSeed = 0,
    routing: Routing = None,
    decode_routing: DecodeRouting = None,
    queueing: Queueing = None,
    engine_policy: EnginePolicy = None,
    preemption: Preemption = "recompute",
    prefix_caching: PrefixCaching = False,
    migrate: Migrate = None,
    operation: OperationFile = None,
    profiles: Profiles = None,
    calibration: CalibrationFile = None,
    requests: RequestsFile = None,
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
    from planner.simulate.plans.setting import Policies
    from planner.simulate.plans.simulation import Traffic, simulate_plan

    for path in (requests, perfetto, output):
        refuse_unwritable(path)
    rate_per_s = None if rate is None else parse_quantity(rate, PER_S)
    load = Traffic(trace, first, rate_per_s, rate_scale, clients, drop_empty, warm_up)
    period_s = seconds(migrate, "--migrate") or float("inf")
    policies = Policies(routing, decode_routing, queueing, engine_policy, preemption, prefix_caching, period_s)
    policies = _operated(policies, operation)
    envelope, decision = load_plan(plan)
    announce_compilation(elastic=policies.operation is not None and policies.operation.elastic is not None)
    simulation = simulate_plan(
        envelope, decision, load, policies, seed=seed,
        limit_s=seconds(limit, "--limit") or float("inf"), profiles=profile_paths(profiles), calibration=calibration,
    )  # fmt: skip
    _write(simulation, requests, perfetto, as_json, output)
    return 0 if simulation.result.drained and simulation.result.complete.any() else 1


def _operated(policies: "Policies", operation: str | None) -> "Policies":
    """The policies with what a file says is done to the engines; raises PlannerError at the flag of an unknown one."""
    from planner.simulate.fleet.instances import POLICIES, PREEMPTIONS, QUEUEINGS, ROUTINGS
    from planner.simulate.fleet.operation_spec import load_operation

    for flag, name, known in (
        ("--routing", policies.routing, ROUTINGS),
        ("--decode-routing", policies.decode_routing, ROUTINGS),
        ("--queueing", policies.queueing, QUEUEINGS),
        ("--engine-policy", policies.engine_policy, POLICIES),
        ("--preemption", policies.preemption, PREEMPTIONS),
    ):
        if name is not None:
            require_known("policy", name, known, where=flag)
    return policies if operation is None else replace(policies, operation=load_operation(operation))


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
