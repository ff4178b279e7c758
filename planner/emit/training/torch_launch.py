"""The script that each node of a training job runs: `torchrun` with the same program and flags everywhere."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from planner.emit.shell import Word, continued, preamble, reference, required, word
from planner.emit.training.job import LaunchJob

RENDEZVOUS_PORT = 29500  # the default of torchrun
Flag = tuple[str, tuple[str, ...]]  # its name, and its values; none for a switch


def launch_script(
    job: LaunchJob,
    program: Sequence[Word],
    flags: Sequence[Flag],
    notes: Sequence[str] = (),
    needs: Mapping[str, str] = MappingProxyType({}),
    settings: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Text of the script; what it is called with is handed on to the program, after the flags of the plan.

    `needs` are environment variables that must be set, and what to set them to; `settings` are set here.
    """
    head = job.cluster.nodes(set(job.nodes))[job.nodes[0]]
    header = (
        *job.header,
        "Run this on every node of the plan with NODE_RANK=0, 1, ...; rank 0 is on " + head.title + ".",
        *notes,
    )
    lines = [*preamble(header), *required(needs)]
    if len(job.nodes) > 1:
        lines += required({"NODE_RANK": "the number of this node"})
        lines += [f'[ -n "${{MASTER_ADDR:-}}" ] || MASTER_ADDR={head.default}']
        lines += [f'MASTER_PORT="${{MASTER_PORT:-{RENDEZVOUS_PORT}}}"']
    lines += [f"export {name}={word(value)}" for name, value in settings.items()]
    lines.append("")
    rows = ["exec torchrun", *(f"  {row}" for row in _torchrun(job)), f"  {' '.join(map(str, program))}"]
    rows += [f"    {' '.join((name, *(str(word(value)) for value in values)))}" for name, values in flags]
    return "\n".join([*lines, *continued([*rows, '    "$@"'])]) + "\n"


def _torchrun(job: LaunchJob) -> list[str]:
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
