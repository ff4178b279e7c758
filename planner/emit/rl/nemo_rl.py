"""Emits RL plans for NeMo-RL 0.6: YAML on top of `examples/configs/grpo_math_1B.yaml`, Megatron backend.

The script lays it beside that file, which its `defaults` name, and runs `examples/run_grpo.py` on the Ray cluster at
hand.
"""

from typing import Any

from planner.emit.documents import yaml_document
from planner.emit.refusals import raise_all, refuse
from planner.emit.rl.job import FP8_RECIPES, RlJob, folder_script, rl_target, said_of_sleep
from planner.emit.rl.otherwise import cut_otherwise, elsewhere, other_formats, runs_otherwise, sleeps_otherwise
from planner.emit.rl.served import takes_otherwise
from planner.engines.rl_launchers import RL_LAUNCHERS
from planner.kinds.rl.names import BATCH_SAMPLES

_ABLE = RL_LAUNCHERS["nemo-rl"]


def configuration(job: RlJob) -> dict[str, Any]:
    """What the plan changes of the base configuration."""
    options = job.options
    grpo: dict[str, Any] = {
        "num_prompts_per_step": options.prompts,
        "num_generations_per_prompt": options.samples_per_prompt,
        "use_dynamic_sampling": False,
    }
    losses: dict[str, Any] = {"reference_policy_kl_penalty": 0.0} if job.role("reference") is None else {}
    if options.algorithm == "gspo":
        losses |= {"sequence_level_importance_ratios": True, "token_level_loss": False}
    if job.asynchronous:
        flows = {"in_flight_weight_updates": True} if job.in_flight else {}
        grpo["async_grpo"] = {"enabled": True, "max_trajectory_age_steps": job.decision.staleness, **flows}
        losses["use_importance_sampling_correction"] = True
    if job.rollout_weights != "bf16":
        losses["use_importance_sampling_correction"] = True
    return {
        "defaults": "grpo_math_1B.yaml",
        "grpo": grpo,
        "policy": _policy(job),
        "cluster": _cluster(job),
        **({"loss_fn": losses} if losses else {}),
        **_scoring(job),
    }


def _cluster(job: RlJob) -> dict[str, int]:
    """All nodes of the job; one node where all roles lie on it, which NeMo-RL shares out by their GPUs."""
    if _on_one_node(job):
        return {"gpus_per_node": job.gpus, "num_nodes": 1}
    return {"gpus_per_node": job.training.gpus_per_node, "num_nodes": sum(part.nodes for part in job.apart)}


def _on_one_node(job: RlJob) -> bool:
    return len(job.apart) > 1 and job.num_nodes == 1


def _scoring(job: RlJob) -> dict[str, Any]:
    """Environments that score: a reward model on nodes of its own, as `grpo_rm_1B.yaml` has it, or workers of CPUs."""
    reward, calls = job.served("reward"), job.calls
    if reward is None and calls is None:
        return {}
    environments: dict[str, Any] = {}
    if calls is not None:
        environments["math" if calls.by == "rule" else "code"] = {"num_workers": calls.workers}
    if reward is None:
        return {"env": environments}
    nodes, name = job.nodes_of(reward), job.model(reward)
    environments["reward_model"] = {
        "model_name": name,
        "tokenizer": {"name": name},
        "precision": "bfloat16",
        "batch_size": reward.limits[BATCH_SAMPLES],
        "max_model_len": job.longest,
        "resources": {"gpus_per_node": nodes.gpus_per_node, "num_nodes": nodes.nodes},
        "dtensor_cfg": {"enabled": True, "tensor_parallel_size": reward.parallelism.tp},
        "reward_model_cfg": {"enabled": True, "reward_model_type": "bradley_terry"},
    }
    return {"env": environments, "data": {"default": {"env_name": "reward_model"}}}


def _policy(job: RlJob) -> dict[str, Any]:
    shape = job.shape
    return {
        "model_name": job.model(job.actor),
        "train_global_batch_size": job.samples // job.options.minibatches,
        "train_micro_batch_size": 1,
        "logprob_batch_size": 1,
        "max_total_sequence_length": job.longest,
        "make_sequence_length_divisible_by": shape.tp * max(1, 2 * shape.cp if shape.cp > 1 else 1),
        "sequence_packing": {"enabled": True},
        "dtensor_cfg": {"enabled": False},
        "megatron_cfg": {
            "enabled": True,
            "activation_checkpointing": job.recomputes(job.actor),
            "tensor_model_parallel_size": shape.tp,
            "pipeline_model_parallel_size": shape.pp,
            **_end_stages(job),
            "context_parallel_size": shape.cp,
            "expert_model_parallel_size": shape.ep,
            "expert_tensor_parallel_size": shape.moe_tp,
            "sequence_parallel": shape.tp > 1,
            **_fp8(job),
        },
        "generation": _generation(job),
    }


def _end_stages(job: RlJob) -> dict[str, int]:
    ends = job.end_stages(job.actor)
    names = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
    return {} if ends is None else dict(zip(names, ends, strict=True))


def _fp8(job: RlJob) -> dict[str, Any]:
    """Transformer Engine's recipe, as NeMo-RL's `grpo_math_8B_megatron_fp8.yaml` has it; nothing in bf16."""
    if job.precision not in FP8_RECIPES:
        return {}
    values, recipe = FP8_RECIPES[job.precision]
    scales = {"env_vars": {"NVTE_FP8_BLOCK_SCALING_FP32_SCALES": "1"}} if recipe == "blockwise" else {}
    return {"fp8_cfg": {"enabled": True, "fp8": values, "fp8_recipe": recipe, "fp8_param": False}, **scales}


def _generation(job: RlJob) -> dict[str, Any]:
    shape = job.rollout.parallelism
    generation: dict[str, Any] = {
        "backend": "vllm",
        "max_new_tokens": job.response_tokens,
        "vllm_cfg": {
            "async_engine": job.asynchronous or shape.pp > 1,
            "tensor_parallel_size": shape.tp,
            "pipeline_parallel_size": shape.pp,
            "expert_parallel_size": shape.ep,
            "gpu_memory_utilization": job.memory_share(job.rollout),
            "max_model_len": job.longest,
            **({"precision": "fp8", "use_deep_gemm": True} if job.rollout_weights != "bf16" else {}),
        },
        "colocated": {"enabled": job.colocated},
    }
    drafts = _drafts(job)
    generation["vllm_kwargs"] = {"max_num_seqs": job.max_batch, **({"speculative_config": drafts} if drafts else {})}
    if not job.colocated:
        nodes = job.generating
        generation["colocated"]["resources"] = {"gpus_per_node": nodes.gpus_per_node, "num_nodes": nodes.nodes}
    return generation


def _drafts(job: RlJob) -> dict[str, Any]:
    """What vLLM calls the drafter (vllm/config/speculative.py); nothing without drafts."""
    spec, tokens = job.options.speculation, job.rollout.limits.get("draft_tokens")
    if spec is None or tokens is None:
        return {}
    drafter: dict[str, Any] = {"method": "mtp"}
    if spec.method == "model":
        drafter = {"method": "draft_model", "model": job.model_called(str(spec.model))}
    elif spec.method == "stated":
        drafter = {"method": spec.algorithm, **({"model": spec.checkpoint} if spec.checkpoint else {})}
    return {**drafter, "num_speculative_tokens": tokens}


def _files(job: RlJob) -> dict[str, str]:
    node = job.node_gpus
    raise_all(
        *runs_otherwise(job, _ABLE),
        *elsewhere(job, _ABLE),
        *takes_otherwise(job, _ABLE),
        *other_formats(job, _ABLE),
        *sleeps_otherwise(job, _ABLE),
        *cut_otherwise(job, _ABLE),
        (
            job.options.speculation is not None
            and job.options.speculation.method == "stated"
            and job.options.speculation.algorithm is None,
            refuse(
                "vLLM cannot name a drafter of which only the time is stated",
                "roles",
                "name it as `algorithm` (and its `checkpoint`) in `options.speculation`",
            ),
        ),
        (
            len(job.apart) > 1 and not _on_one_node(job) and any(part.gpus_per_node != node for part in job.apart),
            refuse(
                f"NeMo-RL gives roles whole nodes of {node} GPUs, or parts of one",
                "roles",
                "solve with `whole_nodes: true`",
            ),
        ),
    )
    header = (*job.header, *said_of_sleep(job, "NeMo-RL"))
    return {"nemo-rl.yaml": yaml_document(header, configuration(job)), "launch-nemo-rl.sh": _script(job)}


def _script(job: RlJob) -> str:
    return folder_script(
        job,
        {"NEMO_RL": "the folder of NeMo-RL"},
        'cp "${here}/nemo-rl.yaml" "${NEMO_RL}/examples/configs/planned.yaml"',
        'cd "${NEMO_RL}"',
        'uv run examples/run_grpo.py --config examples/configs/planned.yaml "$@"',
    )


TARGETS = (rl_target("nemo-rl", "a configuration for NeMo-RL's GRPO example", _files),)
