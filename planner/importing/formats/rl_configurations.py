"""RL post-training: AReaL's and NeMo-RL's YAML."""

import math
import re
from collections.abc import Mapping
from typing import Any

from planner.importing.formats.post_training import product_of, rl_findings, rl_reading
from planner.importing.records import Reading
from planner.importing.values import Values, mapping_of

_ALLOCATED = re.compile(r"(?:([a-z0-9_]+)(?:\[[\w]+\])?:)?((?:[dtpce]\d+)+)")


def allocation(text: str) -> tuple[str | None, dict[str, int]]:
    """`sglang:d4p1t1` as the engine and the degrees of AReaL's allocation modes."""
    match = _ALLOCATED.fullmatch(text.strip())
    if match is None:
        return None, {}
    return match[1], {letter: int(count) for letter, count in re.findall(r"([dtpce])(\d+)", match[2])}


def read_areal(document: Mapping[str, Any]) -> Reading:
    """AReaL's YAML (`areal/api/cli_args.py`): backends as `engine:d4p1t1`, or both sides in `allocation_mode`."""
    values = Values()
    cluster, actor, rollout = (mapping_of(document.get(key)) for key in ("cluster", "actor", "rollout"))
    sides = str(document.get("allocation_mode", "")).split("+")
    generated, trained = str(rollout.get("backend") or sides[0]), str(actor.get("backend") or sides[-1])
    (engine, generation), (trainer, training) = allocation(generated), allocation(trained)
    nodes, a_node = values.integer(cluster.get("n_nodes"), 1), values.integer(cluster.get("n_gpus_per_node"))
    gpus = nodes * a_node if nodes and a_node else None
    sizes = [math.prod(count for letter, count in side.items() if letter in "dtpc") for side in (generation, training)]
    settings, dataset = mapping_of(document.get("gconfig")), mapping_of(document.get("train_dataset"))
    prompts, parts = values.integer(dataset.get("batch_size")), values.integer(actor.get("ppo_n_minibatches"), 1)
    groups = mapping_of(actor.get("reward_norm")).get("mean_level") == "group"
    train: dict[str, Any] = {"engine": trainer or "fsdp"}
    train |= {key: training.get(letter, 1) for key, letter in (("tp", "t"), ("pp", "p"), ("dp", "d"))}
    fields = {
        "engine": "areal",
        "algorithm": "ppo" if document.get("critic") else "grpo" if groups else None,
        "model": values.text(actor.get("path")),
        "gpus": gpus,
        "colocated": gpus is not None and sum(sizes) > gpus,
        "train": train | {"offload": document.get("enable_offload") is True},
        "rollout": {
            "engine": engine,
            "tp": generation.get("t", 1),
            "samples": values.integer(settings.get("n_samples"), 1),
        },
        "prompts": prompts,
        "minibatch": prompts // parts if prompts and parts else None,
        "max_prompt": values.integer(dataset.get("max_length")),
        "max_response": values.integer(settings.get("max_new_tokens")),
    }
    findings = (
        [f"rollout and training need {sum(sizes)} GPUs, the cluster has {gpus}"] if gpus and max(sizes) > gpus else []
    )
    served = mapping_of(document.get(engine)) if engine else {}
    weight = values.number(actor.get("kl_ctl"))
    beside = {
        "reference": bool(document.get("ref")) and (weight is None or weight > 0),
        "max_running": values.integer(served.get("max_running_requests", served.get("max_num_seqs"))),
        "memory_utilisation": values.number(served.get("mem_fraction_static", served.get("gpu_memory_utilization"))),
    }
    return rl_reading(fields, values, findings + rl_findings(None, a_node, generation.get("t", 1), None), beside)


def read_nemo_rl(document: Mapping[str, Any]) -> Reading:
    """NeMo-RL's YAML (`examples/configs/*.yaml`): DTensor or Megatron trains, vLLM or Megatron rolls out."""
    values = Values()
    policy, cluster, algorithm = (mapping_of(document.get(key)) for key in ("policy", "cluster", "grpo"))
    generation, megatron, dtensor = (mapping_of(policy.get(k)) for k in ("generation", "megatron_cfg", "dtensor_cfg"))
    backend = values.text(generation.get("backend"))
    own = mapping_of(generation.get(f"{backend}_cfg"))
    nodes, a_node = values.integer(cluster.get("num_nodes")), values.integer(cluster.get("gpus_per_node"))
    gpus = nodes * a_node if nodes and a_node else None
    engine = "megatron" if megatron.get("enabled") is True else "dtensor"
    train = {key: values.integer(megatron.get(f"{name}_parallel_size"), 1) for key, name in _NEMO_DEGREES.items()}
    if engine == "dtensor":
        train = {"tp": values.integer(dtensor.get("tensor_parallel_size"), 1), "pp": 1,
                 "cp": values.integer(dtensor.get("context_parallel_size"), 1), "ep": 1}  # fmt: skip
    prompts = values.integer(algorithm.get("num_prompts_per_step"))
    tp = values.integer(own.get("tensor_parallel_size", own.get("tensor_model_parallel_size")), 1)
    fields = {
        "engine": "nemo-rl",
        "algorithm": "grpo" if algorithm else None,
        "model": values.text(policy.get("model_name")),
        "gpus": gpus,
        "colocated": mapping_of(generation.get("colocated")).get("enabled", True) is True,
        "train": {"engine": engine, **train, "offload": dtensor.get("cpu_offload") is True},
        "rollout": {"engine": backend, "tp": tp,
                    "samples": values.integer(algorithm.get("num_generations_per_prompt"), 1)},
        "prompts": prompts,
        "minibatch": values.integer(policy.get("train_global_batch_size")),
        "max_prompt": values.integer(mapping_of(document.get("data")).get("max_input_seq_length")),
        "max_response": values.integer(generation.get("max_new_tokens")),
    }  # fmt: skip
    ranks = product_of(train, ("tp", "pp", "cp"))
    weight = values.number(mapping_of(document.get("loss_fn")).get("reference_policy_kl_penalty"))
    beside = {
        "reference": weight is None or weight > 0,
        "max_running": values.integer(mapping_of(generation.get("vllm_kwargs")).get("max_num_seqs")),
        "memory_utilisation": values.number(own.get("gpu_memory_utilization")),
    }
    return rl_reading(fields, values, rl_findings(gpus, a_node, tp, ranks), beside)


_NEMO_DEGREES = {"tp": "tensor_model", "pp": "pipeline_model", "cp": "context", "ep": "expert_model"}
