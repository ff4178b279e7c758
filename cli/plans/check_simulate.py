"""`planner check --level simulate`: a plan on independent streams, on rows of a trace, or on streams of its kind."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.output import write_spans
from planner.cli.plans.at_hand import inputs_at_hand, refuse_other_calibration
from planner.cli.plans.check_levels import refuse_serving_alone, require_level
from planner.cli.progress import announce_compilation
from planner.plan.findings import undecided_fails

if TYPE_CHECKING:
    from planner.plan.findings import Finding
    from planner.simulate.plans.simulation import PlanSimulation


SIMULATE = "Level simulate"
TraceFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Requests; the plan's own workload if absent.", rich_help_panel=SIMULATE),
]
Decisive = Annotated[
    bool,
    typer.Option("--decisive", help="Fail limits that are too close to call.", rich_help_panel=SIMULATE),
]


def check_by_simulation(
    plan: str,
    *,
    inputs: list[str] | None,
    profiles: list[str] | None,
    calibration: str | None,
    trace: str | None,
    decisive: bool,
    perfetto: str | None,
) -> "tuple[list[Finding], dict[str, Any]]":
    """What the simulation found, and its document; with `decisive` what is too close to call fails."""
    from planner.kinds.registry import find_kind
    from planner.load.problems import load_plan
    from planner.problem.recorded import recorded_problem
    from planner.simulate.plans.failures import MOST_REQUESTS, failure_findings
    from planner.simulate.plans.setting import Policies
    from planner.simulate.plans.simulation import Traffic, beside_stated, findings, judge_plan, simulate_plan
    from planner.simulate.plans.trace_streams import rows_of_plan
    from planner.simulate.run.outputs import request_spans

    envelope, decision = load_plan(plan)
    require_level("simulate", envelope, decision)
    announce_compilation()
    hand = inputs_at_hand(plan, inputs, profiles, calibration)
    own = find_kind(envelope.kind).simulated(envelope, decision, hand)
    if own is not None:
        refuse_serving_alone(envelope.kind, trace=trace, perfetto=perfetto)
        refuse_other_calibration(calibration, envelope, decision)
        told, document = own
    else:
        given: dict[str, Any] = {"policies": Policies(), "profiles": tuple(profiles or ()), "calibration": calibration}
        simulated: Callable[..., PlanSimulation]
        if trace is None:
            rows = rows_of_plan(recorded_problem(envelope.inputs), decision, hand)
            simulated = partial(judge_plan, rows=rows, **given)
            briefly: Callable[..., PlanSimulation] = partial(simulated, most_requests=MOST_REQUESTS)
        else:
            simulated = briefly = partial(simulate_plan, load=Traffic(trace), **given)
        simulation = simulated(envelope, decision)
        write_spans(perfetto, lambda: request_spans(simulation.result, simulation.planned.role_of_instance))
        told = list(findings(simulation, envelope.predictions))
        told += failure_findings(decision, lambda left: briefly(envelope, left))
        beside = list(beside_stated(simulation, envelope.predictions))
        document = {"schema": "planner.simulation/1", **simulation.summary, "beside_stated": beside}
    return [undecided_fails(finding) for finding in told] if decisive else told, document
