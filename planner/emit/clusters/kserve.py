"""Emits serving plans as LLMInferenceServices of KServe (serving.kserve.io/v1alpha2), one for each model and mode.

KServe starts vLLM by templates of its own, which add what VLLM_ADDITIONAL_ARGS holds to the command and let a shell
read it once, so that every word of it is quoted. It also renders `{{` of Go templates in the whole object, and writes
the model's name into that command: names with other characters than those of model hubs are refused.
"""

import re
from dataclasses import replace

from planner.emit.clusters.engines import ACROSS_NODES, LISTENS
from planner.emit.clusters.launch import FOLDER, HEAD, Front, Group, Launch, Pod, serving_target
from planner.emit.clusters.measure import measured_at
from planner.emit.clusters.pods import (
    Json,
    beside,
    environment,
    escaped,
    metadata,
    mounts,
    pod_spec,
    resources,
    settings,
)
from planner.emit.documents import manifest
from planner.emit.options import ON_KUBERNETES
from planner.emit.serving.vllm_tiers import CONFIG_PATH
from planner.emit.shell import Word
from planner.errors import PlannerError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")


def _service(launch: Launch, front: Front) -> Json:
    group, prefill = _alone(front, (*front.colocated, *front.decode)), None
    if front.prefill:
        prefill = _alone(front, front.prefill)
    if not _NAME.fullmatch(front.model):
        raise group.refuse(
            f"KServe writes the model's name into templates and commands, and `{front.model}` is more than a name",
            "name a model of letters, digits, `.`, `_`, `-` and `/`",
        )
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": metadata(launch, launch.name if len(launch.fronts) == 1 else front.name),
        "spec": {
            "model": {"uri": f"hf://{front.model}", "name": front.model},
            **_workload(launch, group),
            **({"prefill": _workload(launch, prefill)} if prefill is not None else {}),
            "router": {"route": {}, "gateway": {}, "scheduler": {}},
        },
    }


def _alone(front: Front, groups: tuple[Group, ...]) -> Group:
    if len(groups) > 1:
        raise groups[1].refuse(
            f"an LLMInferenceService has one kind of instance a side, and `{front.model}` has {len(groups)}",
            "plan one role a side, or emit for `lws`",
        )
    return groups[0]


def _workload(launch: Launch, group: Group) -> Json:
    """Instances of one role: how many, in which parts, and their pods."""
    shape = group.role.parallelism
    if group.across_nodes and shape.dp == 1:
        raise group.refuse(
            "KServe starts the nodes of an instance as data-parallel ranks, and it has dp 1 over several",
            "plan with data-parallel ranks, or emit for `lws`",
        )
    group.require_equal_pods("KServe")
    head = group.pods[0]
    sizes: Json = {"tensor": shape.tp}
    sizes |= {"pipeline": shape.pp} if shape.pp > 1 else {}
    if shape.dp > 1:
        sizes |= {"data": shape.dp, "dataLocal": head.gpus // (shape.tp * shape.pp)}
    if shape.ep > 1:
        sizes["expert"] = True
    worker: Json = {"worker": _pod(launch, group, group.pods[1])} if group.across_nodes else {}
    return {"replicas": group.replicas, "parallelism": sizes, "template": _pod(launch, group, head), **worker}


def _pod(launch: Launch, group: Group, pod: Pod) -> Json:
    told = pod.without(*LISTENS, *ACROSS_NODES)
    told = replace(told, settings=tuple((name, _found(name, each)) for name, each in pod.settings))
    arguments = " ".join(map(str, _required_plain(group, told.arguments)))
    own_mounts = mounts(launch, group)
    container: Json = {
        "name": "main",
        **({"image": launch.options.image} if launch.options.image is not None else {}),
        "env": [
            *environment(launch.options),
            *settings(told, {HEAD: ""}),
            {"name": "VLLM_ADDITIONAL_ARGS", "value": escaped(arguments)},
        ],
        "resources": resources(launch, group, pod),
        **({"volumeMounts": own_mounts} if own_mounts else {}),
    }
    return pod_spec(launch, group, pod, [container], shared_memory=False)


def _found(name: str, value: Word) -> Word:
    """The value of a variable, with the folder of the file that it names: KServe starts engines in one of its own."""
    return Word((f"{FOLDER}/", *value.parts)) if name == CONFIG_PATH else value


def _required_plain(group: Group, words: tuple[Word, ...]) -> tuple[Word, ...]:
    """The words; raises PlannerError for any that Go's templates would read."""
    bad = next((each for each in words if "{{" in str(each)), None)
    if bad is not None:
        raise group.refuse(f"KServe renders the template in the argument {bad}", "use names without `{{`")
    return words


def _files(launch: Launch) -> dict[str, str]:
    for group in launch.groups:
        if group.role.name in launch.scene.experts:
            raise PlannerError(
                "KServe's own templates start engines in a folder of theirs, so that layouts of experts are not found",
                where="--experts",
                hint="emit for `lws`",
            )
    services = [_service(launch, front) for front in launch.fronts]
    others = [each for group in launch.groups for each in beside(launch, group)]
    header = (*launch.header, "Start it with `kubectl apply -f plan.yaml`.")
    return {"plan.yaml": manifest(header, [*others, *services])}


TARGETS = (
    serving_target(
        "kserve",
        "an LLMInferenceService of KServe for each model and mode",
        _files,
        engines=("vllm",),
        takes=tuple(name for name in ON_KUBERNETES if name != "router_image"),
        measured=measured_at(),
    ),
)
