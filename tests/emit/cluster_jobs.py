"""Jobs of clusters read back as their controllers start them: every pod run by bash, its programs noted."""

import random
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster_read import _documents, expanded
from emit_runs import Call, Stage
from training_plans import LLAMA_8B, LLAMA_70B, WHOLE, TrainCase

FOLDER = "/etc/planner"


@dataclass(frozen=True)
class JobPod:
    """One pod as Kubernetes starts it: its words and environment as the program sees them, and its GPUs."""

    words: tuple[str, ...]
    environment: dict[str, str]
    gpus: int
    nodes: tuple[str, ...]


def _pod(body: dict[str, Any], spec: dict[str, Any], given: Mapping[str, str], gpus: int) -> JobPod:
    environment = dict(given)
    for entry in body.get("env", ()):
        environment[entry["name"]] = expanded(entry["value"], environment) if "value" in entry else "10.0.0.7"
    words = tuple(expanded(each, environment) for each in (*body["command"], *body["args"]))
    affinity = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    nodes = affinity["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] if affinity else ()
    return JobPod(words, environment, gpus, tuple(nodes))


def jobset(files: Mapping[str, str]) -> Iterator[JobPod]:
    """The pods of a JobSet in the order of its jobs; Kubernetes adds the number of a pod behind its own environment."""
    documents = _documents(files["plan.yaml"])
    claims = {
        each["metadata"]["name"]: each["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"]
        for each in documents
        if each["kind"] == "ResourceClaimTemplate"
    }
    (own,) = (each for each in documents if each["kind"] == "JobSet")
    hosts = []
    for job in own["spec"]["replicatedJobs"]:
        spec = job["template"]["spec"]
        assert spec["completions"] == spec["parallelism"]
        assert (job["replicas"], spec["completionMode"], spec["backoffLimit"]) == (1, "Indexed", 0)
        pod = spec["template"]["spec"]
        (body,) = pod["containers"]
        gpus = sum(int(count) for count in body["resources"].get("limits", {}).values())
        gpus += sum(claims[each["resourceClaimTemplateName"]] for each in pod.get("resourceClaims", ()))
        for index in range(spec["completions"]):
            name = own["metadata"]["name"]
            hosts.append(f"{name}-{job['name']}-0-{index}.{name}")
            read = _pod(body, pod, {}, gpus)
            assert read.environment["MASTER_ADDR"] == hosts[0]
            yield JobPod(read.words, {**read.environment, "JOB_COMPLETION_INDEX": str(index)}, read.gpus, read.nodes)


def train_job(files: Mapping[str, str]) -> Iterator[JobPod]:
    """The pods of a TrainJob as the runtime `torch-distributed` starts them."""
    (own,) = (each for each in _documents(files["plan.yaml"]) if each["kind"] == "TrainJob")
    trainer = own["spec"]["trainer"]
    (patch,) = own["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    gpus = int(trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"])
    assert trainer["numProcPerNode"] == gpus
    for index in range(trainer["numNodes"]):
        given = {"PET_NODE_RANK": str(index), "PET_MASTER_ADDR": "head", "PET_MASTER_PORT": "29500"}
        read = _pod(trainer, pod, {}, gpus)
        yield JobPod(read.words, {**given, **read.environment}, read.gpus, read.nodes)


JOBS = {"jobset": jobset, "kubeflow-trainer": train_job}


def started(pod: JobPod, files: Mapping[str, str], stage: Stage, then: str = "true") -> list[Call]:
    """What the programs of a pod are called with, its files in a folder of the stage; `then` ends each program."""
    (folder,) = (each["data"] for each in _documents(files["plan.yaml"]) if each["kind"] == "ConfigMap")
    mounted: Path = stage.work.parent / "mounted"
    mounted.mkdir(exist_ok=True)
    for each in mounted.iterdir():
        each.unlink()
    for name, text in folder.items():
        (mounted / name).write_text(text)
    words = [each.replace(FOLDER, str(mounted)) if turn < 3 else each for turn, each in enumerate(pod.words)]
    notes = (stage.programs / "python3").read_text().replace('exec "${THEN:-true}"', then)
    for name in ("torchrun", "ray"):
        (stage.programs / name).write_text(notes)
        (stage.programs / name).chmod(0o755)
    ran = subprocess.run(
        words, cwd=stage.work, env=stage.environment(**pod.environment), capture_output=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, b""), ran.stderr
    for each in stage.work.iterdir():
        each.unlink()
    return stage.calls()


def random_training(draw: random.Random) -> TrainCase:
    """A dense model on whole nodes of 8 GPUs, by Megatron-LM."""
    model, layers = draw.choice(((LLAMA_8B, 32), (LLAMA_70B, 80)))
    tp, pp = draw.choice((1, 2, 4, 8)), draw.choice((1, 2, 4, 8))
    least = max(1, 8 // (tp * pp))
    dp = least * draw.choice((1, 2, 3, 4))
    ends = ((1, layers, WHOLE),) if pp == 1 else (
        (1, layers // pp, ("embedding",)),
        *(((pp - 2, layers // pp, ()),) if pp > 2 else ()),
        (1, layers // pp, ("loss",)),
    )  # fmt: skip
    nodes = tp * pp * dp // 8
    return TrainCase(
        model,
        nodes,
        {"tp": tp, "pp": pp, "dp": dp},
        ends,
        global_batch=dp * pp * draw.choice((2, 4, 6)),
        sequence_tokens=draw.choice((2048, 4096, 8192)),
        more={"zero_stage": 1 if dp > 1 else 0, "sequence_parallel": tp > 1},
        node_names=tuple(f"node-{index}" for index in range(nodes)) if draw.random() < 0.5 else None,
    )
