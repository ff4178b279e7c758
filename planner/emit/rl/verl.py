"""Emits RL plans for verl 0.9: overrides of its Hydra configurations with the Megatron engine.

Colocated plans start `verl.trainer.main_ppo`; disaggregated ones that run one iteration ahead the one-step-off recipe;
all others the fully asynchronous one, whose staleness threshold is the plan's staleness (0: streaming, or synchronous
when a whole batch is awaited). Batch sizes of verl count prompts.
"""

import re
from collections.abc import Iterator

from planner.emit.documents import commented
from planner.emit.refusals import raise_all, refuse
from planner.emit.rl.job import FP8_RECIPES, RlJob, rl_target
from planner.emit.rl.nodes import RoleNodes
from planner.emit.rl.otherwise import cut_otherwise, elsewhere, other_formats, sleeps_otherwise
from planner.emit.rl.served import critic_shares, takes_otherwise
from planner.emit.shell import continued, preamble, required, word
from planner.engines.rl_launchers import RL_LAUNCHERS
from planner.errors import PlannerError
from planner.kinds.rl.names import BATCH_SAMPLES
from planner.plan.schema import Parallelism, Role

_ABLE = RL_LAUNCHERS["verl"]
_ESTIMATORS = {"ppo": "gae", "grpo": "grpo", "dapo": "grpo", "gspo": "grpo", "reinforce_pp": "reinforce_plus_plus"}
_MAIN = {
    "colocated": ("verl.trainer.main_ppo", "ppo_megatron_trainer"),
    "one_step": ("verl.experimental.one_step_off_policy.main_ppo", "one_step_off_ppo_megatron_trainer"),
    "fully_async": ("verl.experimental.fully_async_policy.fully_async_main", "fully_async_ppo_megatron_trainer"),
}
_PLAIN = re.compile(r"[A-Za-z][\w./-]*")
Overrides = Iterator[tuple[str, object]]


def recipe(job: RlJob) -> str:
    """The tree that runs the plan: `colocated`, `one_step` or `fully_async`."""
    if job.colocated:
        return "colocated"
    one_step = job.asynchronous and job.decision.staleness == 1 and not job.in_flight
    return "one_step" if one_step else "fully_async"


def overrides(job: RlJob) -> Overrides:
    """Keys and values, as Hydra takes them."""
    yield from _data(job)
    yield from _actor(job)
    yield from _rollout(job)
    yield from _others(job)
    yield from _resources(job)


def _data(job: RlJob) -> Overrides:
    options = job.options
    yield "algorithm.adv_estimator", _ESTIMATORS.get(options.algorithm, options.algorithm)
    if recipe(job) != "fully_async":
        yield "data.train_batch_size", options.prompts
    yield "data.max_prompt_length", job.prompt_tokens
    yield "data.max_response_length", job.response_tokens


def _actor(job: RlJob) -> Overrides:
    prefix = "actor_rollout_ref.actor"
    yield "actor_rollout_ref.model.path", job.model(job.actor)
    yield f"{prefix}.ppo_mini_batch_size", _prompts_per_minibatch(job)
    yield f"{prefix}.use_dynamic_bsz", True
    yield f"{prefix}.ppo_max_token_len_per_gpu", job.rank_tokens
    if job.options.algorithm == "gspo":
        yield f"{prefix}.policy_loss.loss_mode", "gspo"
    yield from _megatron(f"{prefix}.megatron", job.shape, offload=job.colocated)
    transformer = f"{prefix}.megatron.override_transformer_config"
    if job.precision in FP8_RECIPES:
        values, recipe_name = FP8_RECIPES[job.precision]
        yield f"+{transformer}.fp8", values
        yield f"+{transformer}.fp8_recipe", recipe_name
    if job.sparse:
        yield f"+{transformer}.moe_permute_fusion", True
    yield from _layers(transformer, job, job.actor)


def _layers(transformer: str, job: RlJob, role: Role) -> Overrides:
    """Layers of the ends of a pipeline, and what is computed again."""
    ends = job.end_stages(role)
    if ends is not None:
        yield f"+{transformer}.num_layers_in_first_pipeline_stage", ends[0]
        yield f"+{transformer}.num_layers_in_last_pipeline_stage", ends[1]
    if job.recomputes(role):
        yield f"{transformer}.recompute_granularity", "full"
        yield f"{transformer}.recompute_method", "uniform"
        yield f"{transformer}.recompute_num_layers", 1


def _prompts_per_minibatch(job: RlJob) -> int:
    prompts, parts = job.options.prompts, job.options.minibatches
    if prompts % parts:
        near = min((n for n in range(1, prompts + 1) if prompts % n == 0), key=lambda n: abs(n - parts))
        raise PlannerError(
            f"{prompts} prompts do not divide into {parts} minibatches",
            where="inputs.options",
            hint=f"use `minibatches: {near}`",
        )
    return prompts // parts


def _megatron(prefix: str, shape: Parallelism, *, offload: bool) -> Overrides:
    yield f"{prefix}.tensor_model_parallel_size", shape.tp
    yield f"{prefix}.pipeline_model_parallel_size", shape.pp
    yield f"{prefix}.context_parallel_size", shape.cp
    if shape.ep > 1:
        yield f"{prefix}.expert_model_parallel_size", shape.ep
        yield f"{prefix}.expert_tensor_parallel_size", shape.moe_tp
    yield f"{prefix}.param_offload", offload
    yield f"{prefix}.optimizer_offload", offload


def _rollout(job: RlJob) -> Overrides:
    prefix, shape = "actor_rollout_ref.rollout", job.rollout.parallelism
    yield f"{prefix}.name", job.engine
    yield f"{prefix}.n", job.options.samples_per_prompt
    yield f"{prefix}.tensor_model_parallel_size", shape.tp
    yield f"{prefix}.pipeline_model_parallel_size", shape.pp
    if shape.ep > 1:
        yield f"{prefix}.expert_parallel_size", shape.ep
    if job.rollout_weights != "bf16":
        yield f"{prefix}.quantization", "fp8"
    yield f"{prefix}.gpu_memory_utilization", job.memory_share(job.rollout)
    yield f"{prefix}.max_num_seqs", job.max_batch
    yield f"{prefix}.max_model_len", job.longest


def _others(job: RlJob) -> Overrides:
    critic, reward, reference = job.role("critic"), job.role("reward"), job.beside("reference")
    if reference is not None:
        yield "actor_rollout_ref.actor.use_kl_loss", True
        moved = job.colocated or job.in_host_memory(reference)
        yield from _megatron("actor_rollout_ref.ref.megatron", reference.parallelism, offload=moved)
    if critic is not None:
        yield "critic.model.path", job.model(critic)
        yield "critic.ppo_mini_batch_size", _prompts_per_minibatch(job)
        yield "critic.use_dynamic_bsz", True
        yield "critic.ppo_max_token_len_per_gpu", job.rank_tokens
        yield from _megatron("critic.megatron", critic.parallelism, offload=job.colocated)
        yield from _layers("critic.megatron.override_transformer_config", job, critic)
    if reward is not None:
        yield "reward.reward_model.enable", True
        yield "reward.reward_model.model_path", job.model(reward)
        yield "reward.reward_model.rollout.name", job.engine
        yield "reward.reward_model.rollout.tensor_model_parallel_size", reward.parallelism.tp
    served, teacher = job.served("reward"), job.served("teacher")
    if served is not None:
        yield "reward.reward_model.enable_resource_pool", True
        yield from _nodes("reward.reward_model", job.nodes_of(served))
        yield "reward.reward_model.rollout.max_num_seqs", served.limits[BATCH_SAMPLES]
        yield "reward.reward_model.rollout.gpu_memory_utilization", job.memory_share(served)
    if teacher is not None:
        yield from _teacher(job, teacher)
    if job.calls is not None:
        yield "reward.num_workers", job.calls.workers
        if job.calls.by == "sandbox":
            yield "reward.sandbox_fusion.max_concurrent", job.calls.workers


def _teacher(job: RlJob, teacher: Role) -> Overrides:
    """On-policy distillation, with a pool of engines for the teacher."""
    prefix = "distillation.teacher_models.teacher_model"
    yield "distillation.enabled", True
    yield from _nodes("distillation", job.nodes_of(teacher))
    yield f"{prefix}.model_path", job.model(teacher)
    yield f"{prefix}.num_replicas", teacher.replicas
    yield f"{prefix}.inference.name", job.engine
    yield f"{prefix}.inference.tensor_model_parallel_size", teacher.parallelism.tp
    yield f"{prefix}.inference.max_num_seqs", teacher.limits[BATCH_SAMPLES]
    yield f"{prefix}.inference.gpu_memory_utilization", job.memory_share(teacher)


def _resources(job: RlJob) -> Overrides:
    yield from _nodes("trainer", job.training)
    if job.colocated:
        return
    yield from _nodes("rollout", job.generating)
    if recipe(job) == "one_step":
        return
    streaming = job.decision.synchrony == "stream"
    yield "rollout.n", job.options.samples_per_prompt
    yield "async_training.staleness_threshold", job.decision.staleness
    yield "async_training.require_batches", 1 if streaming else job.options.minibatches
    yield "async_training.trigger_parameter_sync_step", job.options.minibatches if streaming else 1
    yield "async_training.partial_rollout", job.in_flight


def _nodes(prefix: str, nodes: RoleNodes) -> Overrides:
    yield f"{prefix}.nnodes", nodes.nodes
    yield f"{prefix}.n_gpus_per_node", nodes.gpus_per_node


def _text(value: object) -> str:
    """A value of Hydra's grammar; a name that is more than letters and digits is quoted, so it is not read as such."""
    if isinstance(value, bool | int | float) or _PLAIN.fullmatch(str(value)):
        return str(value)
    escaped = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _files(job: RlJob) -> dict[str, str]:
    raise_all(
        *elsewhere(job, _ABLE),
        *takes_otherwise(job, _ABLE),
        critic_shares(job, "verl"),
        *other_formats(job, _ABLE),
        *sleeps_otherwise(job, _ABLE),
        *cut_otherwise(job, _ABLE),
        (
            (reward := job.beside("reward")) is not None and reward.parallelism.pp > 1,
            refuse(
                "verl finds rewards with engines, which have no pipeline stages",
                "roles.reward",
                "solve with `served: [{part: reward}]`",
            ),
        ),
    )
    module, config = _MAIN[recipe(job)]
    rows = [f"{key}={_text(value)}" for key, value in overrides(job)]
    needs = {
        "TRAIN_FILES": "the prompts, a parquet file",
        "VAL_FILES": "the prompts of validation, a parquet file",
    }
    sandbox = job.calls is not None and job.calls.by == "sandbox"
    if sandbox:
        needs["SANDBOX"] = "the address of the sandboxes"
    command = [
        f"python3 -m {module} --config-name {config}",
        '  data.train_files="${TRAIN_FILES}" data.val_files="${VAL_FILES}"',
        *(['  reward.sandbox_fusion.url="${SANDBOX}"'] if sandbox else []),
        *(f"  {word(row)}" for row in rows),
        '  "$@"',
    ]
    folder = 'cd "${VERL:?set VERL to the folder that holds the package verl}"'
    script = "\n".join([*preamble(job.header), *required(needs), folder, "", *continued(command)])
    return {
        "launch-verl.sh": f"{script}\n",
        "overrides.txt": commented(job.header) + "".join(f"{row}\n" for row in rows),
    }


TARGETS = (rl_target("verl", "a script with overrides of verl's Hydra configurations", _files),)
