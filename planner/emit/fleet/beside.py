"""What runs beside production in a day, as files: elastic jobs and their workers, opportunistic jobs and their rates.

`elastic/HH-MM.json` has, from that time on, the GPUs of every elastic job with the logical workers of each in turn;
`opportunistic/HH-MM.json` the GPUs of every opportunistic job with the environment that holds it at its rate under
NVIDIA's Multi-Process Service (`CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`, docs.nvidia.com/deploy/mps). GPUs are counted from
0 on their node, nodes from 0 in their pool. Jobs take the GPUs of a production job in the order of the plan.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.emit.fleet.day import clock
from planner.kinds.fleet.options import FleetOptions
from planner.plan.placement import devices
from planner.plan.schema import Decision, Envelope, Phase
from planner.solvers.schedules.equal_tasks import spread_tasks

ELASTIC = "elastic"
Gpu = tuple[str, int]
"""Pool and device."""


def beside_files(envelope: Envelope, decision: Decision) -> dict[str, str]:
    """A file for every change of elastic and of opportunistic jobs; none where there are none."""
    options: Any = envelope.inputs["options"]
    data: dict[str, Any] = decision.model_dump(mode="json")
    made = {}
    for name, document in (*_elastic(options, decision, data), *_opportunistic(options, decision, data)):
        made[name] = json.dumps(document, indent=1) + "\n"
    return made


def _label(start_s: float) -> str:
    return clock(start_s).replace(":", "-")


def gpus_of(decision: Decision, phase: Phase, job: str) -> list[Gpu]:
    """The GPUs of a job in a phase, by pool and device."""
    roles = {role.name: role for role in decision.roles if role.name in phase.roles}
    own = {
        name for name, role in roles.items() if re.fullmatch(rf"{re.escape(job)}(-{re.escape(role.pool)})?-\d+", name)
    }
    return [(block.pool, device) for block in decision.placement if block.role in own for device in devices(block)]


def _placed(gpu: Gpu, size: Mapping[str, int]) -> dict[str, object]:
    pool, device = gpu
    return {"pool": pool, "node": device // size[pool], "gpu": device % size[pool]}


def _elastic(options: Any, decision: Decision, data: Mapping[str, Any]) -> Iterator[tuple[str, object]]:  # noqa: ANN401 - JSON
    """What elastic jobs have in every phase."""
    size = {role.pool: role.parallelism.devices for role in decision.roles}
    for job_phase, window in zip(decision.phases, data["windows"], strict=True) if options.get(ELASTIC) else ():
        free = gpus_of(decision, job_phase, ELASTIC)
        jobs = []
        for spec in options[ELASTIC]["jobs"]:
            run = window.get("elastic", {}).get(spec["name"])
            taken: list[Gpu] = []
            for pool, count in (run or {"gpus": {}})["gpus"].items():
                taken += [gpu for gpu in free if gpu[0] == pool][:count]
                free = [gpu for gpu in free if gpu not in taken]
            workers = _workers(spec, [pool for pool, _ in taken])
            gpus = [{**_placed(gpu, size), "workers": own} for gpu, own in zip(taken, workers, strict=True)]
            jobs.append({"job": spec["name"], "step_s": None if run is None else run["step_s"], "gpus": gpus})
        yield f"elastic/{_label(job_phase.start_s)}.json", {"from": clock(job_phase.start_s), "jobs": jobs}


def _workers(spec: Mapping[str, Any], pools: Sequence[str]) -> list[list[int]]:
    """The logical workers of every GPU, so that the last is done as early as can be."""
    if not pools:
        return []
    most = [(spec.get("most_workers") or {}).get(pool, spec["workers"]) for pool in pools]
    counts = spread_tasks(spec["workers"], [spec["worker_s"][pool] for pool in pools], most).solution or ()
    starts = [sum(counts[:index]) for index in range(len(counts))]
    return [[*range(start, start + count)] for start, count in zip(starts, counts, strict=True)]


def _opportunistic(options: Any, decision: Decision, data: Mapping[str, Any]) -> Iterator[tuple[str, object]]:  # noqa: ANN401 - JSON
    """What opportunistic jobs have from every window on in which something changes."""
    size = {role.pool: role.parallelism.devices for role in decision.roles}
    window_s = FleetOptions.model_validate(options).window_s
    before: object = None
    for shared in data.get("opportunistic", ()):
        start_s = shared["window"] * window_s
        phase = next(each for each in reversed(decision.phases) if each.start_s <= start_s + 1e-6)
        jobs = []
        taken: dict[str, int] = {}
        for run in shared["runs"]:
            gpus: list[Gpu] = []
            for host, count in run["gpus"].items():
                first = taken.get(host, 0)
                gpus += gpus_of(decision, phase, host)[first : first + count]
                taken[host] = first + count
            percent = round(100 * run["rate"])
            environment = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)}
            placed = [_placed(gpu, size) for gpu in gpus]
            jobs.append({"job": run["job"], "rate": run["rate"], "environment": environment, "gpus": placed})
        if jobs != before:
            yield f"opportunistic/{_label(start_s)}.json", {"from": clock(start_s), "jobs": jobs}
        before = jobs
