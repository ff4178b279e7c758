"""Texts by the format that they are in; a format is told by its own keys, never by the name of a file."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from planner.documents.read import parse_document
from planner.engines.serving.registry import SERVING_ENGINES
from planner.errors import PlannerError
from planner.importing.formats import (
    charts,
    kubernetes,
    megatron_runs,
    post_training,
    recipes,
    rl_configurations,
    titan,
    training,
    verl,
)
from planner.importing.formats.commands import serving_script
from planner.importing.formats.jobs import ways_of_jobs
from planner.importing.formats.slurm import allocation_of
from planner.importing.launches import Launch, Started, launches_of_script
from planner.importing.records import Reading
from planner.importing.serving import SERVING, agreed
from planner.importing.shell.worlds import worlds
from planner.importing.values import mark

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Artifact:
    """A text to read, what errors call it, and the variables that the user gives."""

    text: str
    source: str
    given: Mapping[str, str]
    beside: Mapping[str, str] = field(default_factory=dict)  # files of the same folder, by name


class NothingStarted(PlannerError):
    """A text that starts no engine and configures none."""


def _has(*keys: str) -> Callable[[Document], bool]:
    return lambda document: all(key in document for key in keys)


def _any_of(*keys: str) -> Callable[[Document], bool]:
    return lambda document: any(key.replace("-", "_") in keys for key in document)


def _is_trtllm(document: Document) -> bool:
    """Whether a mapping has settings of TensorRT-LLM's, or names one of its backends beside degrees of any engine."""
    backend = document.get("backend") in ("pytorch", "tensorrt", "_autodeploy")
    own = _any_of(*SERVING_ENGINES["trtllm"].config_keys)
    return own(document) or (backend and _any_of("tp_size", "ep_size")(document))


def _is_bridge(document: Document) -> bool:
    model = document.get("model")
    return isinstance(model, dict) and "tensor_model_parallel_size" in model and "train" in document


def _is_vllm_config(document: Document) -> bool:
    """Whether a mapping has settings of vLLM's, or a model beside those of its server; a `model` of parts is none."""
    model = document.get("model")
    served = isinstance(model, str) and any(key in document for key in ("host", "port", "uvicorn-log-level", "dtype"))
    return (
        not isinstance(model, dict)
        and "context_servers" not in document
        and (served or _any_of(*SERVING_ENGINES["vllm"].config_keys)(document))
    )


def _engine_config(engine: str) -> Callable[[Document, Mapping[str, str], str], Reading]:
    return lambda document, given, source: recipes.read_engine_config(document, engine, given, source)


MAPPINGS: tuple[
    tuple[str, Callable[[Document], bool], Callable[[Document, Mapping[str, str], str], Reading | None]], ...
] = (
    ("srt-slurm recipe", _has("backend", "resources"), recipes.read_srt_slurm),
    ("trtllm-serve disaggregated", _has("context_servers", "generation_servers"), recipes.read_disaggregated),
    ("production-stack values", _has("servingEngineSpec"), recipes.read_production_stack),
    ("llm-d model service values", _has("modelArtifacts"), charts.read_model_service),
    ("Megatron-LM model configuration", _has("MODEL_ARGS"), lambda d, given, source: megatron_runs.read_model_args(d)),
    ("Ray Serve configuration", _has("applications"), recipes.read_ray_serve),
    ("SkyPilot task", _has("run", "resources"), recipes.read_skypilot),
    ("vLLM recipe", lambda d: isinstance(d.get("model"), dict) and "model_id" in d["model"], recipes.read_vllm_recipe),
    ("NeMo-RL YAML", _has("policy", "cluster"), lambda d, given, source: rl_configurations.read_nemo_rl(referred(d))),
    ("Megatron-Bridge overrides", _is_bridge, lambda d, given, source: megatron_runs.read_megatron_bridge(d)),
    ("device mesh", _has("mesh_dim_names", "mesh_shape"), lambda d, given, source: training.read_mesh(d)),
    (
        "NeMo AutoModel recipe",
        _has("step_scheduler", "distributed"),
        lambda d, given, source: training.read_automodel(d),
    ),
    ("AReaL YAML", _has("actor", "rollout"), lambda d, given, source: rl_configurations.read_areal(referred(d))),
    ("DeepSpeed JSON", _has("zero_optimization"), lambda d, given, source: training.read_deepspeed(d)),
    ("DeepSpeed JSON", _has("train_micro_batch_size_per_gpu"), lambda d, given, source: training.read_deepspeed(d)),
    (
        "LLaMA-Factory YAML",
        _has("model_name_or_path", "stage"),
        lambda d, given, source: training.read_llama_factory(d),
    ),
    ("trtllm-serve --config", _is_trtllm, _engine_config("trtllm")),
    ("SGLang --config", _any_of(*SERVING_ENGINES["sglang"].config_keys), _engine_config("sglang")),
    ("vllm serve --config", _is_vllm_config, _engine_config("vllm")),
)
FORMATS = (
    "shell scripts of vLLM, SGLang, TensorRT-LLM, Dynamo, Megatron-LM, verl, slime, OpenRLHF", "Kubernetes objects",
    "LeaderWorkerSet", "DynamoGraphDeployment", "KServe", "StormService", "RayService", "Docker Compose",
    "torchtitan TOML",
    *dict.fromkeys(name for name, _, _ in MAPPINGS),
)  # fmt: skip


def read_artifact(artifact: Artifact) -> Reading:
    """What one text decides. Raises PlannerError for templates, half documents, and formats that are not known."""
    artifact = replace(artifact, text=filled(artifact.text, artifact.given, artifact.source))
    text = artifact.text
    if re.search(r"\{\{-?\s*(\.|include\b|template\b|if\b|range\b|with\b|toYaml\b|end\b)", text):
        raise PlannerError(
            "is a Helm template that is not rendered",
            where=artifact.source,
            hint="render it first: `helm template ...`",
        )
    toml = None if text.startswith("#!") else _toml(text)
    if toml is not None:
        if "parallelism" in toml or {"training", "model"} <= toml.keys():
            return titan.read_torchtitan(toml)
        raise _unknown(artifact.source)
    configured = titan.configuration_of(text) if re.search(r"(?m)^(from|import) torchtitan", text) else None
    if configured is not None:
        return titan.read_torchtitan(configured)
    if re.search(r"(?m)^(from [\w.]+ import |import \w)", text) and not text.startswith("#!/bin"):
        raise _unknown(artifact.source)
    if _is_script(text):
        return _script(artifact)
    documents = documents_of(text, artifact.source)
    if any("kind" in document and "apiVersion" in document for document in documents):
        return _objects(documents, artifact)
    reading = _mapping(documents, artifact)
    if reading is None:
        raise _unknown(artifact.source)
    return reading


def _mapping(documents: Sequence[Document], artifact: Artifact) -> Reading | None:
    """What the first mapping of a known format decides; None where there is none."""
    for document in documents:
        if "services" in document:
            reading = charts.read_compose(document, artifact.given, artifact.source, artifact.beside)
            if reading is not None:
                return reading
    for _, belongs, read in MAPPINGS:
        for document in documents:
            if belongs(document):
                reading = read(document, artifact.given, artifact.source)
                if reading is not None:
                    return reading
    return None


_PLACE = re.compile(r"\{\{-?\s*([A-Za-z_]\w*)\s*(?:\|\s*default\(\s*([^()]*?)\s*\)\s*)?-?\}\}")


def filled(text: str, given: Mapping[str, str], source: str) -> str:
    """A text with `{{ NAME }}` given, by default, or left open. Raises PlannerError for statements of Jinja."""
    if re.search(r"(?m)^\s*\{%-?\s*(if|for|set|macro|include|extends)\b", text):
        hint = "render it first, and give the result"
        raise PlannerError("is a Jinja template that is not rendered", where=source, hint=hint)

    def value(match: re.Match[str]) -> str:
        default = None if match[2] is None else match[2].strip("'\"")
        known = given.get(match[1], default)
        return mark([match[1]]) if known is None else known

    return _PLACE.sub(value, text)


def _unknown(source: str) -> NothingStarted:
    return NothingStarted("starts nothing that planner knows", where=source, hint=f"formats are {'; '.join(FORMATS)}")


_SCRIPT_LINE = re.compile(
    r"(?m)^(export\s+\w+=|[A-Za-z_]\w*\+?=|set -[a-z]|(exec\s+|\w+=\S*\s+)*"
    r"(vllm|sglang|torchrun|python3?|trtllm-serve|docker|ray|srun|mpirun|deepspeed|bash|uv|nohup)\s+[^:\s])"
)


def _is_script(text: str) -> bool:
    """Whether this is shell: a first line that says so, or lines without indentation that no YAML mapping has."""
    if text.startswith("#!"):
        return True
    return re.match(r"\s*[{\[]", text) is None and _SCRIPT_LINE.search(text) is not None


def _toml(text: str) -> dict[str, Any] | None:
    if not re.search(r"(?m)^\s*\[[\w.]+\]\s*(#.*)?$", text):
        return None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


_LETTER = "\ue000"  # in place of the NUL of marks, which no document may hold


def _marked(value: Any) -> Any:  # noqa: ANN401 - plain data
    """Data with the marks that its text had."""
    if isinstance(value, dict):
        return {_marked(key): _marked(below) for key, below in value.items()}
    if isinstance(value, list):
        return [_marked(below) for below in value]
    return value.replace(_LETTER, "\x00") if isinstance(value, str) else value


def documents_of(text: str, source: str) -> list[dict[str, Any]]:
    """The mappings of a YAML stream, each parsed with the lines that it has in the file."""
    documents: list[dict[str, Any]] = []
    starts = [0, *(match.start() for match in re.finditer(r"(?m)^---(?=\s|$)", text)), len(text)]
    for start, end in pairwise(starts):
        part = re.sub(r"\A---[^\n]*", "", text[start:end]).replace("\x00", _LETTER)
        if not re.search(r"(?m)^\s*[^\s#]", part):
            continue
        data = parse_document("\n" * text.count("\n", 0, start) + part, source).data
        data = _marked(data) if _LETTER in part else data
        if isinstance(data, dict):
            items = data.get("items") if data.get("kind") == "List" else None
            documents += [item for item in items if isinstance(item, dict)] if isinstance(items, list) else [data]
    return documents


def _objects(documents: Sequence[dict[str, Any]], artifact: Artifact) -> Reading:
    for document in documents:
        if document.get("kind") == "RayService":
            reading = recipes.read_ray_serve(document, artifact.given, artifact.source)
            if reading is not None:
                return reading
    reading = kubernetes.read_objects(documents, artifact.given, artifact.source)
    if reading is not None:
        return reading
    ways = ways_of_jobs(documents, artifact.given, artifact.source)
    if not ways:
        raise _unknown(artifact.source)
    return agreed([(_training(way.launches[0], machines), way.world) for way, machines in ways])


def _script(artifact: Artifact) -> Reading:
    allocation = allocation_of(artifact.text)
    given = {**allocation.variables, **artifact.given}
    ways = launches_of_script(artifact.text, given, artifact.source, artifact.beside)
    if not ways:
        applied = _applied(artifact, given)
        if applied is None:
            raise _unknown(artifact.source)
        return applied
    if any(launch.engine in SERVING for launch in ways[0].launches):
        kept = [Started(tuple(x for x in way.launches if x.engine in SERVING), way.world) for way in ways]
        return serving_script([way for way in kept if way.launches], allocation)
    allocated = (allocation.nodes, allocation.gpus_per_node)
    return agreed([(_training(way.launches[0], allocated), way.world) for way in ways])


def _applied(artifact: Artifact, given: Mapping[str, str]) -> Reading | None:
    """The objects that a script hands to `kubectl`; None where it hands none over."""
    for world in worlds(artifact.text, given, artifact.source, artifact.beside):
        names = [word for c in world.commands if c.words[0] in ("kubectl", "oc") for word in c.words]
        texts = [c.given for c in world.commands if {"kubectl", "oc"} & set(c.words) and c.given]
        texts += [text for path, text in world.files.items() if path in names]
        if texts:
            return _objects(documents_of("\n---\n".join(texts), artifact.source), artifact)
    return None


def _training(launch: Launch, allocated: tuple[int | None, int | None]) -> Reading:
    if launch.engine == "megatron-lm":
        return megatron_runs.read_megatron(launch, allocated)
    if launch.engine == "torchtitan":
        return titan.read_launch(launch, allocated)
    if launch.engine == "megatron-bridge":
        return megatron_runs.read_bridge_launch(launch, allocated)
    if launch.engine in ("deepspeed", "llama-factory", "torchrun", "nemo-automodel"):
        return training.read_configured(launch, allocated)
    readers = {
        "verl": verl.read_verl,
        "slime": post_training.read_slime,
        "openrlhf": post_training.read_openrlhf,
    }
    return readers[launch.engine](launch)


def referred(document: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of OmegaConf with `${a.b}` replaced by what it names in the same file."""

    def look(path: str, depth: int) -> object:
        value: object = document
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return replaced(value, depth + 1)

    def replaced(value: object, depth: int) -> object:
        if depth > 12:
            return None
        if isinstance(value, str):
            whole = re.fullmatch(r"\$\{([\w.]+)\}", value)
            return look(whole[1], depth) if whole else value
        if isinstance(value, dict):
            return {key: replaced(below, depth + 1) for key, below in value.items()}
        return [replaced(below, depth + 1) for below in value] if isinstance(value, list) else value

    resolved: dict[str, Any] = json.loads(json.dumps({key: replaced(value, 0) for key, value in document.items()}))
    return resolved
