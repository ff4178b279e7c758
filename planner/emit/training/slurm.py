"""Training under Slurm: a batch file that starts the Megatron-LM script of the plan on every node, in rank order."""

from planner.emit.registry import Target
from planner.emit.shell import comment
from planner.emit.training.job import TrainJob, read_job, refuse
from planner.emit.training.megatron_lm import script
from planner.plan.schema import Decision, Envelope

_BARE = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_")


def batch(job: TrainJob) -> str:
    """Text of the batch file."""
    name = "".join(letter if letter in _BARE else "-" for letter in job.envelope.name).strip("-") or "plan"
    lines = ["#!/bin/bash", *(comment(line) for line in job.header)]
    options = [
        f"--job-name={name}",
        f"--nodes={len(job.nodes)}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={job.gpus_per_node}",
        "--exclusive",
    ]
    hosts = _hosts(job)
    options += [f"--nodelist={','.join(hosts)}"] if hosts else []
    lines += [f"#SBATCH {option}" for option in options]
    lines += [
        "set -euo pipefail",
        "",
        comment("Submit this from the folder that holds launch.sh; its arguments are handed on to the program."),
        ': "${MEGATRON_LM:?set MEGATRON_LM to the folder that holds pretrain_gpt.py}"',
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


def _hosts(job: TrainJob) -> list[str]:
    """The names of the nodes in rank order; none where the pool does not name them."""
    names = []
    for place in job.nodes:
        spec = job.cluster.problem.cluster.pools[place.pool]
        if spec.node_names is None:
            return []
        names.append(spec.node_names[place.node])
    for name in names:
        if not set(name) <= _BARE or name.startswith("-"):
            raise refuse(f"Slurm knows no node `{name}`", "placement", "use letters, digits, `.`, `_` and `-`")
    return names


def _emit(envelope: Envelope, decision: Decision) -> dict[str, str]:
    job = read_job(envelope, decision)
    return {"launch.sh": script(job), "train.sbatch": batch(job)}


TARGETS = (Target("slurm", "a Slurm batch file that trains with Megatron-LM", ("train",), _emit),)
