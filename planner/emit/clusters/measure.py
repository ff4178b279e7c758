"""Jobs that measure a serving plan where it runs: a load generator that sends the plan's load to its fronts.

A job prints the generator's report and nothing else when it ends well, for `planner check PLAN --report`.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

from planner.emit.clusters.launch import CACHE, Front, Launch, ServingFiles
from planner.emit.clusters.pods import Json, environment, escaped, labels, metadata
from planner.emit.documents import manifest
from planner.emit.loads.drive import Drive, workload_drive
from planner.emit.loads.generators import (
    AIPERF_REPORT,
    GUIDELLM_REPORT,
    VLLM_REPORT,
    GeneratorRun,
    aiperf_arguments,
    guidellm_arguments,
    vllm_bench_arguments,
)
from planner.emit.names import label_of
from planner.emit.options import flag
from planner.emit.serving.scene import API_PORT
from planner.errors import PlannerError
from planner.problem.schema import WorkloadSpec

Url = Callable[[Launch, Front], str]
_DURATION_S = 600.0
_FOLDER = Path("/tmp/measured")
_GENERATORS = {
    "vllm": (vllm_bench_arguments, VLLM_REPORT),
    "guidellm": (guidellm_arguments, GUIDELLM_REPORT),
    "aiperf": (aiperf_arguments, AIPERF_REPORT),
}
_PROGRAM = 'mkdir -p {folder} && { "$@" >{folder}/log 2>&1 || { cat {folder}/log; exit 1; }; } && cat {folder}/{report}'


def service_url(launch: Launch, front: Front) -> str:
    """Where the Service of a front answers."""
    return f"http://{front.name}:{API_PORT if front.command is None else front.port}"


def measured_at(url: Url | None = None) -> ServingFiles:
    """`measure.yaml` of a plan whose fronts answer at `url`; without one, the launch must say where."""

    def files(launch: Launch) -> dict[str, str]:
        header = (
            *launch.header,
            "Once the plan answers: `kubectl apply -f measure.yaml`, then for each job, when it has ended,",
            "`kubectl logs job/NAME > report.json` and `planner check PLAN --report report.json`.",
        )
        return {"measure.yaml": manifest(header, list(_jobs(launch, url)))}

    return files


def _jobs(launch: Launch, url: Url | None) -> Iterator[Json]:
    """A job for each workload and front that takes a share of it."""
    problem = launch.scene.cluster.problem
    for workload in problem.workloads:
        whole = workload_drive(launch.envelope, problem, workload)
        fronts = list(_shares(launch, workload))
        for turn, (front, share) in enumerate(fronts):
            name = f"{launch.name}-measure-{label_of(workload.name, 18)}{f'-{turn}' if len(fronts) > 1 else ''}"
            yield _job(launch, _part(whole, share), _address(launch, front, url), name)
    if not problem.workloads:
        raise PlannerError(
            "the plan has no workload to send", where="inputs.workloads", hint=f"leave `{flag('measure')}` out"
        )


def _shares(launch: Launch, workload: WorkloadSpec) -> Iterator[tuple[Front, float]]:
    """The fronts of a workload's model and the share of its requests that the plan sends to each."""
    for front in launch.fronts:
        names = {group.role.name for group in front.groups}
        routes = [route for route in launch.decision.routing if route.source is None and route.to in names]
        share = sum(route.share for route in routes if route.workload == workload.name)
        if share > 0.0:
            yield front, min(share, 1.0)


def _part(whole: Drive, share: float) -> Drive:
    rate = None if whole.rate_per_s is None else whole.rate_per_s * share
    clients = None if whole.concurrency is None else max(1, round(whole.concurrency * share))
    return dataclasses.replace(whole, rate_per_s=rate, concurrency=clients)


def _address(launch: Launch, front: Front, url: Url | None) -> str:
    if launch.options.measure_url is not None:
        return launch.options.measure_url
    if url is None:
        raise PlannerError(
            "the target's gateway answers where its owner says",
            where=flag("measure"),
            hint=f"give `{flag('measure_url')} http://HOST`",
        )
    return url(launch, front)


def _job(launch: Launch, drive: Drive, url: str, name: str) -> Json:
    """A job that runs once; what its shell runs is written here, names reach it as its arguments."""
    program, arguments, report = _generator(launch)
    run = GeneratorRun(drive, url, drive.model, _DURATION_S, _FOLDER)
    shell = _PROGRAM.replace("{folder}", str(_FOLDER)).replace("{report}", report)
    cache = launch.options.model_cache
    mounts = [] if cache is None else [{"name": "models", "mountPath": CACHE}]
    container: Json = {
        "name": program,
        "image": _image(launch),
        "command": ["sh", "-c", escaped(shell)],
        "args": [escaped(each) for each in ("measure", program, *arguments(run))],
        "env": environment(launch.options),
        **({"volumeMounts": mounts} if mounts else {}),
    }
    claim = {"name": "models", "persistentVolumeClaim": {"claimName": cache}}
    own: Json = {"volumes": [claim]} if mounts else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(launch, name, "measure"),
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": labels(launch, "measure")},
                "spec": {"restartPolicy": "Never", "containers": [container], **own},
            },
        },
    }


def _generator(launch: Launch) -> tuple[str, Callable[[GeneratorRun], list[str]], str]:
    name = launch.options.measure or ""
    if name not in _GENERATORS:
        known = ", ".join(f"`{each}`" for each in _GENERATORS)
        raise PlannerError(f"unknown load generator `{name}`", where=flag("measure"), hint=f"known are {known}")
    return (name, *_GENERATORS[name])


def _image(launch: Launch) -> str:
    """The generator's; vLLM's own benchmark lies in the image of the engine."""
    options = launch.options
    if options.measure_image is not None:
        return options.measure_image
    if options.measure == "vllm" and launch.engine.key == "vllm":
        return launch.image
    raise PlannerError(
        f"no image that holds `{options.measure}` is known",
        where=flag("measure_image"),
        hint=f"give `{flag('measure_image')} NAME:TAG`",
    )
