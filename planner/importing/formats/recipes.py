"""Engine settings outside Kubernetes: srt-slurm, Helm values, SkyPilot, Ray Serve, configurations, recipes."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.documents.read import parse_document
from planner.engines.release import numbers
from planner.errors import PlannerError
from planner.importing.engines import Given, flat_options, is_repository, model_of, role_of
from planner.importing.flags import setting_findings
from planner.importing.formats.accelerators import accelerator_in
from planner.importing.formats.slurm import visible_gpus
from planner.importing.images import EngineRelease, release_in
from planner.importing.launches import Launch, Started, launches_of_script
from planner.importing.options import Options, read_options
from planner.importing.records import Reading
from planner.importing.serving import SERVING, reading_of_roles, reading_of_ways, with_tiers
from planner.importing.values import Values, below, count_of, list_of, mapping_of

Document = Mapping[str, Any]
_SRT_SIDES = (("prefill", "prefill", "prefill"), ("decode", "decode", "decode"), ("aggregated", "agg", "colocated"))


def read_srt_slurm(document: Document, given: Mapping[str, str], source: str) -> Reading:
    """A recipe of srt-slurm: workers of each side, and the engine's settings under `<engine>_config`."""
    backend, resources = mapping_of(document.get("backend")), mapping_of(document.get("resources"))
    engine = str(backend.get("type", "sglang")).lower()
    engine = "trtllm" if engine.startswith("trt") else engine
    if engine not in SERVING:
        raise PlannerError(f"unknown backend `{engine}`", where=source, hint=f"backends are {', '.join(SERVING)}")
    configs = mapping_of(backend.get(f"{engine}_config"))
    values, roles, models, findings = Values(), [], [], list[str]()
    for key, short, role in _SRT_SIDES:
        options = flat_options(mapping_of(configs.get(key)))
        workers = values.integer(resources.get(f"{short}_workers"))
        if not workers:
            continue
        nodes, per_node = (
            values.integer(resources.get(f"{short}_nodes")),
            values.integer(resources.get("gpus_per_node")),
        )
        gpus = values.integer(resources.get(f"gpus_per_{short}"))
        if gpus is None and nodes and per_node:
            gpus = nodes * per_node // workers
        spans = math.ceil(gpus / per_node) if gpus and per_node else 1
        asked = dict(options) | {"disaggregation_mode": None, "kv_transfer_config": None}
        roles.append(role_of(engine, asked, Given(gpus, spans, workers, role), values))
        findings += setting_findings(engine, options, roles[-1], values)
        if gpus and nodes and per_node and workers * gpus > nodes * per_node:
            given_here = f"{nodes} nodes of {per_node} have {nodes * per_node}"
            findings.append(f"{role}: {workers} workers of {gpus} GPUs need {workers * gpus}, {given_here}")
        models.append(model_of(engine, options, values))
    identity = below(document, "identity", "model").get("repo")
    path = mapping_of(document.get("model")).get("path")
    path = re.sub(r"\Ahf:(//)?", "", path) if isinstance(path, str) else None
    names = [name for name in (identity, *models, path) if isinstance(name, str)]
    model = next((name for name in names if is_repository(name)), path if isinstance(path, str) else None)
    gpu_type = accelerator_in(str(resources.get("gpu_type", ""))) or values.text(resources.get("gpu_type"))
    release = _srt_release(engine, document)
    return reading_of_roles(
        engine, model, roles, values.unresolved, gpu_type=gpu_type, findings=findings, releases=[release]
    )


def _srt_release(engine: str, document: Document) -> EngineRelease | None:
    """The release that a recipe states among its frameworks, else the one of its image."""
    identity = mapping_of(document.get("identity"))
    name = {"trtllm": "tensorrt_llm"}.get(engine, engine)
    stated = mapping_of(identity.get("frameworks")).get(name)
    if isinstance(stated, str) and numbers(stated):
        return EngineRelease(stated, "`identity.frameworks`")
    images = below(identity, "container").get("image"), mapping_of(document.get("model")).get("container")
    return release_in(engine, (image for image in images if isinstance(image, str)))


def read_disaggregated(document: Document, given: Mapping[str, str], source: str) -> Reading | None:
    """What `trtllm-serve disaggregated` reads: servers of both sides (`tensorrt_llm/llmapi/disagg_utils.py`).

    None where it names their addresses alone: servers are then started elsewhere, with their own settings.
    """
    sides = {
        "prefill": mapping_of(document.get("context_servers")),
        "decode": mapping_of(document.get("generation_servers")),
    }
    if all(part.keys() <= {"num_instances", "urls", "router"} for part in sides.values()):
        return None
    values, roles, models = Values(), [], []
    for role, part in sides.items():
        options = flat_options({**document, **part, "cache_transceiver_config": None})
        roles.append(role_of("trtllm", options, Given(replicas=values.integer(part.get("num_instances"), 1), role=role),
                             values))  # fmt: skip
        models.append(model_of("trtllm", options, values))
    return reading_of_roles("trtllm", models[0], roles, values.unresolved)


def read_production_stack(document: Document, given: Mapping[str, str], source: str) -> Reading:
    """Values of vLLM's production stack: `servingEngineSpec.modelSpec`, one entry a deployment."""
    values, roles, models = Values(), [], []
    for entry in list_of(mapping_of(document.get("servingEngineSpec")).get("modelSpec")):
        spec = mapping_of(entry)
        config = mapping_of(spec.get("vllmConfig"))
        options = flat_options({key: value for key, value in config.items() if key != "extraArgs"})
        options |= read_options([str(word) for word in list_of(config.get("extraArgs"))])
        cache = mapping_of(spec.get("lmcacheConfig"))
        role = {"kv_producer": "prefill", "kv_consumer": "decode"}.get(str(cache.get("kvRole")), "colocated")
        gpus, visible = values.integer(spec.get("requestGPU")), cache.get("cudaVisibleDevices")
        if gpus is None and visible is not None:
            gpus = len(str(visible).split(","))
        replicas, nodes = values.integer(spec.get("replicaCount"), 1), 1
        ray = mapping_of(spec.get("raySpec"))
        if ray.get("enabled") is True and gpus is not None and replicas is not None:
            head = values.integer(mapping_of(ray.get("headNode")).get("requestGPU"), 0) or 0
            gpus, nodes, replicas = gpus * replicas + head, replicas + (1 if head else 0), 1
        if spec.get("enableChunkedPrefill") is not None:
            options.setdefault("enable_chunked_prefill", spec["enableChunkedPrefill"])
        roles.append(role_of("vllm", options, Given(gpus, nodes, replicas, role), values))
        models.append(model_of("vllm", {**options, "model": spec.get("modelURL")}, values))
    model = models[0] if models and all(name == models[0] for name in models) else None
    specs = [mapping_of(each) for each in list_of(mapping_of(document.get("servingEngineSpec")).get("modelSpec"))]
    types = {_selected(list_of(spec.get("nodeSelectorTerms"))) for spec in specs} - {None}
    gpu_type = types.pop() if len(types) == 1 else None
    releases = [release_in("vllm", [f"{spec.get('repository')}:{spec.get('tag')}"]) for spec in specs]
    return reading_of_roles("vllm", model, roles, values.unresolved, gpu_type=gpu_type, releases=releases)


def _selected(terms: Sequence[Any]) -> str | None:
    """The GPU that terms of a node selector ask for."""
    from planner.importing.formats.kubernetes import selected_types

    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    types = selected_types({"affinity": {"nodeAffinity": required}})
    return types.pop() if len(types) == 1 else None


def read_skypilot(document: Document, given: Mapping[str, str], source: str) -> Reading | None:
    """A task of SkyPilot: accelerators a node, nodes, and the script under `run`."""
    variables = {str(k): str(v) for k, v in mapping_of(document.get("envs")).items() if v is not None} | dict(given)
    resources, policy = mapping_of(document.get("resources")), below(document, "service", "replica_policy")
    nodes = count_of(document.get("num_nodes"), 1)
    choices = _accelerators(resources.get("accelerators"))
    counts, types = {count for _, count in choices}, {name for name, _ in choices}
    count = counts.pop() if len(counts) == 1 else None
    variables |= {} if count is None else {"SKYPILOT_NUM_GPUS_PER_NODE": str(count)}
    variables |= {"SKYPILOT_NUM_NODES": str(nodes), "SKYPILOT_NODE_RANK": "0"}
    service = mapping_of(document.get("service"))
    low = count_of(policy.get("min_replicas", service.get("replicas")), 1)
    high = count_of(policy["max_replicas"], low) if "max_replicas" in policy else None
    ways = launches_of_script(str(document.get("run", "")), variables, source)
    if not ways:
        return None
    image = str(resources.get("image_id", ""))
    ways = [Started(tuple(replace(own, image=image) for own in way.launches), way.world) for way in ways]
    gpus = None if count is None else count * nodes
    gpu_type = accelerator_in(types.pop()) if len(types) == 1 else None
    alone = all(len(way.launches) == 1 for way in ways)

    def around(launch: Launch, options: Options) -> Given:
        visible = visible_gpus(launch.before, launch.environment)
        return Given(gpus if alone and visible is None else visible, nodes, low, None, high)

    return reading_of_ways(ways, around, gpu_type=gpu_type)


def _accelerators(value: object) -> list[tuple[str, int]]:
    """`H100:8`, `{H100:1, H200:1}` and lists of them as names and counts."""
    if isinstance(value, str):
        pairs = re.findall(r"([A-Za-z][\w-]*)\s*(?::\s*(\d+))?", value)
        return [(name, count_of(count, 1)) for name, count in pairs]
    if isinstance(value, Mapping):
        flat = []
        for key, count in value.items():
            name, colon, number = str(key).partition(":")
            flat.append((name, count_of(number if colon and number.isdigit() else count, 1)))
        return flat
    return [pair for item in list_of(value) for pair in _accelerators(item)]


def read_ray_serve(document: Document, given: Mapping[str, str], source: str) -> Reading | None:
    """A RayService, or the configuration of Ray Serve alone: `llm_configs` of its applications."""
    spec = mapping_of(document.get("spec"))
    config: object = document
    if spec:
        text = spec.get("serveConfigV2", "")
        config = parse_document(text, f"{source}: serveConfigV2").data if isinstance(text, str) and text else text
    values, roles, models = Values(), [], []
    accelerator = None
    for side, llm in _ray_llms(config):
        loading, deployment = mapping_of(llm.get("model_loading_config")), mapping_of(llm.get("deployment_config"))
        scaling = mapping_of(deployment.get("autoscaling_config"))
        replicas = values.integer(scaling.get("min_replicas", deployment.get("num_replicas", 1)), 1)
        high = values.integer(scaling.get("max_replicas"))
        options = flat_options(mapping_of(llm.get("engine_kwargs")))
        asked = {**options, "kv_transfer_config": None} if side else options
        told = role_of("vllm", asked, Given(None, None, replicas, side, high), values)
        roles.append(with_tiers(told, Launch("vllm", ()), asked, values))
        models.append(values.text(loading.get("model_source") or loading.get("model_id")))
        accelerator = accelerator_in(str(llm.get("accelerator_type", "")))
    if not roles:
        return None
    workers = list_of(mapping_of(spec.get("rayClusterConfig")).get("workerGroupSpecs"))
    given_gpus = [_worker_gpus(mapping_of(group)) for group in workers]
    total = sum(given_gpus) if given_gpus and all(given_gpus) else None
    _spread_over_hosts(roles, [mapping_of(group) for group in workers])
    return reading_of_roles("vllm", models[0], roles, values.unresolved, gpus=total, gpu_type=accelerator)


def _spread_over_hosts(roles: Sequence[dict[str, Any]], groups: Sequence[Mapping[str, Any]]) -> None:
    """The nodes of replicas that are larger than any worker of the cluster."""
    from planner.importing.formats.pods import gpus_of

    largest = max((gpus_of(below(group, "template", "spec")) or 0 for group in groups), default=0)
    for role in roles:
        if largest and role["gpus_per_replica"] and role["gpus_per_replica"] > largest:
            role["nodes_per_replica"] = math.ceil(role["gpus_per_replica"] / largest)


def _ray_llms(config: object) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """The models of every application with their sides; of the example that starts vLLM by variables, those."""
    for application in list_of(mapping_of(config).get("applications")):
        arguments = below(application, "args")
        yield from ((None, mapping_of(entry)) for entry in list_of(arguments.get("llm_configs")))
        for side in ("prefill", "decode"):
            entry = mapping_of(arguments.get(f"{side}_config"))
            if entry:
                yield side, entry
        variables = mapping_of(below(application, "runtime_env").get("env_vars"))
        if "MODEL_ID" in variables and "vllm" in str(mapping_of(application).get("import_path")):
            degrees = {"tensor_parallel_size": variables.get("TENSOR_PARALLELISM"),
                       "pipeline_parallel_size": variables.get("PIPELINE_PARALLELISM")}  # fmt: skip
            first = mapping_of(next(iter(list_of(mapping_of(application).get("deployments"))), {}))
            loading, kept = {"model_id": variables["MODEL_ID"]}, ("num_replicas", "autoscaling_config")
            yield None, {"model_loading_config": loading, "engine_kwargs": degrees,
                         "deployment_config": {key: first[key] for key in kept if key in first}}  # fmt: skip


def _worker_gpus(group: Mapping[str, Any]) -> int:
    from planner.importing.formats.pods import gpus_of

    a_pod = gpus_of(below(group, "template", "spec")) or 0
    return a_pod * count_of(group.get("replicas"), 1) * count_of(group.get("numOfHosts"), 1)


def read_engine_config(document: Document, engine: str, given: Mapping[str, str], source: str) -> Reading:
    """The file that `vllm serve --config`, `trtllm-serve --config` or SGLang's `--config` reads."""
    values = Values()
    options = flat_options(document)
    role = role_of(engine, options, Given(), values)
    model = model_of(engine, options, values) or given.get("model")
    if model is None:
        values.unresolved.append("model")
    return reading_of_roles(engine, model, [role], values.unresolved)


def read_vllm_recipe(document: Document, given: Mapping[str, str], source: str) -> Reading:
    """A page of vLLM's recipes: the model, its arguments, and the commands of the guide where they agree."""
    model = mapping_of(document.get("model"))
    name = model.get("model_id")
    scripts = re.findall(r"```(?:bash|shell|sh)\n(.*?)```", str(document.get("guide", "")), re.S)
    commands = [way for text in scripts for way in launches_of_script(text, given, source)]
    values = Values()
    base = read_options([str(word) for word in list_of(model.get("base_args"))])
    if not commands:
        role = role_of("vllm", base, Given(), values)
        return reading_of_roles("vllm", values.text(name), [role], values.unresolved)
    roles = [_recipe_role(way.launches[0].words, base, values) for way in commands]
    same = {key: value if all(role.get(key) == value for role in roles) else None for key, value in roles[0].items()}
    return reading_of_roles("vllm", values.text(name), [same], values.unresolved)


def _recipe_role(words: Sequence[str], base: Options, values: Values) -> dict[str, Any]:
    return role_of("vllm", base | read_options(words), Given(), values)
