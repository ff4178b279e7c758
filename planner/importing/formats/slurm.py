"""Jobs of Slurm: what `#SBATCH` asks for, and how often `srun` starts what stands after it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.importing.formats.accelerators import accelerator_in

_COUNT = r"[= ]*(?:[A-Za-z][\w-]*:)*(\d+)\b"
_ASKED = {
    "nodes": rf"(?:--nodes|(?<!\S)-N){_COUNT}",
    "tasks": rf"(?:--ntasks|(?<!\S)-n){_COUNT}",
    "tasks_per_node": rf"--ntasks-per-node{_COUNT}",
    "gpus_per_node": rf"(?:--gpus-per-node|--gres(?==gpu|\s+gpu)){_COUNT}",
    "gpus_per_task": rf"--gpus-per-task{_COUNT}",
    "gpus": rf"(?:--gpus|(?<!\S)-G){_COUNT}",
}


_VISIBLE = re.compile(r"(?:--env=|-e)?(?:CUDA|HIP|ROCR|NVIDIA)_VISIBLE_DEVICES=['\"]?(\d+(?:,\d+)*)['\"]?")


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a job is given; None where nothing says."""

    nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    gpus_per_node: int | None = None
    gpu_type: str | None = None

    @property
    def gpus(self) -> int | None:
        """All GPUs."""
        return self.nodes * self.gpus_per_node if self.nodes and self.gpus_per_node else None

    @property
    def variables(self) -> dict[str, str]:
        """What Slurm sets in the job."""
        known = {
            "SLURM_NNODES": self.nodes, "SLURM_JOB_NUM_NODES": self.nodes, "SLURM_GPUS_ON_NODE": self.gpus_per_node,
            "SLURM_GPUS_PER_NODE": self.gpus_per_node, "SLURM_NTASKS_PER_NODE": self.tasks_per_node,
            "SLURM_NTASKS": self.tasks, "SLURM_NPROCS": self.tasks,
        }  # fmt: skip
        return {name: str(value) for name, value in known.items() if value is not None}


def allocation_of(text: str) -> Allocation:
    """What the `#SBATCH` lines of a script ask for."""
    lines = " ".join(line.partition(" #")[0] for line in re.findall(r"(?m)^\s*#SBATCH\s+(.*)$", text))
    asked = _counts(lines)
    types = re.findall(r"--(?:gpus-per-node|gpus-per-task|gpus|gres)[= ]+(?:gpu:)?([A-Za-z][\w-]*):\d", lines)
    named = {accelerator_in(name) for name in types} - {None}
    nodes, a_node, tasks = asked.get("nodes"), asked.get("gpus_per_node"), asked.get("tasks")
    per_node = asked.get("tasks_per_node")
    if tasks is None and nodes and per_node:
        tasks = nodes * per_node
    if tasks and per_node and nodes is None:
        nodes = -(-tasks // per_node)
    if a_node is None and asked.get("gpus_per_task"):
        a_node = asked["gpus_per_task"] * (per_node or -(-(tasks or 1) // (nodes or 1)))
    if a_node is None and asked.get("gpus") and asked["gpus"] % (nodes or 1) == 0:
        a_node = asked["gpus"] // (nodes or 1)
    nodes = nodes or (1 if lines and a_node else None)
    return Allocation(nodes, tasks, per_node, a_node, named.pop() if len(named) == 1 else None)


def _counts(text: str) -> dict[str, int]:
    matches = {name: re.search(pattern, text) for name, pattern in _ASKED.items()}
    return {name: int(match[1]) for name, match in matches.items() if match is not None}


def tasks_under(before: Sequence[str], allocation: Allocation) -> int | None:
    """How many tasks `srun` among the words ahead of a program starts; 1 without it, None where nobody knows."""
    if "srun" not in (word.rpartition("/")[2] for word in before):
        return 1
    place = next(number for number, word in enumerate(before) if word.rpartition("/")[2] == "srun")
    words = " ".join(before[place + 1 :])
    if re.search(r"(?:--nodes|--ntasks|--ntasks-per-node|(?<!\S)-[nN])[= ]*\x00", words):
        return None
    own = _counts(words)
    if "tasks" in own:
        return own["tasks"]
    nodes, per_node = own.get("nodes"), own.get("tasks_per_node", allocation.tasks_per_node)
    if nodes is None and "tasks_per_node" not in own and allocation.tasks is not None:
        return allocation.tasks
    return (nodes or allocation.nodes or 1) * (per_node or 1)


def visible_gpus(before: Sequence[str], environment: Mapping[str, str]) -> int | None:
    """The GPUs that a command sees: `CUDA_VISIBLE_DEVICES`, or `docker run --gpus`; None where it sees all."""
    words = [*before, *(f"{name}={value}" for name, value in environment.items())]
    container = bool({"docker", "podman", "nerdctl"} & set(before))
    for number, word in enumerate(words):
        listed = _VISIBLE.fullmatch(word)
        if listed is not None:
            return listed[1].count(",") + 1
        asked = word[7:] if word.startswith("--gpus=") else words[number + 1] if word == "--gpus" else ""
        asked = asked.strip("'\"")
        if container and asked.isdigit():
            return int(asked)
        if container and re.fullmatch(r"device=\d+(,\d+)*", asked):
            return asked.count(",") + 1
    return None
