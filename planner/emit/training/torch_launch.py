"""The script that every node of a training job runs: `torchrun` with the same program and flags everywhere."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from planner.emit.nodes import Node
from planner.emit.shell import Word, comment, reference, word
from planner.emit.training.job import TrainJob

RENDEZVOUS_PORT = 29500  # the default of torchrun
Flag = tuple[str, tuple[str, ...]]  # its name, and its values; none for a switch


def launch_script(
    job: TrainJob,
    program: Sequence[Word],
    flags: Sequence[Flag],
    notes: Sequence[str] = (),
    needs: Mapping[str, str] = MappingProxyType({}),
    settings: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Text of the script; what it is called with is handed on to the program, after the flags of the plan.

    `needs` are environment variables that must be set, and what to set them to; `settings` are set here.
    """
    head = nodes(job)[0]
    header = (
        *job.header,
        "Run this on every node of the plan with NODE_RANK=0, 1, ...; rank 0 is on " + head.title + ".",
        *notes,
    )
    lines = ["#!/usr/bin/env bash", *(comment(line) for line in header), "set -euo pipefail"]
    lines += [f': "${{{name}:?set {name} to {what}}}"' for name, what in needs.items()]
    if len(job.nodes) > 1:
        lines += [': "${NODE_RANK:?set NODE_RANK to the number of this node}"', _address(head)]
        lines.append(f'MASTER_PORT="${{MASTER_PORT:-{RENDEZVOUS_PORT}}}"')
    lines += [f"export {name}={word(value)}" for name, value in settings.items()]
    lines.append("")
    rows = ["exec torchrun", *(f"  {row}" for row in _torchrun(job)), f"  {' '.join(program)}"]
    rows += [f"    {' '.join((name, *(word(value) for value in values)))}" for name, values in flags]
    rows.append('    "$@"')
    return "\n".join([*lines, *(f"{row} \\" for row in rows[:-1]), rows[-1]]) + "\n"


def nodes(job: TrainJob) -> list[Node]:
    """The nodes of the job in rank order."""
    numbered = job.cluster.nodes(set(job.nodes))
    return [numbered[place] for place in job.nodes]


def _torchrun(job: TrainJob) -> list[str]:
    processes = f"--nproc-per-node {job.gpus_per_node}"
    if len(job.nodes) == 1:
        return ["--standalone", processes]
    return [
        f"--nnodes {len(job.nodes)}",
        processes,
        f"--node-rank {reference('NODE_RANK')}",
        f"--master-addr {reference('MASTER_ADDR')}",
        f"--master-port {reference('MASTER_PORT')}",
    ]


def _address(head: Node) -> str:
    """The address of the first node, from the environment or as the plan names it."""
    return f'[ -n "${{MASTER_ADDR:-}}" ] || MASTER_ADDR={head.default}'
