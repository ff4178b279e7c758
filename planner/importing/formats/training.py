"""Training runs: arguments of Megatron-LM and Megatron-Bridge, DeepSpeed's JSON and LLaMA-Factory's YAML."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.documents.read import parse_document
from planner.importing.formats.megatron import UNEVEN, megatron_decisions, precision_of
from planner.importing.launches import Launch
from planner.importing.options import Options, read_options
from planner.importing.records import Reading
from planner.importing.values import Values, below, list_of, mapping_of


def training_reading(
    fields: Mapping[str, Any],
    values: Values,
    findings: Sequence[str] = (),
    beside: Mapping[str, Any] | None = None,
) -> Reading:
    """A training run in the order of summaries; degrees that nothing sets must be in `fields` already."""
    order = ("engine", "model", "gpus", "tp", "pp", "cp", "ep", "dp", "vpp", "micro_batch", "global_batch", "sequence",
             "precision")  # fmt: skip
    ordered = {"kind": "train"} | {key: fields.get(key) for key in order}
    ordered |= {key: value for key, value in fields.items() if key not in ordered}
    return Reading(ordered, tuple(dict.fromkeys(values.unresolved)), tuple(findings), beside=dict(beside or {}))


def launcher_gpus(before: Sequence[str], values: Values) -> tuple[int | None, int | None]:
    """Nodes, and GPUs a node, that `torchrun`, `srun` or `deepspeed` in front of a program starts."""
    options = read_options(before)
    nodes = values.integer(options.get("nnodes", options.get("nodes", options.get("num_nodes"))))
    a_node = values.integer(options.get("nproc_per_node", options.get("ntasks_per_node", options.get("num_gpus"))))
    if options.get("nnodes") is None and nodes is None and a_node is not None:
        nodes = 1
    return nodes, a_node


def read_megatron(launch: Launch, given: tuple[int | None, int | None] = (None, None)) -> Reading:
    """Arguments of Megatron-LM (`megatron/training/arguments.py`), under the launcher's nodes and GPUs a node."""
    values = Values()
    options = read_options(launch.words)
    nodes, a_node = launcher_gpus(launch.before, values)
    nodes, a_node = nodes or given[0], a_node or given[1]
    gpus = nodes * a_node if nodes and a_node else None
    degrees = megatron_degrees(options, values)
    fields: dict[str, Any] = {
        "engine": "megatron-lm",
        "model": {
            "layers": values.integer(options.get("num_layers")),
            "hidden": values.integer(options.get("hidden_size")),
            "heads": values.integer(options.get("num_attention_heads")),
        },
        "gpus": gpus,
        **degrees,
        "dp": _data_parallel(gpus, degrees),
        "vpp": _virtual_stages(options, degrees["pp"], values),
        "micro_batch": values.integer(options.get("micro_batch_size")),
        "global_batch": values.integer(options.get("global_batch_size")),
        "sequence": values.integer(options.get("seq_length")),
        "precision": precision_of(options),
    }
    return training_reading(
        fields, values, training_findings(fields, nodes, a_node, options), megatron_decisions(options, degrees)
    )


def read_model_args(document: Mapping[str, Any]) -> Reading:
    """Megatron-LM's own test recipes: flags as keys of `MODEL_ARGS` (`tests/functional_tests`)."""
    words: list[str] = []
    for key, value in mapping_of(document.get("MODEL_ARGS")).items():
        words += [str(key)] if value is True else [str(key), str(value)] if value not in (False, None) else []
    return read_megatron(Launch("megatron-lm", tuple(words)))


def megatron_degrees(options: Options, values: Values) -> dict[str, int | None]:
    """Degrees by Megatron-LM's names; 1 where nothing sets them."""
    return {
        "tp": values.integer(options.get("tensor_model_parallel_size"), 1),
        "pp": values.integer(options.get("pipeline_model_parallel_size"), 1),
        "cp": values.integer(options.get("context_parallel_size"), 1),
        "ep": values.integer(options.get("expert_model_parallel_size"), 1),
    }


def _data_parallel(gpus: int | None, degrees: Mapping[str, int | None]) -> int | None:
    ranks = 1
    for key in ("tp", "pp", "cp"):
        degree = degrees[key]
        if degree is None:
            return None
        ranks *= degree
    return gpus // ranks if gpus and gpus % ranks == 0 else None


def _virtual_stages(options: Options, pp: int | None, values: Values) -> int | None:
    """Model chunks a stage: by layers a virtual stage, or by their number."""
    chunks = values.integer(options.get("num_virtual_stages_per_pipeline_rank"))
    a_stage, layers = (
        values.integer(options.get("num_layers_per_virtual_pipeline_stage")),
        values.integer(options.get("num_layers")),
    )
    if chunks is None and a_stage and layers and pp:
        return layers // pp // a_stage
    return chunks


def training_findings(
    fields: Mapping[str, Any], nodes: int | None, a_node: int | None, options: Options | None
) -> list[str]:
    """Contradictions of degrees, GPUs and batches in a training run.

    Without `options` nothing is said of ranks of experts, whose tensor parallelism they state.
    """
    findings = []
    parts = [(key, fields.get(key)) for key in ("tp", "pp", "cp")]
    used = [(key, degree) for key, degree in parts if isinstance(degree, int) and degree > 1]
    ranks = 1
    for _, degree in used:
        ranks *= degree
    gpus, asked = fields.get("gpus"), " x ".join(f"{key} {degree}" for key, degree in used)
    if gpus and ranks > gpus:
        started = f"{nodes} node{'s' if nodes != 1 else ''} of {a_node}" if nodes and a_node else f"{gpus} GPUs"
        findings.append(f"{asked} needs {ranks} GPUs, the script starts {started}")
    elif gpus and gpus % ranks:
        findings.append(f"{asked} does not divide {gpus} GPUs")
    elif options is not None:
        findings += _expert_findings(fields, options)
    findings += _batch_findings(fields)
    model = fields.get("model")
    heads, tp = (model.get("heads"), fields.get("tp")) if isinstance(model, dict) else (None, None)
    if heads and tp and heads % tp:
        findings.append(f"{heads} attention heads do not divide by tp {tp}")
    options = options or {}
    findings += _division_findings(fields, options)
    if options.get("bf16") is True and options.get("fp16") is True:
        findings.append("--bf16 and --fp16 contradict each other")
    if options.get("sequence_parallel") is True and fields.get("tp") == 1:
        findings.append("--sequence-parallel is ignored with tp 1")
    return findings


def _expert_findings(fields: Mapping[str, Any], options: Options) -> list[str]:
    """Experts over ranks of one stage: ep times the tensor parallelism of experts, by default that of all else."""
    gpus, ep, pp, tp = (fields.get(name) for name in ("gpus", "ep", "pp", "tp"))
    if not (gpus and ep and ep > 1 and pp and tp):
        return []
    experts_tp = Values().integer(options.get("expert_tensor_parallel_size")) or tp
    degrees = [("ep", ep), ("tp", experts_tp), ("pp", pp)]
    asked = " x ".join(f"{name} {degree}" for name, degree in degrees if degree > 1)
    ranks = ep * experts_tp * pp
    if ranks > gpus:
        return [f"{asked} needs {ranks} GPUs, the script starts {gpus}"]
    return [f"{asked} does not divide {gpus} GPUs"] if gpus % ranks else []


def _division_findings(fields: Mapping[str, Any], options: Options) -> list[str]:
    """Experts over expert-parallel ranks, and layers over pipeline stages, where the flags state both."""
    findings = []
    experts, ep, pp = options.get("num_experts"), fields.get("ep"), fields.get("pp")
    if ep and str(experts).isdigit() and int(str(experts)) % ep:
        findings.append(f"{experts} experts do not divide by ep {ep}")
    model = fields.get("model")
    layers = model.get("layers") if isinstance(model, dict) else None
    stages = (pp or 1) * (fields.get("vpp") or 1)
    if layers and stages > 1 and layers % stages and not any(name in options for name in UNEVEN):
        findings.append(f"{layers} layers do not divide by {stages} pipeline stages")
    return findings


def _batch_findings(fields: Mapping[str, Any]) -> list[str]:
    batch, micro, dp = fields.get("global_batch"), fields.get("micro_batch"), fields.get("dp")
    if batch and micro and dp and batch % (micro * dp):
        return [f"global batch {batch} does not divide by micro batch {micro} x dp {dp}"]
    return []


def read_megatron_bridge(document: Mapping[str, Any]) -> Reading:
    """Overrides of Megatron-Bridge (`ConfigContainer`): degrees and length of `model`, batches of `train`."""
    values = Values()
    model, train, ddp = (mapping_of(document.get(key)) for key in ("model", "train", "ddp"))
    options = {str(key): value for key, value in model.items()}
    degrees = megatron_degrees(options, values)
    fields: dict[str, Any] = {
        "engine": "megatron-bridge", "model": None, "gpus": None, **degrees, "dp": None,
        "vpp": values.integer(model.get("virtual_pipeline_model_parallel_size")),
        "micro_batch": values.integer(train.get("micro_batch_size")),
        "global_batch": values.integer(train.get("global_batch_size")),
        "sequence": values.integer(model.get("seq_length", mapping_of(document.get("dataset")).get("seq_length"))),
        "precision": _bridge_precision(str(document.get("mixed_precision", ""))),
    }  # fmt: skip
    beside = {
        "recompute": model.get("recompute_granularity") or "none",
        "zero_stage": 1 if ddp.get("use_distributed_optimizer") is True else 0,
        "sequence_parallel": model.get("sequence_parallel") is True if (degrees["tp"] or 0) > 1 else None,
    }
    return training_reading(fields, values, training_findings(fields, None, None, options), beside)


def read_mesh(document: Mapping[str, Any]) -> Reading:
    """A device mesh with its batches, as `planner emit --target torchrun` writes it for any program."""
    values = Values()
    names, sizes = list_of(document.get("mesh_dim_names")), list_of(document.get("mesh_shape"))
    degrees = {str(name): values.integer(size, 1) or 1 for name, size in zip(names, sizes, strict=False)}
    fields: dict[str, Any] = {
        "engine": "torchrun", "model": values.text(document.get("model")), "gpus": math.prod(degrees.values()),
        **{key: degrees.get(key, 1) for key in ("tp", "pp", "cp")},
        "ep": values.integer(mapping_of(document.get("expert_parallel")).get("ep"), 1),
        "dp": degrees.get("dp", 1), "vpp": None,
        "micro_batch": values.integer(document.get("micro_batch")),
        "global_batch": values.integer(document.get("global_batch")),
        "sequence": values.integer(document.get("sequence_tokens")),
        "precision": values.text(document.get("precision")),
    }  # fmt: skip
    beside = {name: document.get(name) for name in ("zero_stage", "sequence_parallel") if name in document}
    return training_reading(fields, values, training_findings(fields, None, None, None), beside)


_OFFLOADED = ("offload_optimizer", "offload_param")


def read_configured(launch: Launch, given: tuple[int | None, int | None] = (None, None)) -> Reading:
    """A trainer under a launcher, its configuration beside it: DeepSpeed's, a device mesh, LLaMA-Factory's.

    Flags of transformers (`TrainingArguments`) say what DeepSpeed's configuration leaves to them.
    """
    values, options = Values(), read_options(launch.words)
    nodes, a_node = launcher_gpus(launch.before, values)
    nodes, a_node = nodes or given[0], a_node or given[1]
    around = read_options(launch.before)
    gpus = nodes * a_node if nodes and a_node else values.integer(around.get("num_processes"))
    names = [options.get(name) for name in ("deepspeed_config", "deepspeed", "plan_mesh", "config", "c")]
    path = next((name for name in (*names, *launch.words[1:2]) if isinstance(name, str)), "")
    text = launch.file(path) or ""
    document = parse_document(text, path).data if text.strip() else {}
    document = document if isinstance(document, dict) else {}
    if launch.engine == "torchrun":
        return read_mesh(document)
    if launch.engine == "nemo-automodel":
        return _on_gpus(read_automodel(document), gpus)
    if launch.engine == "llama-factory":
        flags = {key: value for key, value in options.items() if key}
        return _on_gpus(read_llama_factory({**document, **flags}), gpus)
    return _on_gpus(read_deepspeed({**_trainer(options), **document}, options), gpus)


def read_bridge_launch(launch: Launch, given: tuple[int | None, int | None] = (None, None)) -> Reading:
    """A program of Megatron-Bridge that stands beside its launcher, with the file of overrides that it names."""
    nodes, a_node = launcher_gpus(launch.before, Values())
    nodes, a_node = nodes or given[0], a_node or given[1]
    program = launch.file(launch.program) or ""
    named = re.findall(r"[\"']([\w./-]+\.ya?ml)[\"']", program)
    text = next((text for name in named if (text := launch.file(name))), "")
    document = parse_document(text, launch.program).data if text.strip() else {}
    reading = read_megatron_bridge(document if isinstance(document, dict) else {})
    precision = re.search(r"(?m)(?:PRECISION|mixed_precision)\s*=\s*[\"'](\w+)[\"']", program)
    model = re.search(r"from_hf_pretrained\(\s*[\"']([^\"']+)|(?m:^MODEL\s*=\s*[\"']([^\"']+))", program)
    fields = dict(reading.fields)
    fields["precision"] = fields["precision"] or (_bridge_precision(precision[1]) if precision else None)
    fields["model"] = fields["model"] or (model[1] or model[2] if model else None)
    return _on_gpus(replace(reading, fields=fields), nodes * a_node if nodes and a_node else None)


def _bridge_precision(name: str) -> str | None:
    """Recipes of mixed precision by their formats: `bf16_mixed`, `bf16_with_fp8_delayed_scaling_mixed`."""
    return next((each for each in ("fp4", "fp8", "bf16", "fp16") if each in name.replace("mxfp8", "fp8")), None)


def read_automodel(document: Mapping[str, Any]) -> Reading:
    """A recipe of NeMo AutoModel (`examples/llm_finetune/*.yaml`): FSDP2 with tensor and context parallelism."""
    values = Values()
    sizes, schedule = mapping_of(document.get("distributed")), mapping_of(document.get("step_scheduler"))
    model, packing, data = (mapping_of(document.get(key)) for key in ("model", "packed_sequence", "dataset"))
    shard = values.integer(sizes.get("dp_size"))
    degrees = {name: values.integer(sizes.get(f"{name}_size"), 1) for name in ("tp", "pp", "cp", "ep")}
    product = math.prod(size or 1 for name, size in degrees.items() if name != "ep")
    fields: dict[str, Any] = {
        "engine": "nemo-automodel",
        "model": values.text(model.get("pretrained_model_name_or_path")),
        "gpus": shard * product if shard else None, **degrees, "dp": shard, "vpp": None,
        "micro_batch": values.integer(schedule.get("local_batch_size")),
        "global_batch": values.integer(schedule.get("global_batch_size")),
        "sequence": values.integer(packing.get("packed_sequence_size")) or values.integer(data.get("seq_length")),
        "precision": {"bfloat16": "bf16", "float16": "fp16"}.get(str(model.get("torch_dtype")).rpartition(".")[2]),
    }  # fmt: skip
    return training_reading(fields, values, training_findings(fields, None, None, None))


def _trainer(options: Options) -> dict[str, Any]:
    """Flags of transformers by the names that DeepSpeed has for them."""
    micro = options.get("per_device_train_batch_size")
    stated: dict[str, Any] = {} if micro is None else {"train_micro_batch_size_per_gpu": micro}
    stated |= {name: {"enabled": True} for name in ("bf16", "fp16") if str(options.get(name)).lower() == "true"}
    return stated


def _on_gpus(reading: Reading, gpus: int | None) -> Reading:
    """The reading with the GPUs that a launcher starts, and the data parallelism that they leave."""
    fields = dict(reading.fields)
    degrees = {name: fields[name] for name in ("tp", "pp", "cp")}
    fields |= {"gpus": gpus or fields["gpus"], "dp": fields["dp"] or _data_parallel(gpus, degrees)}
    if fields["global_batch"] is None and fields["micro_batch"] and fields["dp"] and fields.get("accumulation"):
        fields["global_batch"] = fields["micro_batch"] * fields["dp"] * fields["accumulation"]
    findings = (*reading.findings, *training_findings(fields, None, None, None))
    return replace(reading, fields=fields, findings=tuple(dict.fromkeys(findings)))


def read_deepspeed(document: Mapping[str, Any], options: Options | None = None) -> Reading:
    """DeepSpeed's JSON (deepspeed.ai/docs/config-json); `auto` is left to the trainer that reads it."""
    values, options = Values(), options or {}
    zero = mapping_of(document.get("zero_optimization"))
    tensor = mapping_of(document.get("tensor_parallel"))
    fields: dict[str, Any] = {
        "engine": "deepspeed", "model": values.text(options.get("model_name_or_path")), "gpus": None,
        "tp": values.integer(tensor.get("autotp_size"), 1), "pp": 1,
        "cp": values.integer(document.get("sequence_parallel_size"), 1),
        "ep": 1, "dp": None, "vpp": None,
        "micro_batch": values.integer(document.get("train_micro_batch_size_per_gpu")),
        "global_batch": values.integer(document.get("train_batch_size")),
        "sequence": values.integer(options.get("max_seq_length", options.get("model_max_length"))),
        "precision": next((name for name in ("bf16", "fp16") if below(document, name).get("enabled") is True), None),
        "zero_stage": values.integer(zero.get("stage"), 0),
        "offload": any(mapping_of(zero.get(key)).get("device") in ("cpu", "nvme") for key in _OFFLOADED),
    }  # fmt: skip
    findings = []
    if all(mapping_of(document.get(name)).get("enabled") is True for name in ("bf16", "fp16")):
        findings.append("bf16 and fp16 contradict each other")
    steps = values.integer(document.get("gradient_accumulation_steps"), 1) or 1
    batch, micro = fields["global_batch"], fields["micro_batch"]
    if batch and micro and batch % (micro * steps):
        findings.append(f"train batch {batch} does not divide by micro batch {micro} x accumulation {steps}")
    offloads = mapping_of(zero.get("offload_optimizer")).get("device") in ("cpu", "nvme")
    beside = {"zero_stage": fields["zero_stage"], "offload_optimizer": offloads}
    return training_reading(fields, values, findings, beside)


def read_llama_factory(document: Mapping[str, Any]) -> Reading:
    """LLaMA-Factory's YAML (`src/llamafactory/hparams`)."""
    values = Values()
    micro = values.integer(document.get("per_device_train_batch_size"))
    fields: dict[str, Any] = {
        "engine": "llama-factory", "model": values.text(document.get("model_name_or_path")), "gpus": None,
        "tp": 1, "pp": 1, "cp": values.integer(document.get("sequence_parallel_size"), 1), "ep": 1, "dp": None,
        "vpp": None,
        "micro_batch": micro, "global_batch": None, "sequence": values.integer(document.get("cutoff_len")),
        "precision": "bf16" if document.get("bf16") is True else "fp16" if document.get("fp16") is True else None,
        "accumulation": values.integer(document.get("gradient_accumulation_steps"), 1),
    }  # fmt: skip
    return training_reading(fields, values)
