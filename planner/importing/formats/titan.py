"""torchtitan: its job files, the modules that configure it since 0.3, and commands that override either."""

import ast
import math
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from planner.engines.training import TRAINING_ENGINES
from planner.importing.formats.runs import launcher_gpus, training_findings, training_reading
from planner.importing.launches import Launch
from planner.importing.options import read_options
from planner.importing.records import UNPRICED, Reading
from planner.importing.values import Values, list_of, mapping_of

Document = dict[str, Any]
_SECTIONS = {"ParallelismConfig": "parallelism", "TrainingConfig": "training", "CompileConfig": "compile"}
_SCHEDULES = {"1f1b": "1f1b", "interleaved1f1b": "interleaved", "zbvzerobubble": "zb_v", "dualpipev": "dualpipev"}
_RECOMPUTE = {"FullAC": "full", "SelectiveAC": "selective"}


def read_torchtitan(document: Mapping[str, Any], gpus: int | None = None) -> Reading:
    """torchtitan's job file (`torchtitan/config/job_config.py`); a shard degree of -1 takes the GPUs that are left.

    `gpus` are those that a launcher starts, where it is known.
    """
    values = Values()
    parallel, training = mapping_of(document.get("parallelism")), mapping_of(document.get("training"))
    model, experimental = mapping_of(document.get("model")), mapping_of(document.get("experimental"))

    def degree(name: str) -> int | None:
        return values.integer(parallel.get(name, experimental.get(name, training.get(name))), 1)

    shard, replicate = (
        values.integer(parallel.get("data_parallel_shard_degree", training.get("data_parallel_shard_degree", -1))),
        degree("data_parallel_replicate_degree"),
    )
    tp, pp, cp = degree("tensor_parallel_degree"), degree("pipeline_parallel_degree"), degree("context_parallel_degree")
    dp = shard * replicate if shard is not None and shard > 0 and replicate else None
    batch = values.integer(training.get("global_batch_size"))
    fields: dict[str, Any] = {
        "engine": "torchtitan",
        "model": " ".join(str(model[key]) for key in ("name", "flavor") if key in model) or None,
        "gpus": dp * tp * pp * cp if dp and tp and pp and cp else None,
        "tp": tp, "pp": pp, "cp": cp, "ep": degree("expert_parallel_degree"), "dp": dp,
        "vpp": None,
        "micro_batch": _micro_batch(parallel, training, values),
        "global_batch": batch if batch and batch > 0 else None,
        "sequence": values.integer(training.get("seq_len")),
        "precision": "fp8"
        if mapping_of(document.get("float8")).get("enable_float8_linear") is True
        else _titan_precision(model, training),
    }  # fmt: skip
    recompute = mapping_of(document.get("activation_checkpoint")).get("mode")
    fields["dp"] = dp = dp or _left_over(gpus, fields)
    fields["gpus"] = gpus or fields["gpus"]
    beside = {"recompute": recompute if recompute in ("none", "selective", "full") else None}
    beside |= _sharding(parallel, shard, replicate, pp, cp)
    compiled = mapping_of(document.get("compile"))
    if any(
        values.switch(section.get("enable_async_tensor_parallel")) for section in (compiled, parallel, experimental)
    ):
        beside["overlap"] = [*TRAINING_ENGINES["torchtitan"].always_overlaps, "tp_comm"]
    beside["offload_optimizer"] = values.switch(training.get("enable_cpu_offload")) is True
    beside |= _strategies(parallel, fields, values)
    beside[UNPRICED] = list(_unpriced(document, parallel, fields, values))
    return training_reading(fields, values, training_findings(fields, None, None, None), beside)


def _strategies(parallel: Mapping[str, Any], fields: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """Schedule, context parallelism and sequence parallelism, where there is anything that they are of."""
    tp, pp, cp = ((fields[name] or 1) > 1 for name in ("tp", "pp", "cp"))
    schedule = str(parallel.get("pipeline_parallel_schedule", "1F1B")).lower()
    rotated = str(parallel.get("context_parallel_rotate_method", "allgather"))
    sequence = values.switch(parallel.get("enable_sequence_parallel"))
    return {
        "schedule": _SCHEDULES.get(schedule) if pp else None,
        "context_parallel": {"allgather": "all_gather", "alltoall": "ring"}.get(rotated) if cp else None,
        "sequence_parallel": sequence if tp else None,
    }


def _unpriced(
    document: Mapping[str, Any], parallel: Mapping[str, Any], fields: Mapping[str, Any], values: Values
) -> Iterator[str]:
    """What changes a step and no plan has."""
    schedule = str(parallel.get("pipeline_parallel_schedule", "1F1B"))
    if (fields["pp"] or 1) > 1 and schedule.lower() not in _SCHEDULES:
        yield f"schedule {schedule}"
    again = mapping_of(document.get("activation_checkpoint"))
    every = str(again.get("selective_ac_option", "op"))
    if again.get("mode") == "selective" and every.isdigit():
        yield f"every {every}. layer computed again whole"
    compiled = mapping_of(document.get("compile"))
    if values.switch(compiled.get("enable")) is False or "model" not in compiled.get("components", ("model",)):
        yield "steps that are not compiled"


def _sharding(
    parallel: Mapping[str, Any], shard: int | None, replicate: int | None, pp: int | None, cp: int | None
) -> dict[str, Any]:
    """ZeRO stage and ranks that share states: FSDP2 gathers parameters again in the backward pass unless told not to.

    `fsdp_reshard_after_forward` is by default off in a pipeline; with one shard there is data parallelism alone, and
    of several replicas each shards for itself (`torchtitan/models/llama3/parallelize.py`).
    """
    if shard == 1 and (cp or 1) == 1:
        return {"zero_stage": 0}
    policy = parallel.get("fsdp_reshard_after_forward", "default")
    kept = policy == "never" or (policy == "default" and (pp or 1) > 1)
    whole = {"zero_shards": shard * cp} if shard is not None and shard > 0 and cp and (replicate or 1) > 1 else {}
    return {"zero_stage": 2 if kept else 3, **whole}


def _micro_batch(parallel: Mapping[str, Any], training: Mapping[str, Any], values: Values) -> int | None:
    """Samples that go through the model at a time: those of a stage of the pipeline where they are stated."""
    stated = parallel.get("pipeline_parallel_microbatch_size")
    stages = values.integer(parallel.get("pipeline_parallel_degree"), 1) or 1
    local = training.get("local_batch_size", training.get("batch_size"))
    return values.integer(local if stated is None or stages == 1 else stated)


def _left_over(gpus: int | None, fields: Mapping[str, Any]) -> int | None:
    """The data parallelism of the GPUs that the other degrees leave."""
    ranks = [fields[name] for name in ("tp", "pp", "cp")]
    if gpus is None or None in ranks or gpus % math.prod(ranks):
        return None
    return int(gpus // math.prod(ranks))


def read_launch(launch: Launch, given: tuple[int | None, int | None]) -> Reading:
    """A command of torchtitan: its configuration where that stands beside it, overridden by `--section.key` flags."""
    options = read_options(launch.words)
    document = _configured(options, launch)
    for name, value in options.items():
        section, dot, key = name.partition(".")
        if dot and section != "job":
            document.setdefault(section, {})
            document[section] = {**mapping_of(document[section]), key: value}
    nodes, a_node = launcher_gpus(launch.before, Values())
    nodes, a_node = nodes or given[0], a_node or given[1]
    return read_torchtitan(document, nodes * a_node if nodes and a_node else None)


def _configured(options: Mapping[str, Any], launch: Launch) -> Document:
    """The configuration that a command names, empty where it is not at hand."""
    path = options.get("job.config_file")
    text = launch.file(path)
    if text is not None:
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            return {}
    module = launch.file(f"{str(options.get('module', '')).replace('.', '/')}.py")
    return {} if module is None else configuration_of(module) or {}


def configuration_of(text: str) -> Document | None:
    """What a module of Python configures torchtitan with, read from its tree; None for other modules.

    `ParallelismConfig(...)` and `TrainingConfig(...)`, or `replace(config.training, ...)`, hold its sections;
    `model_registry("70B")` of `torchtitan.models.llama3` names the model.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None
    document: Document = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchtitan.models."):
            document.setdefault("model", {}).setdefault("name", str(node.module).split(".")[2])
        elif isinstance(node, ast.Call):
            _called(node, document)
        elif isinstance(node, ast.keyword) and node.arg == "activation_checkpoint":
            named = next((_RECOMPUTE[name] for name in _names(node.value) if name in _RECOMPUTE), "none")
            document["activation_checkpoint"] = {"mode": named}
    return document if "parallelism" in document else None


def _called(node: ast.Call, document: Document) -> None:
    name = next(iter(_names(node.func)), "")
    section = _SECTIONS.get(name)
    if name == "replace" and node.args and isinstance(node.args[0], ast.Attribute):
        section = node.args[0].attr if node.args[0].attr in _SECTIONS.values() else None
    if section is not None:
        document[section] = {**mapping_of(document.get(section)), **dict(_literals(node))}
    if name == "model_registry" and node.args and isinstance(node.args[0], ast.Constant):
        converters = [name for keyword in node.keywords for name in _names(keyword.value) if "Float8" in name]
        model = document.setdefault("model", {})
        model |= {"flavor": node.args[0].value, "converters": ["float8"] if converters else []}


def _literals(node: ast.Call) -> Iterator[tuple[str, object]]:
    for keyword in node.keywords:
        if keyword.arg is not None and isinstance(keyword.value, ast.Constant):
            yield keyword.arg, keyword.value.value


def _names(node: ast.AST) -> Iterator[str]:
    """The names in an expression, of attributes too."""
    for below in ast.walk(node):
        if isinstance(below, ast.Name):
            yield below.id
        elif isinstance(below, ast.Attribute):
            yield below.attr


def _titan_precision(model: Mapping[str, Any], training: Mapping[str, Any]) -> str | None:
    if any("float8" in str(name) for name in list_of(model.get("converters"))):
        return "fp8"
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    return names.get(str(training.get("mixed_precision_param")))
