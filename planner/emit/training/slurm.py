"""Emits a Slurm batch file that starts a plan's Megatron-LM script on every node, in rank order."""

from planner.emit.refusals import refuse
from planner.emit.shell import comment, required
from planner.emit.training.job import LaunchJob, training_target
from planner.emit.training.megatron_lm import NEEDS, script

_BARE = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_")


def batch(job: LaunchJob) -> str:
    """Text of the batch file."""
    name = "".join(letter if letter in _BARE else "-" for letter in job.envelope.name).strip("-") or "plan"
    hosts = _hosts(job)
    options = [
        f"--job-name={name}",
        f"--nodes={len(job.nodes)}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={job.gpus_per_node}",
        "--exclusive",
        *([f"--nodelist={','.join(hosts)}"] if hosts else []),
    ]
    lines = [
        "#!/bin/bash",
        *map(comment, job.header),
        *(f"#SBATCH {option}" for option in options),
        "set -euo pipefail",
        "",
        comment("Submit this from the folder that holds launch.sh; its arguments are handed on to the program."),
        *required(NEEDS),
        "export MEGATRON_LM",
        *_start(hosts),
    ]
    return "\n".join(lines) + "\n"


def _start(hosts: list[str]) -> list[str]:
    """The commands that start the script on every node: in the order of the plan where nodes have names."""
    run = 'bash -c \'NODE_RANK=$SLURM_PROCID exec bash launch.sh "$@"\' launch "$@"'
    if not hosts:
        first = '"${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}"'
        return [f"export MASTER_ADDR={first}", f"srun --kill-on-bad-exit=1 {run}"]
    return [
        f'export MASTER_ADDR="${{MASTER_ADDR:-{hosts[0]}}}" SLURM_HOSTFILE="$(mktemp)"',
        f'printf "%s\\n" {" ".join(hosts)} >"$SLURM_HOSTFILE"',
        f"srun --kill-on-bad-exit=1 --distribution=arbitrary {run}",
    ]


def _hosts(job: LaunchJob) -> list[str]:
    """The names of the nodes in rank order; none where the pool does not name them."""
    pools = job.cluster.problem.cluster.pools
    known = [(pools[place.pool].node_names, place.node) for place in job.nodes]
    names = [names[node] for names, node in known if names is not None]
    for name in names:
        if not set(name) <= _BARE or name.startswith("-"):
            raise refuse(f"Slurm knows no node `{name}`", "placement", "use letters, digits, `.`, `_` and `-`")
    return names if len(names) == len(known) else []


def _files(job: LaunchJob) -> dict[str, str]:
    return {"launch.sh": script(job), "train.sbatch": batch(job)}


TARGETS = (training_target("slurm", "a Slurm batch file that trains with Megatron-LM", _files, "megatron-lm"),)
