"""Scripts that start `planner execute` on every node of a job, for Slurm and for Ray."""

import json
import shlex
from collections.abc import Sequence

from planner.execute.ranks.launch import Rendezvous

_SLURM = """#!/bin/bash
#SBATCH --job-name=planner-execute
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH {devices}
#SBATCH --exclusive
set -euo pipefail
# sed reads all names: head would end scontrol by a broken pipe, and with it this script.
master=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
export master
srun --kill-on-bad-exit=1 --cpu-bind=none bash -c {command}
"""

_RAY = '''"""Runs `planner execute` on {nodes} nodes: `ray job submit --working-dir . -- python THIS_FILE`."""

import subprocess
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

COMMAND = {command}
NODES, CPUS, GPUS = {nodes}, {cpus}, {gpus}  # CPUs and GPUs of each node


def run(node, master):
    """The exit code of this node's part."""
    return subprocess.call([*COMMAND, "--node-rank", str(node), "--master-addr", master])


def address():
    """Of the node that this runs on."""
    return ray.util.get_node_ip_address()


ray.init()
group = placement_group([{{"CPU": CPUS, "GPU": GPUS}}] * NODES, strategy="STRICT_SPREAD")
ray.get(group.ready())


def on(node, function, cpus, gpus):
    place = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=node)
    return ray.remote(function).options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=place)


master = ray.get(on(0, address, 1, 0).remote())
codes = ray.get([on(node, run, CPUS, GPUS).remote(node, master) for node in range(NODES)])
sys.exit(max(codes))
'''


def slurm_script(plan: str, meeting: Rendezvous, arguments: Sequence[str], *, device: str = "cuda") -> str:
    """A script for sbatch: one task a node, all of whose devices it asks for; they meet at the first."""
    devices = "gpus-per-node" if device == "cuda" else "cpus-per-task"
    command = shlex.join([*_command(plan, meeting), *arguments])
    command += ' --node-rank "$SLURM_NODEID" --master-addr "$master"'
    asked = f"--{devices}={meeting.ranks_per_node}"
    return _SLURM.format(nodes=meeting.num_nodes, devices=asked, command=shlex.quote(command))


def ray_script(plan: str, meeting: Rendezvous, arguments: Sequence[str], *, device: str = "cuda") -> str:
    """A program that places one task on each of as many nodes of a Ray cluster, and waits for all of them."""
    ranks, on_gpus = meeting.ranks_per_node, device == "cuda"
    return _RAY.format(
        nodes=meeting.num_nodes,
        cpus=1 if on_gpus else ranks,
        gpus=ranks if on_gpus else 0,
        command=json.dumps([*_command(plan, meeting), *arguments]),
    )


def _command(plan: str, meeting: Rendezvous) -> list[str]:
    places = ["--nnodes", str(meeting.num_nodes), "--nproc-per-node", str(meeting.ranks_per_node)]
    return ["planner", "execute", plan, *places, "--master-port", str(meeting.master_port)]
