"""RL post-training: arguments of slime and OpenRLHF, and what summaries of all RL runs share."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from planner.engines.serving.registry import SERVING_ENGINES
from planner.importing.formats.megatron import UNPRICED as MEGATRON_UNPRICED
from planner.importing.formats.megatron import dropout_of
from planner.importing.formats.megatron_runs import megatron_degrees
from planner.importing.launches import Launch
from planner.importing.options import Options, read_options, stated
from planner.importing.records import UNPRICED, Reading
from planner.importing.values import Values


def rl_reading(
    fields: Mapping[str, Any], values: Values, findings: Sequence[str], beside: Mapping[str, Any] | None = None
) -> Reading:
    """An RL run in the order of summaries."""
    order = ("engine", "algorithm", "model", "gpus", "colocated", "train", "rollout", "prompts", "minibatch",
             "max_prompt", "max_response")  # fmt: skip
    ordered = {"kind": "rl"} | {key: fields.get(key) for key in order}
    return Reading(ordered, tuple(dict.fromkeys(values.unresolved)), tuple(findings), beside=dict(beside or {}))


def rl_findings(gpus: int | None, a_node: int | None, rollout_tp: int | None, ranks: int | None) -> list[str]:
    """Degrees that span nodes or do not divide the GPUs."""
    findings = []
    if rollout_tp and a_node and rollout_tp > a_node:
        nodes = math.ceil(rollout_tp / a_node)
        words = {2: "two", 3: "three", 4: "four"}
        findings.append(f"rollout tensor parallelism {rollout_tp} spans {words.get(nodes, nodes)} nodes of {a_node}")
    if rollout_tp and gpus and (rollout_tp > gpus or gpus % rollout_tp):
        findings.append(f"rollout tensor parallelism {rollout_tp} does not divide {gpus} GPUs")
    if ranks and gpus and ranks > gpus:
        findings.append(f"the training degrees need {ranks} GPUs, the script starts {gpus}")
    elif ranks and gpus and gpus % ranks:
        findings.append(f"the training degrees, {ranks} ranks, do not divide {gpus} GPUs")
    return findings


def product_of(train: Mapping[str, Any], keys: tuple[str, ...]) -> int | None:
    """The product of these degrees of training; None where one is open."""
    product = 1
    for key in keys:
        degree = train.get(key, 1)
        if not isinstance(degree, int):
            return None
        product *= degree
    return product


def read_slime(launch: Launch) -> Reading:
    """Arguments of slime (`slime/utils/arguments.py`): Megatron-LM trains, SGLang rolls out."""
    values = Values()
    options = read_options(launch.words)
    nodes, a_node = (
        values.integer(options.get("actor_num_nodes"), 1),
        values.integer(options.get("actor_num_gpus_per_node"), 8),
    )
    colocated = values.switch(options.get("colocate")) or False
    actors = nodes * a_node if nodes and a_node else None
    rollout_gpus = values.integer(options.get("rollout_num_gpus"))
    gpus = actors if colocated else actors + rollout_gpus if actors and rollout_gpus else None
    degrees = megatron_degrees(options, values)
    offload = bool(options.get("optimizer_cpu_offload") or options.get("offload") or options.get("offload_train"))
    tp = values.integer(options.get("rollout_num_gpus_per_engine"), 1)
    estimator = str(options.get("advantage_estimator", "grpo"))
    fields = {
        "engine": "slime",
        "algorithm": estimator,
        "model": values.text(options.get("hf_checkpoint")),
        "gpus": gpus,
        "colocated": colocated,
        "train": {"engine": "megatron", **degrees, "offload": offload},
        "rollout": {"engine": "sglang", "tp": tp, "samples": values.integer(options.get("n_samples_per_prompt"), 1)},
        "prompts": values.integer(options.get("rollout_batch_size")),
        "minibatch": _slime_batch(options, values),
        "max_prompt": values.integer(options.get("rollout_max_prompt_len")),
        "max_response": values.integer(options.get("rollout_max_response_len")),
    }
    ranks = product_of(degrees, ("tp", "pp", "cp"))
    findings = rl_findings(gpus if colocated else rollout_gpus, a_node, tp, None) + rl_findings(
        actors, a_node, None, ranks
    )
    return rl_reading(fields, values, findings, _slime_beside(options, values))


def _slime_beside(options: Options, values: Values) -> dict[str, Any]:
    """What summaries have no field for; without a KL loss or penalty slime loads no reference."""
    return {
        "reference": options.get("use_kl_loss") is True or bool(values.number(options.get("kl_coef"))),
        "max_running": values.integer(options.get("sglang_max_running_requests")),
        "memory_utilisation": values.number(options.get("sglang_mem_fraction_static")),
        "dropout": dropout_of(options),
        UNPRICED: stated(options, _SLIME_UNPRICED),
    }


_SLIME_UNPRICED = (
    *(f"sglang_{name}" for name in SERVING_ENGINES["sglang"].unpriced),
    *(
        "sglang_enable_dp_attention",
        "sglang_expert_parallel_size",
        "sglang_ep_size",
        "sglang_speculative_algorithm",
        "sglang_quantization",
        "sglang_kv_cache_dtype",
    ),
    *("sglang_disable_cuda_graph", "prefill_num_servers", "rollout_external"),
    *MEGATRON_UNPRICED,
)
"""Flags that change times or memory, and that no RL plan has: SGLang's behind their prefix, and Megatron-LM's."""


def _slime_batch(options: Options, values: Values) -> int | None:
    """Samples of an optimizer step: as set, else those of a rollout over its steps."""
    batch = values.integer(options.get("global_batch_size"))
    steps, prompts = (
        values.integer(options.get("num_steps_per_rollout")),
        values.integer(options.get("rollout_batch_size")),
    )
    if batch is not None or not steps or not prompts:
        return batch
    samples = values.integer(options.get("n_samples_per_prompt"), 1)
    return None if samples is None else prompts * samples // steps


_OPENRLHF = {
    "actor.model_name_or_path": "pretrain", "train.colocate_all": "colocate_all_models",
    "rollout.batch_size": "rollout_batch_size", "rollout.n_samples_per_prompt": "n_samples_per_prompt",
    "rollout.max_new_tokens": "generate_max_len", "train.batch_size": "train_batch_size",
    "algo.advantage.estimator": "advantage_estimator", "data.prompt_max_len": "prompt_max_len",
    "ds.adam_offload": "adam_offload", "train.colocate_actor_ref": "colocate_actor_ref",
    "algo.kl.init_coef": "init_kl_coef", "vllm.gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "train.max_epochs": "max_epochs",
}  # fmt: skip
"""Flags of later releases, in groups with dots, by their names of old."""


def read_openrlhf(launch: Launch) -> Reading:
    """Arguments of OpenRLHF (`openrlhf/cli/train_ppo_ray.py`): DeepSpeed trains, vLLM rolls out."""
    values = Values()
    options = read_options(launch.words)
    options = {_OPENRLHF.get(name, name.replace(".", "_")): value for name, value in options.items()}
    nodes, a_node = (
        values.integer(options.get("actor_num_nodes"), 1),
        values.integer(options.get("actor_num_gpus_per_node"), 8),
    )
    tp, engines = (
        values.integer(options.get("vllm_tensor_parallel_size"), 1),
        values.integer(options.get("vllm_num_engines")),
    )
    colocated = values.switch(options.get("colocate_all_models")) or False
    actors = nodes * a_node if nodes and a_node else None
    gpus = actors if colocated else None
    if not colocated and actors is not None and engines and tp:
        gpus = actors + engines * tp + _openrlhf_others(options, values)
    estimator = values.text(options.get("advantage_estimator")) or "gae"
    fields = {
        "engine": "openrlhf",
        "algorithm": {"gae": "ppo", "group_norm": "grpo"}.get(estimator, estimator),
        "model": values.text(options.get("pretrain")),
        "gpus": gpus,
        "colocated": colocated,
        "train": {
            "engine": "deepspeed",
            **_openrlhf_degrees(options, values),
            "offload": bool(options.get("adam_offload")),
        },
        "rollout": {"engine": "vllm", "tp": tp, "samples": values.integer(options.get("n_samples_per_prompt"), 1)},
        "prompts": values.integer(options.get("rollout_batch_size")),
        "minibatch": values.integer(options.get("train_batch_size")),
        "max_prompt": values.integer(options.get("prompt_max_len")),
        "max_response": values.integer(options.get("generate_max_len")),
    }
    return rl_reading(
        fields, values, rl_findings(gpus if colocated else None, a_node, tp, None), _openrlhf_beside(options, values)
    )


def _openrlhf_beside(options: Options, values: Values) -> dict[str, Any]:
    """What summaries have no field for, with the defaults of `train_ppo_ray.py`; a KL of no weight has no reference."""
    weight = values.number(options.get("init_kl_coef"))
    share = values.number(options.get("vllm_gpu_memory_utilization"))
    return {
        "reference": weight is None or weight > 0,
        "memory_utilisation": 0.95 if share is None else share,
        "epochs": values.integer(options.get("max_epochs"), 1),
    }


def _openrlhf_degrees(options: Options, values: Values) -> dict[str, int]:
    """Degrees above 1 of DeepSpeed's tensor parallelism and of ring attention."""
    names = {"tp": ("ds_tensor_parallel_size",), "cp": ("ds_ring_attn_size", "ring_attn_size")}
    stated = {key: next((options[n] for n in own if n in options), None) for key, own in names.items()}
    degrees = {key: values.integer(text, 1) or 1 for key, text in stated.items()}
    return {key: size for key, size in degrees.items() if size > 1}


def _openrlhf_others(options: Options, values: Values) -> int:
    """GPUs of models beside the actor that do not share those of another (`--colocate_actor_ref` and so on)."""

    def gpus(name: str) -> int:
        nodes = values.integer(options.get(f"{name}_num_nodes"), 0) or 0
        return nodes * (values.integer(options.get(f"{name}_num_gpus_per_node"), 0) or 0)

    total = 0 if values.switch(options.get("colocate_actor_ref")) else gpus("ref")
    critic, reward = gpus("critic"), gpus("reward")
    return total + (max(critic, reward) if values.switch(options.get("colocate_critic_reward")) else critic + reward)
