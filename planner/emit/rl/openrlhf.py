"""Emits RL plans for OpenRLHF 0.11: dotted flags of `openrlhf.cli.train_ppo_ray`, which trains with DeepSpeed.

Plans are priced for Megatron-Core with its distributed optimizer, which ZeRO-1 is nearest to. OpenRLHF leaves vLLM at
256 samples at once, and counts tokens of a micro-batch by rank of its ring and tensor-parallel groups
(openrlhf/utils/seqlen_balancing.py).
"""

from collections.abc import Iterator
from dataclasses import replace

from planner.emit.refusals import raise_all, refuse
from planner.emit.rl.job import RlJob, command_script, flag, rl_target, said_of_calls, said_of_sleep
from planner.emit.rl.otherwise import (
    cut_otherwise,
    elsewhere,
    off_the_gpus,
    other_formats,
    runs_otherwise,
    sleeps_otherwise,
    trains_otherwise,
)
from planner.emit.rl.served import critic_apart, said_of_batches, takes_otherwise
from planner.emit.shell import Flag
from planner.engines.rl_launchers import RL_LAUNCHERS
from planner.errors import PlannerError

_ESTIMATORS = {"ppo": "gae", "grpo": "group_norm", "dapo": "group_norm", "gspo": "group_norm", "rloo": "rloo",
               "reinforce_pp": "reinforce"}  # fmt: skip


_ABLE = RL_LAUNCHERS["openrlhf"]


def flags(job: RlJob) -> Iterator[Flag]:
    """Flags and values."""
    yield flag("--actor.model_name_or_path", job.model(job.actor))
    yield flag("--actor.num_nodes", job.training.nodes)
    yield flag("--actor.num_gpus_per_node", job.training.gpus_per_node)
    yield flag("--ds.zero_stage", 1)
    yield flag("--ds.tensor_parallel_size", job.shape.tp)
    yield flag("--ds.ring_attn_size", job.shape.cp)
    yield flag("--ds.packing_samples")
    if job.recomputes(job.actor):
        yield flag("--actor.gradient_checkpointing_enable")
    yield from _generation(job)
    yield from _batches(job)
    yield from _others(job)


def _generation(job: RlJob) -> Iterator[Flag]:
    yield flag("--vllm.num_engines", job.rollout.replicas)
    yield flag("--vllm.tensor_parallel_size", job.rollout.parallelism.tp)
    yield flag("--vllm.gpu_memory_utilization", job.memory_share(job.rollout))
    yield flag("--vllm.sync_backend", "nccl")
    if job.colocated:
        yield flag("--train.colocate_all")
        yield flag("--vllm.enable_sleep")
        yield flag("--ds.enable_sleep")
    if job.asynchronous:
        yield flag("--train.async_enable")
        yield flag("--train.async_queue_size", job.decision.staleness)


def _batches(job: RlJob) -> Iterator[Flag]:
    options = job.options
    yield flag("--rollout.batch_size", options.prompts)
    yield flag("--rollout.n_samples_per_prompt", options.samples_per_prompt)
    yield flag("--rollout.max_new_tokens", job.response_tokens)
    yield flag("--data.max_len", job.longest)
    yield flag("--train.batch_size", job.samples // options.minibatches)
    yield flag("--train.dynamic_batch_enable")
    yield flag("--train.max_tokens_per_gpu", -(-job.rank_tokens // job.shape.tp))


def _others(job: RlJob) -> Iterator[Flag]:
    yield flag("--algo.advantage.estimator", _ESTIMATORS[job.options.algorithm])
    if job.options.algorithm == "gspo":
        yield flag("--actor.policy_loss_type", "gspo")
    helpers = {"ref": job.role("reference"), "reward": job.role("reward"), "critic": job.role("critic")}
    for name, role in helpers.items():
        if role is None:
            continue
        if name != "ref":
            yield flag(f"--{name}.model_name_or_path", job.model(role))
        nodes = job.training if role is job.beside(role.function) else job.nodes_of(role)
        yield flag(f"--{name}.num_nodes", nodes.nodes)
        yield flag(f"--{name}.num_gpus_per_node", nodes.gpus_per_node)
    if helpers["ref"] is None:
        yield flag("--algo.kl.init_coef", 0)
    elif not job.colocated and job.beside("reference") is not None:
        yield flag("--train.colocate_actor_ref")


def _not_trained(job: RlJob) -> Iterator[tuple[bool, PlannerError]]:
    """Refusals of what OpenRLHF does not train so."""
    shares = job.role("critic") is None or job.beside("critic") is not None
    yield (
        job.shape.pp > 1 or job.shape.ep > 1,
        PlannerError(
            "OpenRLHF trains without pipeline and expert parallelism",
            where="roles.actor",
            hint="plan with `training_pp: [1]`, or "
            + ("use the target `verl`" if shares else "with `critic_gpus: [actor]` for the target `verl`"),
        ),
    )
    yield from off_the_gpus(job, _ABLE)
    yield from other_formats(job, _ABLE)
    yield from sleeps_otherwise(job, _ABLE)
    yield from cut_otherwise(job, _ABLE)
    yield from trains_otherwise(job, "OpenRLHF")
    yield from critic_apart(job, "OpenRLHF")


def _not_scored(job: RlJob) -> Iterator[tuple[bool, PlannerError]]:
    """Refusals of models that score elsewhere, or cut otherwise, than OpenRLHF has them."""
    shared = replace(_ABLE, served=()) if job.colocated else replace(_ABLE, beside=("reference",))
    yield from elsewhere(job, shared)
    yield from takes_otherwise(job, _ABLE)
    for part in ("reference", "reward"):
        role = job.served(part)
        if role is not None:
            yield (
                role.parallelism.tp != job.shape.tp,
                refuse(
                    f"OpenRLHF cuts the {part} as the actor, tp {job.shape.tp} for {role.parallelism.tp}",
                    f"roles.{part}",
                    f"solve with `tp: [{job.shape.tp}]` for the {part} in `served`",
                ),
            )


def _not_generated(job: RlJob) -> Iterator[tuple[bool, PlannerError]]:
    """Refusals of rollouts that OpenRLHF does not have."""
    yield (
        job.max_batch != _ABLE.max_running,
        refuse(
            f"OpenRLHF leaves vLLM at {_ABLE.max_running} samples at once, and not {job.max_batch}",
            "roles.rollout.limits",
            f"solve with `max_running: {_ABLE.max_running}`",
        ),
    )
    yield from runs_otherwise(job, _ABLE)
    yield (
        job.rollout.parallelism.pp > 1,
        refuse(
            "OpenRLHF starts vLLM without pipeline stages",
            "roles.rollout",
            "plan with a `generation_tp` that holds the model",
        ),
    )


def _files(job: RlJob) -> dict[str, str]:
    raise_all(*_not_trained(job), *_not_generated(job), *_not_scored(job))
    needs = {"PROMPTS": "the prompts, a data set or file", "SAVE": "the folder to save to"}
    program = 'python3 -m openrlhf.cli.train_ppo_ray --data.prompt_dataset "${PROMPTS}" --ckpt.output_dir "${SAVE}"'
    trained = "Training is priced for Megatron-Core with a distributed optimizer: DeepSpeed may take longer"
    scored = (*said_of_calls(job, "OpenRLHF"), *said_of_batches(job, "OpenRLHF"))
    said = (trained, *scored, *said_of_sleep(job, "OpenRLHF"))
    return {"launch-openrlhf.sh": command_script(job, needs, program, flags(job), said)}


TARGETS = (rl_target("openrlhf", "a script with OpenRLHF's dotted flags", _files),)
