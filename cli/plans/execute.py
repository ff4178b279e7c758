"""`planner execute`: runs a whole role of a plan with random weights on its nodes, under torchrun."""

from typing import Annotated

import typer

from planner.cli.options import Json, Output, Perfetto, profile_paths
from planner.cli.output import refuse_unwritable, write_data
from planner.cli.plans.check_execute import judged, make_options
from planner.cli.plans.execute_options import (
    EXECUTE,
    CalibrationFile,
    CutSteps,
    Device,
    ExecuteProfiles,
    Roles,
    TimeLimit,
)
from planner.errors import PlannerError

NODES = "Nodes"

Tolerance = Annotated[
    str | None,
    typer.Option("--tolerance", metavar="SHARE", help="Allowed distance, 15%.", rich_help_panel=EXECUTE),
]


def execute(
    plan: Annotated[str, typer.Argument(metavar="PLAN", help="A plan.")],
    nnodes: Annotated[int, typer.Option(metavar="N", min=1, help="Nodes.", rich_help_panel=NODES)] = 1,
    nproc_per_node: Annotated[
        int, typer.Option(metavar="N", min=1, help="Ranks on each node.", rich_help_panel=NODES)
    ] = 1,
    node_rank: Annotated[int, typer.Option(metavar="N", min=0, help="This node.", rich_help_panel=NODES)] = 0,
    master_addr: Annotated[
        str, typer.Option(metavar="HOST", help="Where node 0 is.", rich_help_panel=NODES)
    ] = "127.0.0.1",
    master_port: Annotated[
        int, typer.Option(metavar="PORT", min=1, max=65535, help="Its port.", rich_help_panel=NODES)
    ] = 29500,
    slurm: Annotated[bool, typer.Option("--slurm", help="Print an sbatch script.", rich_help_panel=NODES)] = False,
    ray: Annotated[bool, typer.Option("--ray", help="Print a script for Ray.", rich_help_panel=NODES)] = False,
    roles: Roles = None,
    device: Device = None,
    cut: CutSteps = None,
    tolerance: Tolerance = None,
    time_limit: TimeLimit = None,
    profiles: ExecuteProfiles = None,
    calibration: CalibrationFile = None,
    perfetto: Perfetto = None,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Run a role of a plan whole, over the nodes that it needs.

    The same command runs on every node, with its own --node-rank; torchrun starts the ranks. Together the nodes must
    have as many ranks as one replica of the role. Each node judges the ranks of its own; node 0 keeps the result in
    `PLAN.checks.json`. Exits 1 outside the tolerance and after a fault.

    Examples:

      planner execute plan.json --nproc-per-node 8 --roles decode

      planner execute plan.json --nnodes 2 --nproc-per-node 8 --node-rank 1 --master-addr node-a

      planner execute plan.json --nnodes 2 --nproc-per-node 8 --slurm -o job.sh
    """
    from planner.execute.ranks.launch import Rendezvous
    from planner.execute.ranks.wrappers import ray_script, slurm_script

    meeting = Rendezvous(nnodes, nproc_per_node, node_rank, master_addr, master_port)
    if node_rank >= nnodes:
        raise PlannerError(f"there is no node {node_rank} of {nnodes}", where="--node-rank", hint="count from 0")
    if slurm or ray:
        given = {"--roles": roles, "--device": device, "--cut": cut, "--tolerance": tolerance}
        given |= {"--time-limit": time_limit, "--calibration": calibration, "--perfetto": perfetto}
        arguments = [part for flag, value in given.items() if value is not None for part in (flag, value)]
        arguments += [part for path in profile_paths(profiles) for part in ("--profiles", path)]
        write = slurm_script if slurm else ray_script
        arguments += ["--json"] if as_json else []
        write_data(write(plan, meeting, arguments, device=device or "cuda"), output)
        return 0
    options = make_options(
        roles=roles, device=device, cut=cut, tolerance=tolerance, time_limit=time_limit, profiles=profiles,
        calibration=calibration, meeting=meeting,
    )  # fmt: skip
    refuse_unwritable(perfetto)
    return judged(plan, options, as_json=as_json, output=output, keep=node_rank == 0, perfetto=perfetto)
