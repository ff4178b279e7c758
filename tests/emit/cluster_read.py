"""Artifacts of cluster targets read back as their own loaders do: instances, pods, words after expansion, GPUs."""

import json
import math
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class ReadPod:
    """What one pod runs: its words and its environment as the program sees them, and its GPUs."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    gpus: int
    files: Mapping[str, str] = field(default_factory=dict)  # what lies in the folder that it runs in


@dataclass(frozen=True)
class ReadRole:
    """The equal instances of a role."""

    replicas: int
    pods: tuple[ReadPod, ...]


def expanded(text: str, known: Mapping[str, str]) -> str:
    """What Kubernetes makes of a word: `$(NAME)` replaced where it is known, `$$` as `$`, all else as it stands."""

    def value(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return known.get(match[1], match[0]) if match[1] is not None else match[0]

    return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)


def read_pod(
    spec: dict[str, Any],
    given: Mapping[str, str],
    claims: Mapping[str, int],
    documents: Sequence[dict[str, Any]] = (),
) -> ReadPod:
    """The first container of a pod, in which `given` is set beside its own environment."""
    body = spec["containers"][0]
    environment = dict(given)
    for entry in body.get("env", ()):
        environment[entry["name"]] = expanded(entry["value"], environment) if "value" in entry else f"<{entry['name']}>"
    words = [expanded(each, environment) for each in (*body["command"], *body.get("args", ()))]
    limits = body["resources"].get("limits", {})
    counts = [int(number) for name, number in limits.items() if name.endswith("/gpu")]
    counts += [claims[each["resourceClaimTemplateName"]] for each in spec.get("resourceClaims", ())]
    return ReadPod(tuple(_through_bash(words, environment)), environment, sum(counts), _mounted(spec, documents))


def _mounted(spec: dict[str, Any], documents: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The files of the ConfigMap that the container has at the folder that it runs in."""
    body = spec["containers"][0]
    places = [each["name"] for each in body.get("volumeMounts", ()) if each["mountPath"] == body.get("workingDir")]
    named = [each["configMap"]["name"] for each in spec.get("volumes", ()) if each["name"] in places]
    texts: dict[str, str] = {}
    for each in documents:
        if each["kind"] == "ConfigMap" and each["metadata"]["name"] in named:
            texts |= each["data"]
    return texts


def _through_bash(words: list[str], environment: Mapping[str, str]) -> list[str]:
    """The words that a program behind `bash -c` gets, by bash itself; others as they are."""
    if words[:2] != ["bash", "-c"]:
        return words
    assert words[2].startswith("exec ")
    told = words[2].replace("exec ", "printf '%s\\0' ", 1)
    ran = subprocess.run(["bash", "-c", told, *words[3:]], capture_output=True, env={**environment}, check=True)
    return ran.stdout.decode().split("\0")[:-1]


def _documents(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.load_all(text, Loader=_LOADER) if each is not None]


def _claims(documents: Sequence[dict[str, Any]]) -> dict[str, int]:
    return {
        each["metadata"]["name"]: each["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"]
        for each in documents
        if each["kind"] == "ResourceClaimTemplate"
    }


def kubernetes(files: Mapping[str, str]) -> dict[str, ReadRole]:
    documents = _documents(files["plan.yaml"])
    sets = [each for each in documents if each["kind"] == "StatefulSet"]
    roles: dict[str, dict[str, ReadPod]] = {}
    replicas: dict[str, int] = {}
    for each in sets:
        name, spec = each["spec"]["serviceName"], each["spec"]
        pod = read_pod(spec["template"]["spec"], {}, _claims(documents), documents)
        turn = spec["selector"]["matchLabels"]["planner/pod"]
        assert roles.setdefault(name, {}).setdefault(turn, pod).gpus == pod.gpus
        replicas[name] = replicas.get(name, 0) + (spec["replicas"] if turn == "0" else 0)
    return {
        name: ReadRole(replicas[name], tuple(pods[turn] for turn in sorted(pods, key=int)))
        for name, pods in roles.items()
    }


def leader_workers(name: str, spec: dict[str, Any], documents: Sequence[dict[str, Any]]) -> ReadRole:
    template = spec["leaderWorkerTemplate"]

    def pod(turn: int) -> ReadPod:
        own = template["workerTemplate"] if turn else template.get("leaderTemplate", template["workerTemplate"])
        given = {"LWS_LEADER_ADDRESS": f"{name}-0.{name}", "LWS_WORKER_INDEX": str(turn)}
        return read_pod(own["spec"], given, _claims(documents), documents)

    return ReadRole(spec["replicas"], tuple(pod(turn) for turn in range(template["size"])))


def lws(files: Mapping[str, str]) -> dict[str, ReadRole]:
    documents = _documents(files["plan.yaml"])
    sets = {each["metadata"]["name"]: each["spec"] for each in documents if each["kind"] == "LeaderWorkerSet"}
    return {name: leader_workers(name, spec, documents) for name, spec in sets.items()}


def docker_compose(files: Mapping[str, str]) -> dict[str, ReadRole]:
    services: dict[str, dict[str, Any]] = {}
    for name, text in files.items():
        if name.startswith("compose-node-"):
            services |= yaml.load(text, Loader=_LOADER)["services"]
    pods: dict[str, dict[int, dict[int, ReadPod]]] = {}
    for service, body in services.items():
        role, replica, turn = re.fullmatch(r"(.+?)-(\d+)(?:-node-(\d+))?", service).groups()  # type: ignore[union-attr] # of ours
        words = tuple(_interpolated(each) for each in (*body["entrypoint"], *body["command"]))
        own = {name: _interpolated(value) for name, value in body["environment"].items() if value is not None}
        (device,) = body["deploy"]["resources"]["reservations"]["devices"]
        beside = {each.split(":")[0].removeprefix("./"): each.split(":")[1] for each in body.get("volumes", ())}
        texts = {name: files[name] for name in beside if name in files}
        assert all(beside[name] == f"{body['working_dir']}/{name}" for name in texts)
        pod = ReadPod(words, own, len(device["device_ids"]), texts)
        pods.setdefault(f"plan-{role}", {}).setdefault(int(replica), {})[int(turn or 0)] = pod
    return {
        role: ReadRole(len(replicas), tuple(pod for _, pod in sorted(replicas[0].items())))
        for role, replicas in pods.items()
    }


def _interpolated(text: str) -> str:
    """What Compose makes of a value where no variable is set."""
    return re.sub(r"\$\$|\$\{(\w+)[^}]*\}", lambda match: "$" if match[0] == "$$" else f"<{match[1]}>", text)


def dynamo(files: Mapping[str, str]) -> dict[str, ReadRole]:
    documents = _documents(files["plan.yaml"])
    graphs = [each for each in documents if each["kind"] == "DynamoGraphDeployment"]
    roles = {}
    for component in (each for graph in graphs for each in graph["spec"]["components"]):
        if component["type"] != "frontend":
            pod = read_pod(component["podTemplate"]["spec"], {}, _claims(documents), documents)
            nodes = component.get("multinode", {}).get("nodeCount", 1)
            roles[component["name"]] = ReadRole(component["replicas"], (pod,) * nodes)
    return roles


def disaggregated_set(files: Mapping[str, str]) -> dict[str, ReadRole]:
    documents = _documents(files["plan.yaml"])
    (own,) = (each["spec"] for each in documents if each["kind"] == "DisaggregatedSet")
    assert own["slices"] == 1
    return {role["name"]: leader_workers(role["name"], role["spec"], documents) for role in own["roles"]}


def kserve(files: Mapping[str, str]) -> dict[str, ReadRole]:
    documents = _documents(files["plan.yaml"])
    (spec,) = (each["spec"] for each in documents if each["kind"] == "LLMInferenceService")
    model = spec["model"]["uri"].removeprefix("hf://")
    sides = {"plan-decode": spec, "plan-prefill": spec["prefill"]} if "prefill" in spec else {"plan-colocated": spec}
    return {name: _kserve_role(model, side, _claims(documents)) for name, side in sides.items()}


def _kserve_role(model: str, side: dict[str, Any], claims: Mapping[str, int]) -> ReadRole:
    """Instances as KServe's templates start them: sizes from `parallelism`, all else from the additional arguments."""
    sizes = side["parallelism"]
    nodes = sizes.get("data", 1) // sizes.get("dataLocal", sizes.get("data", 1))

    def pod(spec: dict[str, Any]) -> ReadPod:
        (body,) = spec["containers"]
        whole = {**spec, "containers": [{**body, "command": ["vllm", "serve", model]}]}
        plain = read_pod(whole, {}, claims)
        told = plain.environment["VLLM_ADDITIONAL_ARGS"]
        ran = subprocess.run(["bash", "-c", f"printf '%s\\0' {told}"], capture_output=True, check=True)
        argv = (*plain.argv, *ran.stdout.decode().split("\0")[:-1])
        for flag, size in (("tensor", "tensor"), ("data", "data"), ("pipeline", "pipeline")):
            name = f"--{flag}-parallel-size"
            assert name not in argv or argv[argv.index(name) + 1] == str(sizes[size])
        assert sizes.get("expert", False) == ("--enable-expert-parallel" in argv)
        return ReadPod(argv, plain.environment, plain.gpus)

    workers = (pod(side["worker"]),) * (nodes - 1) if nodes > 1 else ()
    assert ("worker" in side) == (nodes > 1)
    return ReadRole(side["replicas"], (pod(side["template"]), *workers))


def ray_serve(files: Mapping[str, str]) -> dict[str, ReadRole]:
    documents = _documents(files["plan.yaml"])
    (service,) = (each["spec"] for each in documents if each["kind"] == "RayService")
    config = yaml.load(service["serveConfigV2"], Loader=_LOADER)
    assert config == yaml.load(files["serve.yaml"], Loader=_LOADER)
    (application,) = config["applications"]
    args = application["args"]
    sides = args.get("llm_configs") or [args["prefill_config"], args["decode_config"]]
    groups = {group["groupName"]: group for group in service["rayClusterConfig"]["workerGroupSpecs"]}
    return dict(_ray_role(side, groups, _claims(documents)) for side in sides)


def _ray_role(side: dict[str, Any], groups: dict[str, Any], claims: Mapping[str, int]) -> tuple[str, ReadRole]:
    bundles = side["placement_group_config"]["bundles"]
    (name,) = set(bundles[0]) - {"GPU", "CPU"}
    group, replicas = groups[name], side["deployment_config"]["autoscaling_config"]["min_replicas"]
    assert json.loads(json.loads(group["rayStartParams"]["resources"])) == {name: 1}
    argv = ["vllm", "serve", side["model_loading_config"]["model_source"]]
    for key, value in side["engine_kwargs"].items():
        flag = f"--{'no_' if value is False else ''}{key}".replace("_", "-")
        text = json.dumps(value, sort_keys=True) if isinstance(value, dict) else str(value)
        argv += [flag] if isinstance(value, bool) else [flag, text]
    spec = group["template"]["spec"]
    of_node = read_pod({**spec, "containers": [{**spec["containers"][0], "command": []}]}, {}, claims)
    pod = ReadPod(tuple(argv), of_node.environment, of_node.gpus)
    assert group["rayStartParams"]["num-gpus"] == str(pod.gpus)
    nodes = group["replicas"] // replicas
    assert len(bundles) == nodes * pod.gpus
    return name, ReadRole(replicas, (pod,) * nodes)


_PODS: dict[str, Any] = {
    "containers": [{"name": "modelserver", "image": "REPLACE_MODEL_SERVER_IMAGE", "env": [{"name": "A", "value": "b"}]}]
}


def llm_d_objects(files: Mapping[str, str]) -> list[dict[str, Any]]:
    """The Deployments and sets that Kustomize makes of a base like llm-d's, whose names and containers alone count."""
    kustomization = yaml.load(files["kustomization.yaml"], Loader=_LOADER)
    patches = [yaml.load(files[each["path"]], Loader=_LOADER) for each in kustomization["patches"]]
    assert all("$patch" not in text for text in files.values())
    made = []
    others = _documents(files["plan.yaml"]) if "plan.yaml" in files else []
    for patch in patches:
        if patch["kind"] == "LeaderWorkerSet":
            made += [replaced(_SET, patch), *(each for each in others if each["kind"] == "LeaderWorkerSet")]
            continue
        own = {"app": patch["metadata"]["name"]}
        base = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": patch["metadata"]["name"]},
            "spec": {"selector": {"matchLabels": own}, "template": {"metadata": {"labels": own}, "spec": _PODS}},
        }
        made.append(merged(base, patch))
    return made


_SET: dict[str, Any] = {
    "apiVersion": "leaderworkerset.x-k8s.io/v1",
    "kind": "LeaderWorkerSet",
    "metadata": {"name": "decode"},
    "spec": {
        "leaderWorkerTemplate": {
            "size": 2,
            **{
                f"{part}Template": {
                    "spec": {
                        "serviceAccountName": "sa",
                        "containers": [{"name": f"modelserver-{part}", "image": "REPLACE_MODEL_SERVER_IMAGE"}],
                    }
                }
                for part in ("leader", "worker")
            },
        }
    },
}


def replaced(base: Any, patch: Any) -> Any:  # noqa: ANN401 - documents
    """A merge into objects of which Kustomize knows no schema: maps by key, lists replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return base | {name: replaced(base.get(name), value) for name, value in patch.items()}
    return patch


_KEYS = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath", "resourceClaims": "name"}


def merged(base: Any, patch: Any, key: str = "") -> Any:  # noqa: ANN401 - documents
    """A strategic merge: maps by key, the lists of `_KEYS` by their elements' names, all others replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return base | {name: merged(base.get(name), value, name) for name, value in patch.items()}
    if isinstance(base, list) and isinstance(patch, list) and key in _KEYS:
        own = {each[_KEYS[key]]: each for each in base}
        for each in patch:
            own[each[_KEYS[key]]] = merged(own.get(each[_KEYS[key]]), each)
        return list(own.values())
    return patch


def llm_d(files: Mapping[str, str]) -> dict[str, ReadRole]:
    objects = llm_d_objects(files)
    documents = _documents(files.get("plan.yaml", ""))
    claims = _claims(documents)
    names = {"decode": "plan-decode" if len(objects) == 2 else "plan-colocated", "prefill": "plan-prefill"}
    return {
        names[each["metadata"]["name"]]: leader_workers(each["metadata"]["name"], each["spec"], documents)
        if each["kind"] == "LeaderWorkerSet"
        else ReadRole(each["spec"]["replicas"], (read_pod(each["spec"]["template"]["spec"], {}, claims, documents),))
        for each in objects
    }


READERS = {
    "kubernetes": kubernetes,
    "lws": lws,
    "docker-compose": docker_compose,
    "dynamo": dynamo,
    "disaggregatedset": disaggregated_set,
    "kserve": kserve,
    "ray-serve": ray_serve,
    "llm-d": llm_d,
}


@dataclass(frozen=True)
class Told:
    """What the command of an instance's first pod says of it."""

    model: str
    degrees: tuple[int, int, int, int]  # tp, pp, dp, ep
    limits: tuple[int | None, int | None]  # max_batch of a rank, max_context_tokens
    weights: str | None
    kv_cache: str | None


def told_by(pod: ReadPod, engine: str) -> Told:
    """By the engine's own flags, or by the file of settings that they name."""
    if engine != "trtllm":
        return told(pod.argv, engine)
    argv = pod.argv
    if argv[:3] == ("bash", "mpi.sh", "head"):
        slots, count = int(argv[3]), int(argv[4])
        assert slots == pod.gpus
        assert len({*argv[5 : 5 + count]}) == count
        argv = argv[5 + count :]
    values = dict(_flags(argv))
    name = values.get("--config") or values["--extra-engine-args"].removeprefix("/etc/planner/")
    data = yaml.load(pod.files[name], Loader=_LOADER)
    ranks_of_stage = data["tensor_parallel_size"]
    dp = ranks_of_stage if data.get("enable_attention_dp") else 1
    degrees = ranks_of_stage // dp, data["pipeline_parallel_size"], dp, data.get("moe_expert_parallel_size", 1)
    limits = data.get("max_batch_size"), data.get("max_seq_len")
    return Told(values.get("--model-path", argv[1]), degrees, limits, None, data["kv_cache_config"].get("dtype"))


def told(argv: tuple[str, ...], engine: str) -> Told:
    """By the engine's own flags."""
    values = dict(_flags(argv))

    def number(name: str, default: int = 1) -> int:
        return int(values.get(name, default))

    def limit(name: str) -> int | None:
        return int(values[name]) if name in values else None

    formats = values.get("--quantization"), values.get("--kv-cache-dtype")
    if engine == "vllm":
        tp, pp, dp = (number(f"--{axis}-parallel-size") for axis in ("tensor", "pipeline", "data"))
        ep = tp * dp if "--enable-expert-parallel" in argv else 1
        limits = limit("--max-num-seqs"), limit("--max-model-len")
        return Told(values.get("--model", argv[2]), (tp, pp, dp, ep), limits, *formats)
    attention = number("--attn-dp-size")
    dp = number("--dp-size") if attention == 1 else attention
    batch = limit("--max-running-requests")
    limits = None if batch is None else batch // dp, limit("--context-length")
    degrees = (number("--tp-size") // attention, number("--pp-size"), dp, number("--ep-size"))
    return Told(values["--model-path"], degrees, limits, *formats)


def _flags(argv: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name, value in zip(argv, (*argv[1:], ""), strict=True):
        if name.startswith("--"):
            yield name, value


def gpus_of(role: ReadRole) -> int:
    """Of one instance; every pod has as many as ranks are told to it."""
    return sum(pod.gpus for pod in role.pods)


def ranks(degrees: tuple[int, int, int, int]) -> int:
    return math.prod(degrees[:3])
