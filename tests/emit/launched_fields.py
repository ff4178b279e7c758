"""What launch files of training engines start, read without the code that wrote them, beside what a plan decided.

`launched` reads the files of one engine as a mapping of plain fields; `planned` states the same fields of a plan. What
an engine's files have no word for is in neither: ranks of one node in order, and what its program does by itself.
"""

import ast
import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.options import TrainOptions
from planner.models.architecture import Architecture, MoeFfn

Fields = dict[str, Any]
MEGATRON_MODULES = {
    "core_attn": "core_attention",
    "mlp": "mlp",
    "moe": "moe",
    "moe_act": "moe_activation",
    "layernorm": "layernorm",
    "mla_up_proj": "mla_up_projection",
}
CONTEXT = {"p2p": "ring", "all_gather": "all_gather", "a2a": "ulysses"}
FP8 = {("hybrid", "tensorwise"): "fp8", ("e4m3", "blockwise"): "fp8_block", ("e4m3", "mxfp8"): "mxfp8"}
BRIDGE_PRECISIONS = {
    "bf16_mixed": "bf16",
    "bf16_with_fp8_current_scaling_mixed": "fp8",
    "bf16_with_fp8_subchannel_scaling_mixed": "fp8_block",
    "bf16_with_mxfp8_mixed": "mxfp8",
    "bf16_with_nvfp4_mixed": "nvfp4",
}
TITAN_SCHEDULES = {"1F1B": "1f1b", "Interleaved1F1B": "interleaved", "ZBVZeroBubble": "zb_v", "DualPipeV": "dualpipev"}


def launched(engine: str, files: Mapping[str, str]) -> Fields:
    """The fields that the files of this engine start."""
    flags = flags_of(files["launch.sh"])
    gpus = _number(flags, "--nproc-per-node") * _number(flags, "--nnodes")
    read = {
        "megatron-lm": lambda: _megatron_lm(flags),
        "megatron-bridge": lambda: _bridge(yaml.safe_load(files["overrides.yaml"]), files["train.py"]),
        "torchtitan": lambda: _torchtitan(files["plan.py"]),
        "deepspeed": lambda: _deepspeed(json.loads(files["ds_config.json"]), gpus),
        "nemo-automodel": lambda: _automodel(yaml.safe_load(files["recipe.yaml"])),
    }
    return {"gpus": gpus, **read[engine]()}


def flags_of(script: str) -> dict[str, str]:
    """The flags of the command that a script starts, values joined by spaces."""
    words = shlex.split(script.split("exec torchrun", 1)[1].replace("\\\n", " "))
    flags: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            flags[name] = [value] if value else []
        elif name:
            flags[name].append(word)
    return {flag: " ".join(values) for flag, values in flags.items()}


def stages_of_layout(text: str) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Layers and parts of every stage of Megatron-Core's layout."""
    while match := re.search(r"\(([^()]*)\)\*(\d+)", text):
        text = text[: match.start()] + match[1] * int(match[2]) + text[match.end() :]
    stages = []
    for stage in text.split("|"):
        layers = sum(int(count or 1) for count in re.findall(r"t(?:\*(\d+))?", stage))
        names = {"E": "embedding", "m": "mtp", "L": "loss"}
        stages.append((layers, tuple(name for letter, name in names.items() if letter in stage)))
    return tuple(stages)


def _number(flags: Mapping[str, str], name: str, otherwise: int = 1) -> int:
    return int(flags[name].split()[0]) if name in flags else otherwise


def _megatron(read: Mapping[str, Any]) -> Fields:
    """Fields of both launchers of Megatron-Core, by the names of its configuration; lists as lists."""
    pp, layout = int(read.get("pipeline_model_parallel_size", 1)), read.get("pipeline_model_parallel_layout")
    stages = stages_of_layout(layout) if layout else ()
    kind = read.get("recompute_granularity") or "none"
    some = read.get("recompute_method") == "block"
    again = [MEGATRON_MODULES[name] for name in read.get("recompute_modules") or ()]
    cp = int(read.get("context_parallel_size", 1))
    flexible = read.get("moe_token_dispatcher_type") == "flex"
    sent = read.get("moe_flex_dispatcher_backend") if flexible else read.get("moe_token_dispatcher_type")
    return {
        "tp": int(read.get("tensor_model_parallel_size", 1)),
        "pp": pp,
        "cp": cp,
        "ep": int(read.get("expert_model_parallel_size", 1)),
        "moe_tp": int(read.get("expert_tensor_parallel_size") or 1),
        "vpp": len(stages) // pp if stages else 1,
        "stages": stages if pp > 1 else (),
        "sequence_parallel": bool(read.get("sequence_parallel")),
        "context_parallel": CONTEXT[read["cp_comm_type"]] if cp > 1 else None,
        "recompute": (kind, tuple(sorted(again))),
        "recompute_layers": int(read["recompute_num_layers"]) if some else 0,
        "dispatcher": sent,
        "capacity": read.get("moe_expert_capacity_factor"),
        "padded": bool(read.get("moe_pad_expert_input_to_capacity")),
        "cuda_graphs": tuple(sorted(read.get("cuda_graph_scope") or ())),
        "tp_comm": bool(read.get("tp_comm_overlap")),
        "ep_comm": bool(read.get("overlap_moe_expert_parallel_comm")),
        "dropout": (float(read["hidden_dropout"]), float(read["attention_dropout"])),
        "loss_in_16_bits": bool(read["cross_entropy_loss_fusion"]) and read["cross_entropy_fusion_impl"] == "te",
    }


def _megatron_lm(flags: Mapping[str, str]) -> Fields:
    lists = ("recompute_modules", "cuda_graph_scope")
    names = {flag[2:].replace("-", "_"): value for flag, value in flags.items()}
    read: Fields = {name: value.split() if name in lists else value or True for name, value in names.items()}
    if "moe_expert_capacity_factor" in read:
        read["moe_expert_capacity_factor"] = float(read["moe_expert_capacity_factor"])
    sharding = {"optim_grads": 2, "optim_grads_params": 3}
    stage = 1 if "--use-distributed-optimizer" in flags or flags["--optimizer"] == "dist_muon" else 0
    stage = sharding[flags["--data-parallel-sharding-strategy"]] if "--use-megatron-fsdp" in flags else stage
    fp8 = flags.get("--fp8-format", ""), flags.get("--fp8-recipe", "")
    return {
        **_megatron(read),
        "micro_batch": _number(flags, "--micro-batch-size"),
        "global_batch": _number(flags, "--global-batch-size"),
        "sequence_tokens": _number(flags, "--seq-length"),
        "zero_stage": stage,
        "instances": _number(flags, "--num-distributed-optimizer-instances"),
        "precision": "nvfp4" if "--fp4-format" in flags else FP8[fp8] if any(fp8) else "bf16",
        "optimizer": {"adam": "adamw", "dist_muon": "muon"}[flags["--optimizer"]],
        "grad_reduce": "--overlap-grad-reduce" in flags,
        "param_gather": "--overlap-param-gather" in flags,
        "p2p": "--no-overlap-p2p-communication" not in flags,
        "optimizer_on_host": "--optimizer-cpu-offload" in flags,
        "moved_layers": _number(flags, "--cpu-offloading-num-layers", 0),
        "in_network": "--use-sharp" in flags,
        "save_interval": _number(flags, "--save-interval", 0),
        "loads_weights": "--pretrained-checkpoint" in flags,
        "window": flags.get("--window-size"),
        "gradients": "bf16" if "--grad-reduce-in-bf16" in flags else "fp32",
    }


def _bridge(overrides: Mapping[str, Any], program: str) -> Fields:
    model, ddp, dist = overrides["model"], overrides["ddp"], overrides["dist"]
    sharding = {"optim_grads": 2, "optim_grads_params": 3}
    stage = int(ddp["use_distributed_optimizer"])
    stage = sharding[ddp["data_parallel_sharding_strategy"]] if dist["use_megatron_fsdp"] else stage
    (precision,) = re.findall(r"PRECISION = '(\w+)'", program)
    return {
        **_megatron(model),
        "micro_batch": overrides["train"]["micro_batch_size"],
        "global_batch": overrides["train"]["global_batch_size"],
        "sequence_tokens": model["seq_length"],
        "zero_stage": stage,
        "instances": ddp.get("num_distributed_optimizer_instances", 1),
        "precision": BRIDGE_PRECISIONS[precision],
        "optimizer": {"adam": "adamw"}[overrides["optimizer"]["optimizer"]],
        "grad_reduce": ddp["overlap_grad_reduce"],
        "param_gather": ddp["overlap_param_gather"],
        "p2p": bool(model.get("overlap_p2p_comm")) or not model.get("virtual_pipeline_model_parallel_size"),
        "optimizer_on_host": overrides["optimizer"]["optimizer_cpu_offload"],
        "moved_layers": model.get("cpu_offloading_num_layers", 0),
        "in_network": bool(dist.get("use_sharp")),
        "save_interval": overrides.get("checkpoint", {}).get("save_interval", 0),
        "loads_weights": "pretrained_checkpoint = " in program,
        "adapters": _adapters(program),
        "window": model.get("window_size"),
        "gradients": "fp32" if "grad_reduce_in_fp32 = True" in program else "bf16",
    }


def _adapters(program: str) -> int:
    match = re.search(r"LoRA\(.*dim=(\d+)", program)
    return int(match[1]) if match else 0


def _torchtitan(text: str) -> Fields:
    """Keywords of the calls in the module, and its list of stages."""
    tree = ast.parse(text)
    words: Fields = {}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        for word in call.keywords:
            if isinstance(word.value, ast.Constant):
                words[str(word.arg)] = word.value.value
    stages: Any = next(
        ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "STAGES"
    )
    parts = [
        (
            sum(name.startswith("layers.") for name in names),
            (*["embedding"] * ("tok_embeddings" in names), *["loss"] * ("lm_head" in names)),
        )
        for names in stages or ()
    ]
    pp, shard = words["pipeline_parallel_degree"], words["data_parallel_shard_degree"]
    cp = words["context_parallel_degree"]
    whole = shard * words["data_parallel_replicate_degree"]
    (again,) = re.findall(r"activation_checkpoint=(\w+)", text)
    micro = words["pipeline_parallel_microbatch_size"] if pp > 1 else words["local_batch_size"]
    sharded = shard * cp > 1
    stage = {"never": 2, "always": 3}.get(words["fsdp_reshard_after_forward"], 0)
    converter = re.findall(r"(Float8|MXFP8)LinearConverter.Config", text)
    return {
        "tp": words["tensor_parallel_degree"],
        "pp": pp,
        "cp": cp,
        "dp": whole,
        "ep": words["expert_parallel_degree"],
        "vpp": len(parts) // pp if parts else 1,
        "stages": tuple(parts),
        "schedule": TITAN_SCHEDULES[words["pipeline_parallel_schedule"]] if pp > 1 else None,
        "sequence_parallel": words["enable_sequence_parallel"] and words["tensor_parallel_degree"] > 1,
        "micro_batch": micro,
        "global_batch": words["global_batch_size"],
        "sequence_tokens": words["seq_len"],
        "zero_stage": stage if sharded else 0,
        "instances": words["data_parallel_replicate_degree"] if sharded else 1,
        "recompute": ({"None": "none", "SelectiveAC": "selective", "FullAC": "full"}[again], None),
        "precision": {"Float8": "fp8", "MXFP8": "mxfp8"}[converter[0]] if converter else "bf16",
        "optimizer_on_host": words["enable_cpu_offload"],
        "tp_comm": words["enable_async_tensor_parallel"],
    }


def _deepspeed(config: Mapping[str, Any], gpus: int) -> Fields:
    zero = config["zero_optimization"]
    tp, cp = config.get("tensor_parallel", {}).get("autotp_size", 1), config.get("sequence_parallel_size", 1)
    micro, steps = config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]
    assert config["train_batch_size"] == micro * steps * gpus // (tp * cp), "DeepSpeed asserts this"
    return {
        "tp": tp,
        "cp": cp,
        "dp": gpus // (tp * cp),
        "micro_batch": micro,
        "global_batch": config["train_batch_size"],
        "zero_stage": zero["stage"],
        "grad_reduce": zero.get("overlap_comm"),
        "precision": "bf16" if config["bf16"]["enabled"] else None,
        "optimizer_on_host": "offload_optimizer" in zero,
    }


def _automodel(recipe: Mapping[str, Any]) -> Fields:
    sizes, config = recipe["distributed"], recipe["distributed_config"]
    again = {False: "none", "selective": "selective", "full": "full"}[config["activation_checkpointing"]]
    return {
        "tp": sizes["tp_size"],
        "cp": sizes["cp_size"],
        "dp": sizes["dp_size"],
        "instances": sizes["dp_replicate_size"],
        "micro_batch": recipe["step_scheduler"]["local_batch_size"],
        "global_batch": recipe["step_scheduler"]["global_batch_size"],
        "sequence_tokens": recipe["packed_sequence"]["packed_sequence_size"] or recipe["dataset"]["seq_length"],
        "zero_stage": 3 if config["reshard_after_forward"] else 2,
        "sequence_parallel": config["sequence_parallel"],
        "recompute": (again, None),
        "optimizer_on_host": "offload_policy" in config,
        "param_gather": config["enable_fsdp2_prefetch"],
        "adapters": recipe.get("peft", {}).get("dim", 0),
        "loads_weights": recipe["model"]["_target_"].endswith("from_pretrained"),
    }


def planned(decision: TrainDecision, options: TrainOptions, arch: Architecture) -> Fields:
    """The same fields, as the plan has them."""
    shape, ranks = decision.degrees, decision.degrees.dp * decision.degrees.cp
    runs = [run for run in decision.stage_runs for _ in range(run.stages)]
    first = next(run for run in runs if run.num_layers)
    experts = any(isinstance(layer.ffn, MoeFfn) for layer in arch.layers)
    load, kind = options.experts, first.recompute.granularity
    whole = all(run.recompute.num_layers == run.num_layers for run in runs)
    layers = max(run.recompute.num_layers for run in runs) if kind == "full" and not whole else 0
    return {
        "gpus": shape.tp * shape.cp * shape.pp * shape.dp,
        **{name: getattr(shape, name) for name in ("tp", "cp", "pp", "dp", "ep", "moe_tp", "vpp")},
        "stages": tuple((run.num_layers, run.parts) for run in runs) if shape.pp > 1 else (),
        "schedule": decision.schedule if shape.pp > 1 else None,
        "sequence_parallel": decision.sequence_parallel,
        "context_parallel": decision.context_parallel if shape.cp > 1 else None,
        "micro_batch": decision.micro_batch,
        "global_batch": options.global_batch,
        "sequence_tokens": options.sequence_tokens,
        "zero_stage": decision.zero_stage,
        "instances": ranks // (decision.zero_shards or ranks) if decision.zero_stage else 1,
        "recompute": (kind, tuple(sorted(first.recompute.modules))),
        "recompute_layers": layers,
        "precision": decision.precision,
        "optimizer": options.optimizer,
        "dispatcher": decision.dispatcher if experts else None,
        "capacity": load.capacity if load else None,
        "padded": bool(load and load.padded),
        "cuda_graphs": tuple(sorted(decision.cuda_graphs)),
        "tp_comm": "tp_comm" in decision.overlap and shape.tp > 1,
        "ep_comm": "ep_comm" in decision.overlap and shape.ep > 1,
        "grad_reduce": "grad_reduce" in decision.overlap,
        "param_gather": "param_gather" in decision.overlap and decision.zero_stage > 0,
        "p2p": "p2p" in decision.overlap or shape.pp == 1 or shape.vpp == 1,
        "optimizer_on_host": "optimizer" in decision.offload,
        "moved_layers": (decision.moved_layers or arch.num_layers - 1) if "activations" in decision.offload else 0,
        "in_network": options.in_network_reduction,
        "loss_in_16_bits": True,
        "dropout": (options.dropout.hidden, options.dropout.attention) if options.dropout else (0.0, 0.0),
        "save_interval": decision.checkpointing.interval_steps if decision.checkpointing else 0,
        "loads_weights": options.task != "pretrain",
        "adapters": options.lora_rank if options.task == "lora" else 0,
        "gradients": options.reduce_gradients or "fp32",
        "window": f"({options.window_tokens - 1}, 0)" if options.window_tokens else None,
    }


def differences(
    engine: str, files: Mapping[str, str], decision: TrainDecision, options: TrainOptions, arch: Architecture
) -> dict[str, tuple[object, object]]:
    """Fields that are launched otherwise than planned, as (planned, launched)."""
    read, wanted = launched(engine, files), planned(decision, options, arch)
    if read.get("recompute", (None, ()))[1] is None:  # engines that recompute by operator name no modules
        wanted["recompute"] = (wanted["recompute"][0], None)
    if engine == "torchtitan" and wanted["dp"] * wanted["cp"] == 1:
        wanted["zero_stage"] = 0  # nothing to shard
    return {name: (wanted[name], value) for name, value in read.items() if name in wanted and wanted[name] != value}
