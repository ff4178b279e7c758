"""RL plans for NeMo-RL 0.6: a YAML on top of `examples/configs/grpo_math_1B.yaml`, Megatron backend."""

from typing import Any

from planner.emit.registry import Target
from planner.emit.rl.job import RlJob, read_rl_job
from planner.errors import PlannerError
from planner.plan.schema import Decision, Envelope

_ALGORITHMS = ("grpo", "dapo", "gspo", "reinforce_pp", "rloo")


def document(job: RlJob) -> dict[str, Any]:
    """What the plan changes of the base configuration."""
    options, longest = job.options, job.prompt_tokens + job.response_tokens
    asynchronous = job.decision.synchrony == "asynchronous"
    grpo: dict[str, Any] = {
        "num_prompts_per_step": options.prompts,
        "num_generations_per_prompt": options.samples_per_prompt,
        "use_dynamic_sampling": options.algorithm == "dapo",
    }
    if asynchronous:
        grpo["async_grpo"] = {"enabled": True, "max_trajectory_age_steps": job.decision.staleness}
    found: dict[str, Any] = {
        "defaults": "grpo_math_1B.yaml",
        "grpo": grpo,
        "policy": _policy(job, longest),
        "cluster": {
            "gpus_per_node": max(job.training.gpus_per_node, job.generating.gpus_per_node),
            "num_nodes": job.training.nodes + (0 if job.colocated else job.generating.nodes),
        },
    }
    losses: dict[str, Any] = {}
    if job.role("reference") is None:
        losses["reference_policy_kl_penalty"] = 0.0
    if options.algorithm == "gspo":
        losses["sequence_level_importance_ratios"] = True
        losses["token_level_loss"] = False
    if asynchronous:
        losses["use_importance_sampling_correction"] = True
    return {**found, "loss_fn": losses} if losses else found


def _policy(job: RlJob, longest: int) -> dict[str, Any]:
    shape = job.shape
    return {
        "model_name": job.model(job.actor),
        "train_global_batch_size": job.samples // job.options.minibatches,
        "train_micro_batch_size": 1,
        "logprob_batch_size": 1,
        "max_total_sequence_length": longest,
        "make_sequence_length_divisible_by": shape.tp * max(1, 2 * shape.cp if shape.cp > 1 else 1),
        "sequence_packing": {"enabled": True},
        "dtensor_cfg": {"enabled": False},
        "megatron_cfg": {
            "enabled": True,
            "activation_checkpointing": job.recomputes,
            "tensor_model_parallel_size": shape.tp,
            "pipeline_model_parallel_size": shape.pp,
            "context_parallel_size": shape.cp,
            "expert_model_parallel_size": shape.ep,
            "expert_tensor_parallel_size": shape.moe_tp,
            "sequence_parallel": shape.tp > 1,
        },
        "generation": _generation(job, longest),
    }


def _generation(job: RlJob, longest: int) -> dict[str, Any]:
    shape = job.rollout.parallelism
    found: dict[str, Any] = {
        "backend": "vllm",
        "max_new_tokens": job.response_tokens,
        "vllm_cfg": {
            "async_engine": job.decision.synchrony == "asynchronous" or shape.pp > 1,
            "tensor_parallel_size": shape.tp,
            "pipeline_parallel_size": shape.pp,
            "expert_parallel_size": shape.ep,
            "gpu_memory_utilization": job.memory_share,
            "max_model_len": longest,
        },
        "colocated": {"enabled": job.colocated},
    }
    if not job.colocated:
        share = job.generating
        found["colocated"]["resources"] = {"gpus_per_node": share.gpus_per_node, "num_nodes": share.nodes}
    return found


def _emit(envelope: Envelope, decision: Decision) -> dict[str, str]:
    import yaml

    job = read_rl_job(envelope, decision)
    if job.options.algorithm not in _ALGORITHMS:
        hint = "use the target `verl`, `areal` or `openrlhf`"
        raise PlannerError(f"NeMo-RL has no `{job.options.algorithm}`", where="decision.algorithm", hint=hint)
    if job.decision.synchrony == "stream":
        hint = "plan with `synchrony: [synchronous, asynchronous]`"
        raise PlannerError("NeMo-RL does not stream minibatches", where="decision.synchrony", hint=hint)
    if job.engine != "vllm":
        raise PlannerError("this target starts vLLM", where="decision.roles", hint="plan with `engine: {name: vllm}`")
    if not job.colocated and job.training.gpus_per_node != job.generating.gpus_per_node:
        what = "training and generation take different parts of their nodes"
        raise PlannerError(what, where="decision.roles", hint="use whole nodes for both")
    text = yaml.safe_dump(document(job), sort_keys=False, default_flow_style=False)
    return {"nemo-rl.yaml": f"{job.comments}{text}"}


TARGETS = (Target("nemo-rl", "a configuration for NeMo-RL's GRPO example", ("rl",), _emit),)
