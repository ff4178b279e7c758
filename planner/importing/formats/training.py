"""Training runs by configuration: device meshes, NeMo AutoModel, DeepSpeed's JSON and LLaMA-Factory's YAML."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from planner.documents.read import parse_document
from planner.engines.training import TRAINING_ENGINES
from planner.importing.formats.runs import launcher_gpus, on_gpus, training_findings, training_reading
from planner.importing.launches import Launch
from planner.importing.options import Options, read_options, stated
from planner.importing.records import UNPRICED, Reading
from planner.importing.values import Values, below, list_of, mapping_of


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
_ALL_SHARDED = 3  # the stage of ZeRO
_ZERO_UNPRICED = ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients", "mics_shard_size")
_FACTORY_UNPRICED = ("quantization_bit", "enable_liger_kernel", "use_unsloth", "use_galore", "freeze_trainable_layers")


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
        return on_gpus(read_automodel(document), gpus)
    if launch.engine == "llama-factory":
        flags = {key: value for key, value in options.items() if key}
        return on_gpus(read_llama_factory({**document, **flags}), gpus)
    return on_gpus(read_deepspeed({**_trainer(options), **document}, options), gpus)


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
    return training_reading(
        fields, values, training_findings(fields, None, None, None), _automodel_decisions(document, fields, values)
    )


def _automodel_decisions(document: Mapping[str, Any], fields: Mapping[str, Any], values: Values) -> dict[str, Any]:
    """What FSDP2 and adapters are told (nemo_automodel/components/distributed/config.py: `FSDP2Config`)."""
    sizes, config, peft = (mapping_of(document.get(key)) for key in ("distributed", "distributed_config", "peft"))
    told = {**sizes, **config}
    again = told.get("activation_checkpointing", False)
    replicas, dp = values.integer(sizes.get("dp_replicate_size"), 1) or 1, fields["dp"]
    flags = {"param_gather": "enable_fsdp2_prefetch", "tp_comm": "enable_async_tensor_parallel"}
    asked = [name for name, flag in flags.items() if values.switch(told.get(flag))]
    tensor = (fields["tp"] or 1) > 1
    return {
        "zero_stage": 2 if values.switch(told.get("reshard_after_forward")) is False else 3,
        "zero_shards": dp * (fields["cp"] or 1) // replicas if dp and replicas > 1 else None,
        "recompute": "selective" if again == "selective" else "full" if again in (True, "full") else "none",
        "sequence_parallel": values.switch(told.get("sequence_parallel")) is True if tensor else None,
        "offload_optimizer": bool(told.get("offload_policy")),
        "overlap": [*TRAINING_ENGINES["nemo-automodel"].always_overlaps, *asked],
        "task": "lora" if peft else "sft",
        "lora_rank": values.integer(peft.get("dim"), 8) if peft else None,
        UNPRICED: ["gradients that are scattered once a step"] if told.get("defer_fsdp_grad_sync") is not False else [],
    }


def _trainer(options: Options) -> dict[str, Any]:
    """Flags of transformers by the names that DeepSpeed has for them."""
    micro = options.get("per_device_train_batch_size")
    stated: dict[str, Any] = {} if micro is None else {"train_micro_batch_size_per_gpu": micro}
    stated |= {name: {"enabled": True} for name in ("bf16", "fp16") if str(options.get(name)).lower() == "true"}
    return stated


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
    again = values.switch(options.get("gradient_checkpointing"))
    beside = {
        "zero_stage": fields["zero_stage"],
        "offload_optimizer": offloads,
        "overlap": _deepspeed_overlap(zero, fields["zero_stage"], values),
        "recompute": None if again is None else "full" if again else "none",
        UNPRICED: list(_deepspeed_unpriced(document, zero)),
    }
    return training_reading(fields, values, findings, beside)


def _deepspeed_overlap(zero: Mapping[str, Any], stage: int | None, values: Values) -> list[str]:
    """What runs beside computing: gradients too where they are asked to, by default with ZeRO 3 alone
    (deepspeed/runtime/zero/config.py: `overlap_comm`)."""
    asked = values.switch(zero.get("overlap_comm"))
    beside = stage == _ALL_SHARDED if asked is None else asked
    return [*TRAINING_ENGINES["deepspeed"].always_overlaps, *(["grad_reduce"] if beside else [])]


def _deepspeed_unpriced(document: Mapping[str, Any], zero: Mapping[str, Any]) -> Iterator[str]:
    """Settings that change a step and that no plan has, by their own names."""
    if mapping_of(zero.get("offload_param")).get("device") in ("cpu", "nvme"):
        yield "offload_param"
    yield from (name for name in _ZERO_UNPRICED if zero.get(name) not in (None, False, 1))
    again = mapping_of(document.get("activation_checkpointing"))
    yield from (name for name in ("cpu_checkpointing", "partition_activations") if again.get(name) is True)
    yield from (name for name in ("communication_data_type", "compression_training") if document.get(name))


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
    adapters = str(document.get("finetuning_type", "lora")) == "lora"
    stage = str(document.get("stage", "sft"))
    tuned = "lora" if adapters else "pretrain" if stage == "pt" else "sft"
    beside = {
        "task": tuned,
        "lora_rank": values.integer(document.get("lora_rank"), 8) if adapters else None,
        "recompute": "none" if values.switch(document.get("disable_gradient_checkpointing")) else "full",
        UNPRICED: [
            *([f"stage {stage}"] if stage not in ("pt", "sft") else []),
            *stated(dict(document), _FACTORY_UNPRICED),
        ],
    }
    return training_reading(fields, values, beside=beside)
