"""Serving engines that a script starts: the GPUs that each command sees, and how often Slurm runs it."""

from collections.abc import Sequence
from dataclasses import replace

from planner.importing.engines import Given, role_of
from planner.importing.formats.slurm import Allocation, tasks_under, visible_gpus
from planner.importing.launches import Launch, Started
from planner.importing.options import Options
from planner.importing.records import Reading
from planner.importing.serving import nodes_of, reading_of_ways
from planner.importing.values import Values


def serving_script(ways: Sequence[Started], allocation: Allocation) -> Reading:
    """The deployment that a script starts, in the job that it runs in."""
    alone = all(len(way.launches) == 1 for way in ways)

    def around(launch: Launch, options: Options) -> Given:
        visible = {name: value for name, value in launch.variables.items() if "VISIBLE_DEVICES" in name and alone}
        gpus = visible_gpus(launch.before, {**visible, **launch.environment})
        nodes = nodes_of(options, Values())
        ranks = role_of(launch.engine, options, Given(), Values())["gpus_per_replica"]
        if nodes == 1 and ranks and allocation.gpus_per_node and ranks > allocation.gpus_per_node:
            nodes = -(-ranks // allocation.gpus_per_node)
        return Given(None if gpus is None else gpus * nodes, nodes, _replicas(launch, nodes, allocation))

    reading = reading_of_ways(ways, around, gpu_type=allocation.gpu_type)
    needed, job = reading.fields["gpus"], allocation.gpus
    if needed and job and needed > job:
        text = f"the roles need {needed} GPUs, the job is given {job}"
        reading = replace(reading, findings=(*reading.findings, text))
    return reading


def _replicas(launch: Launch, nodes: int, allocation: Allocation) -> int | None:
    """Tasks of a job over those of one replica: TensorRT-LLM has one a GPU, vLLM and SGLang one a node."""
    tasks = tasks_under(launch.before, allocation)
    if tasks is None:
        return None
    return tasks // nodes if launch.engine != "trtllm" and tasks % nodes == 0 else 1
