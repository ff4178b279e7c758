"""Emits RL plans for NeMo-RL 0.6: YAML on top of `examples/configs/grpo_math_1B.yaml`, Megatron backend.

The script lays it beside that file, which its `defaults` name, and runs `examples/run_grpo.py` on the Ray cluster at
hand.
"""

from typing import Any

from planner.emit.documents import yaml_document
from planner.emit.refusals import raise_first
from planner.emit.rl.job import RlJob, folder_script, refuse, rl_target

_ALGORITHMS = ("grpo", "dapo", "gspo", "reinforce_pp", "rloo")


def configuration(job: RlJob) -> dict[str, Any]:
    """What the plan changes of the base configuration."""
    options = job.options
    grpo: dict[str, Any] = {
        "num_prompts_per_step": options.prompts,
        "num_generations_per_prompt": options.samples_per_prompt,
        "use_dynamic_sampling": options.algorithm == "dapo",
    }
    losses: dict[str, Any] = {"reference_policy_kl_penalty": 0.0} if job.role("reference") is None else {}
    if options.algorithm == "gspo":
        losses |= {"sequence_level_importance_ratios": True, "token_level_loss": False}
    if job.asynchronous:
        flows = {"in_flight_weight_updates": True} if job.in_flight else {}
        grpo["async_grpo"] = {"enabled": True, "max_trajectory_age_steps": job.decision.staleness, **flows}
        losses["use_importance_sampling_correction"] = True
    return {
        "defaults": "grpo_math_1B.yaml",
        "grpo": grpo,
        "policy": _policy(job),
        "cluster": {"gpus_per_node": job.gpus_per_node, "num_nodes": job.num_nodes},
        **({"loss_fn": losses} if losses else {}),
    }


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
            "activation_checkpointing": job.recomputes,
            "tensor_model_parallel_size": shape.tp,
            "pipeline_model_parallel_size": shape.pp,
            "context_parallel_size": shape.cp,
            "expert_model_parallel_size": shape.ep,
            "expert_tensor_parallel_size": shape.moe_tp,
            "sequence_parallel": shape.tp > 1,
        },
        "generation": _generation(job),
    }


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
            "gpu_memory_utilization": job.memory_share,
            "max_model_len": job.longest,
        },
        "colocated": {"enabled": job.colocated},
    }
    drafts = _drafts(job)
    if drafts:
        generation["vllm_kwargs"] = {"speculative_config": drafts}
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
    raise_first(
        (
            job.options.algorithm not in _ALGORITHMS,
            refuse(
                f"NeMo-RL has no `{job.options.algorithm}`", "algorithm", "use the target `verl`, `areal` or `openrlhf`"
            ),
        ),
        (
            job.decision.synchrony == "stream",
            refuse(
                "NeMo-RL does not stream minibatches", "synchrony", "plan with `synchrony: [synchronous, asynchronous]`"
            ),
        ),
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
        (job.engine != "vllm", refuse("this target starts vLLM", "roles", "plan with `engine: {name: vllm}`")),
        (
            not job.colocated and job.training.gpus_per_node != job.generating.gpus_per_node,
            refuse("training and generation take different parts of their nodes", "roles", "use whole nodes for both"),
        ),
    )
    return {"nemo-rl.yaml": yaml_document(job.header, configuration(job)), "launch-nemo-rl.sh": _script(job)}


def _script(job: RlJob) -> str:
    return folder_script(
        job,
        {"NEMO_RL": "the folder of NeMo-RL"},
        'cp "${here}/nemo-rl.yaml" "${NEMO_RL}/examples/configs/planned.yaml"',
        'cd "${NEMO_RL}"',
        'uv run examples/run_grpo.py --config examples/configs/planned.yaml "$@"',
    )


TARGETS = (rl_target("nemo-rl", "a configuration for NeMo-RL's GRPO example", _files, drafts=True),)
