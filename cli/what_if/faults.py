"""`planner faults`: effective training time (goodput) of a plan on failing machines, and replanning after a loss."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import INPUT, DrawSeed, Json, Output, fraction, seconds
from planner.cli.output import write_result
from planner.cli.render.columns import table
from planner.cli.what_if.faults_report import effective_table, replanned_rows, simulate_tiers, simulated_table
from planner.documents.units import BYTES_PER_S, parse_quantity
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.reliability.effective import Job
    from planner.reliability.of_plan import Surroundings

HELP = "Machines that fail: checkpoints, spares, effective time and traces of training; lost nodes of any plan."
PLACE = "Surroundings"

Plan = Annotated[str, typer.Argument(metavar="PLAN", help="A training plan; `-` is stdin.")]
Write = Annotated[
    str, typer.Option("--remote-write", metavar="RATE", help="Of the checkpoint store.", rich_help_panel=PLACE)
]
Read = Annotated[
    str | None, typer.Option("--remote-read", metavar="RATE", help="That of writes if absent.", rich_help_panel=PLACE)
]
Gap = Annotated[
    str | None,
    typer.Option("--mtbf", metavar="TIME", help="Between faults of the job; published rates.", rich_help_panel=PLACE),
]
Rack = Annotated[
    int, typer.Option("--nodes-per-rack", min=1, help="That one switch fault takes.", rich_help_panel=PLACE)
]
Step = Annotated[
    str | None, typer.Option("--step-time", metavar="TIME", help="The plan's own if absent.", rich_help_panel=PLACE)
]
Slow = Annotated[
    str, typer.Option("--slow-nodes", metavar="SHARE", help="That lag at a time, such as 0.1%.", rich_help_panel=PLACE)
]
Speed = Annotated[
    float, typer.Option("--slow-speed", min=0.01, max=1.0, help="Of a job with one.", rich_help_panel=PLACE)
]
Spares = Annotated[int | None, typer.Option("--spares", min=0, help="Spare nodes; the best number if absent.")]
Tier = Annotated[str | None, typer.Option("--tier", metavar="NAME", help="synchronous, asynchronous or on_failure.")]


def effective(
    plan: Plan,
    remote_write: Write = "50GB/s",
    remote_read: Read = None,
    mtbf: Gap = None,
    nodes_per_rack: Rack = 1,
    step_time: Step = None,
    slow_nodes: Slow = "0%",
    slow_speed: Speed = 0.9,
    spares: Spares = None,
    tokens: Annotated[float | None, typer.Option("--tokens", help="To train on; adds days.")] = None,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Say where the time of a training run goes under each checkpoint tier, at its best interval and spares.

    Examples:

      planner faults effective plan.json --remote-write 100GB/s --tokens 15e12

      planner faults effective plan.json --mtbf 3h --spares 16 --json
    """

    from planner.reliability.effective import at_scale
    from planner.reliability.tiers import TIERS

    around = _surroundings(remote_write, remote_read, mtbf, nodes_per_rack, step_time, slow_nodes, slow_speed)
    job = _job(plan, around)
    outcomes = [at_scale(job, tier, spares=spares) for tier in TIERS]
    days = [{"days": outcome.days_to(tokens)} if tokens else {} for outcome in outcomes]
    tiers = [{**asdict(outcome), **more} for outcome, more in zip(outcomes, days, strict=True)]
    write_result(
        {"schema": "planner.faults_effective/1", "tiers": tiers},
        lambda: effective_table(outcomes, tokens),
        output,
        as_json=as_json,
    )
    return 0


def trace(
    plan: Plan,
    days: Annotated[float, typer.Option("--days", min=0.01, help="Of wall-clock time.")] = 30.0,
    shape: Annotated[float, typer.Option("--shape", min=0.1, help="Of Weibull gaps; 1: no memory.")] = 1.0,
    mtbf: Gap = None,
    nodes_per_rack: Rack = 1,
    seed: DrawSeed = 0,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Draw a trace of faults of a plan's machines as CSV: when, what each takes, how long it is away.

    Examples:

      planner faults trace plan.json --days 54 --seed 1 -o faults.csv

      planner faults trace plan.json --mtbf 2h --shape 0.7 --json
    """

    from planner.reliability.traces import generate, to_csv

    around = _surroundings("50GB/s", None, mtbf, nodes_per_rack, "1s", "0%", 0.9)
    job = _job(plan, around)
    drawn = generate(job.faults, job.fleet, job.state, days * 86400.0, seed=seed, shape=shape)
    write_result(
        {"schema": "planner.faults_trace/1", "faults": [asdict(fault) for fault in drawn]},
        lambda: to_csv(drawn),
        output,
        as_json=as_json,
    )
    return 0


def simulate(
    plan: Plan,
    faults: Annotated[str, typer.Option("--faults", metavar="FILE", help="A trace.", rich_help_panel=INPUT)],
    remote_write: Write = "50GB/s",
    remote_read: Read = None,
    step_time: Step = None,
    tier: Tier = None,
    spares: Spares = None,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Simulate a run on a trace of faults, each tier at its best interval, and say how far the closed formula is off.

    Examples:

      planner faults simulate plan.json --faults faults.csv --tier asynchronous

      planner faults simulate plan.json --faults faults.csv --remote-write 200GB/s --json
    """
    from planner.reliability.tiers import TIERS, require_tier
    from planner.reliability.traces import load

    job = _job(plan, _surroundings(remote_write, remote_read, None, 1, step_time, "0%", 0.9))
    drawn = load(faults)
    if not drawn:
        raise PlannerError("the trace holds no faults", where=faults, hint="draw one with `planner faults trace`")
    rows = simulate_tiers(job, drawn, TIERS if tier is None else (require_tier(tier),), spares)
    write_result(
        {"schema": "planner.faults_simulated/1", "tiers": rows}, lambda: simulated_table(rows), output, as_json=as_json
    )
    return 0


def lose(
    plan: Plan,
    nodes: Annotated[str, typer.Option("--nodes", metavar="LIST", help="Lost ones, such as 3,8-11.")],
    spares: Annotated[int, typer.Option("--spares", min=0, help="Nodes that can take their place.")] = 0,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Re-plan on what a loss leaves: fewest shards moved, the global batch kept.

    Examples:

      planner faults lose plan.json --nodes 3

      planner faults lose plan.json --nodes 16-31 --spares 2 --json
    """
    from planner.load.problems import load_plan
    from planner.reliability.of_plan import running_of
    from planner.reliability.replan import replan

    envelope, decision = load_plan(plan)
    running = running_of(envelope, decision)
    rows = replanned_rows(replan(running, _numbers(nodes), spares))
    write_result(
        {"schema": "planner.faults_lose/1", **rows},
        lambda: table(("field", "value"), [(name, f"{value:.4g}") for name, value in rows.items()]),
        output,
        as_json=as_json,
    )
    return 0


def nodes(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan of any kind; `-` is stdin.")],
    lost: Annotated[str, typer.Option("--lost", metavar="LIST", help="Nodes, such as 3,8-11 or h100:3,a100:0-1.")],
    racks: Annotated[
        str | None, typer.Option("--racks", metavar="LIST", help="Nodes of each in order, such as 16,16,12.")
    ] = None,
    simulated: Annotated[
        bool, typer.Option("--simulate", help="Simulate a serving plan or placement without what is hit.")
    ] = False,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Say what lost nodes take of any plan: ranks, what runs on, and the spare nodes that step in with fewest moves.

    Where a node of a training plan has no spare, the plan on what is left comes too.

    Examples:

      planner faults nodes plan.json --lost 3 --simulate

      planner faults nodes plan.json --lost h100:3,h100:8-11 --racks 16,16,12 --json
    """
    from planner.cli.what_if.faults_nodes import (
        left_text,
        lost_nodes,
        node_loss_text,
        on_racks,
        replanned_without,
        simulated_without,
    )  # fmt: skip
    from planner.load.problems import load_plan
    from planner.reliability.lost_nodes import lose_nodes, pools_of, yields_until_then

    envelope, decision = load_plan(plan)
    pools = on_racks(pools_of(envelope), racks)
    loss = lose_nodes(decision, pools, lost_nodes(lost, list(pools)))
    rates = yields_until_then(envelope, loss)
    document = {"schema": "planner.faults_nodes/1", **asdict(loss), "yields": [asdict(rate) for rate in rates]}
    left = simulated_without(envelope, decision, loss) if simulated else replanned_without(envelope, decision, loss)
    write_result({**document, **left}, lambda: node_loss_text(loss, rates) + left_text(left), output, as_json=as_json)
    return int(bool(loss.stranded))


def elastic(
    plans: Annotated[list[str], typer.Argument(metavar="PLAN...", help="Training plans, one for each job.")],
    gpus: Annotated[str, typer.Option("--gpus", metavar="LIST", help="Idle ones, such as h100_sxm=8,a100_sxm=16.")],
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Share idle GPUs out to elastic jobs: their data-parallel ranks as logical workers, the global batch kept.

    Examples:

      planner faults elastic plan.json --gpus h100_sxm=8,a100_sxm=16

      planner faults elastic first.json second.json --gpus a100_sxm=12 --json
    """
    from planner.cli.what_if.faults_elastic import elastic_table, shared_out
    from planner.load.problems import load_plan

    shared = shared_out([load_plan(plan) for plan in plans], _counted(gpus))
    write_result(
        {"schema": "planner.faults_elastic/1", **shared}, lambda: elastic_table(shared), output, as_json=as_json
    )
    return 0


def _counted(text: str) -> dict[str, int]:
    """`h100_sxm=8,a100_sxm=16` as numbers by name."""
    count_of: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = (word.strip() for word in part.partition("="))
        if not name or not number.isdigit():
            raise PlannerError(
                f"GPUs are named with their number, found `{part.strip()}`",
                where="--gpus",
                hint="write `--gpus h100_sxm=8,a100_sxm=16`",
            )
        count_of[name] = count_of.get(name, 0) + int(number)
    return count_of


def _surroundings(
    write: str, read: str | None, mtbf: str | None, rack: int, step: str | None, slow: str, speed: float
) -> "Surroundings":
    from planner.reliability.of_plan import Surroundings

    return Surroundings(
        remote_write_bytes_per_s=parse_quantity(write, BYTES_PER_S, where="--remote-write"),
        remote_read_bytes_per_s=None if read is None else parse_quantity(read, BYTES_PER_S, where="--remote-read"),
        nodes_per_rack=rack,
        mean_gap_s=seconds(mtbf, "--mtbf"),
        step_s=seconds(step, "--step-time"),
        slow_share=fraction(slow, "--slow-nodes"),
        slow_speed=speed,
    )


def _job(plan: str, around: "Surroundings") -> "Job":
    from planner.load.problems import load_plan
    from planner.reliability.of_plan import job_of_plan

    envelope, decision = load_plan(plan)
    return job_of_plan(envelope, decision, around)


def _numbers(text: str) -> list[int]:
    """`3,8-11` as 3, 8, 9, 10, 11."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise PlannerError(
                f"nodes are numbers and ranges, found `{part.strip()}`", where="--nodes", hint="write `--nodes 3,8-11`"
            )
        numbers += range(int(first), int(last or first) + 1)
    return numbers


COMMANDS = {
    "effective": effective,
    "trace": trace,
    "simulate": simulate,
    "lose": lose,
    "nodes": nodes,
    "elastic": elastic,
}
