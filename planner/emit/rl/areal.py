"""Emits RL plans for AReaL 1.0.4: YAML over one of its examples, with `backend` strings of its allocation grammar.

The script merges it into the configuration of that example, and runs the example under Ray.
"""

from typing import Any

from planner.emit.documents import yaml_document
from planner.emit.refusals import raise_all
from planner.emit.rl.job import FP8_RECIPES, RlJob, folder_script, rl_target, said_of_calls, said_of_sleep
from planner.emit.rl.otherwise import elsewhere, off_the_gpus, other_formats, runs_otherwise, sleeps_otherwise
from planner.emit.rl.served import critic_shares, takes_otherwise
from planner.engines.rl_launchers import RL_LAUNCHERS
from planner.errors import PlannerError
from planner.kinds.rl.names import BATCH_SAMPLES
from planner.plan.schema import Parallelism, Role

_ABLE = RL_LAUNCHERS["areal"]


def generation_backend(job: RlJob) -> str:
    """Such as `sglang:d4t2`."""
    shape = job.rollout.parallelism
    stages = f"p{shape.pp}" if shape.pp > 1 else ""
    return f"{job.engine}:d{job.rollout.replicas}{stages}t{shape.tp}"


def training_backend(shape: Parallelism) -> str:
    """Such as `megatron:d4p2t2`, or with experts spread apart from attention `megatron:(attn:d4p2t2|ffn:d1p2t1e8)`."""
    context = f"c{shape.cp}" if shape.cp > 1 else ""
    dense = f"d{shape.dp}p{shape.pp}t{shape.tp}{context}"
    if shape.ep == 1:
        return f"megatron:{dense}"
    ranks = shape.dp * shape.cp * shape.tp
    copies, rest = divmod(ranks, shape.ep * shape.moe_tp)
    if rest:
        raise PlannerError(
            f"experts on {shape.ep} x {shape.moe_tp} of {ranks} ranks leave some out",
            where="roles.actor.parallelism",
            hint="use an ep that divides the ranks of a stage",
        )
    return f"megatron:(attn:{dense}|ffn:d{copies}p{shape.pp}t{shape.moe_tp}e{shape.ep})"


def configuration(job: RlJob) -> dict[str, Any]:
    """What the plan says, by AReaL's own keys."""
    options = job.options
    colocation = {"type": "colocation", "target": "actor"}
    megatron: dict[str, Any] = {"moe_permute_fusion": True} if job.sparse else {}
    if job.precision in FP8_RECIPES:
        values, recipe = FP8_RECIPES[job.precision]
        megatron["fp8_config"] = {"mode": values, "recipe": recipe}
    document: dict[str, Any] = {
        "cluster": {
            "n_nodes": job.num_nodes,
            "n_gpus_per_node": job.node_gpus,
        },
        "rollout": {
            "backend": generation_backend(job),
            "max_concurrent_rollouts": -(-job.rollout.replicas * job.max_batch // options.samples_per_prompt),
            "consumer_batch_size": options.prompts,
            "max_head_offpolicyness": job.decision.staleness,
        },
        "gconfig": {"n_samples": options.samples_per_prompt, "max_new_tokens": job.response_tokens},
        "actor": {
            "backend": training_backend(job.shape),
            "path": job.model(job.actor),
            "gradient_checkpointing": job.recomputes(job.actor),
            "disable_dropout": True,
            "ppo_n_minibatches": options.minibatches,
            "mb_spec": _micro_batches(job),
            "recompute_logprob": True,
            "use_decoupled_loss": job.asynchronous,
            "importance_sampling_level": "sequence" if options.algorithm == "gspo" else "token",
            **({"megatron": megatron} if megatron else {}),
        },
        "train_dataset": {"batch_size": options.prompts, "max_length": job.prompt_tokens},
    }
    if job.colocated:
        document["rollout"]["scheduling_strategy"] = colocation
        document["enable_offload"] = True
    reference, critic = job.role("reference"), job.role("critic")
    teacher = job.role("teacher")
    if reference is not None:
        document["ref"] = _scorer(job, reference)
    if teacher is not None:
        document["teacher"] = {"engine_type": "train", "train": _scorer(job, teacher)}
    if critic is not None:
        document["critic"] = {
            "backend": training_backend(critic.parallelism),
            "path": job.model(critic),
            "is_critic": True,
            "gradient_checkpointing": job.recomputes(critic),
            "disable_dropout": True,
            "ppo_n_minibatches": options.minibatches,
            "mb_spec": _micro_batches(job),
            "scheduling_strategy": colocation,
        }
    if job.engine == "sglang":
        sizes = {"context_length": job.longest, "max_running_requests": job.max_batch}
        ep = job.rollout.parallelism.ep
        sizes |= {"ep_size": ep} if ep > 1 else {}
        document["sglang"] = {**sizes, "mem_fraction_static": job.memory_share(job.rollout)}
    else:
        sizes = {"max_model_len": job.longest, "max_num_seqs": job.max_batch}
        document["vllm"] = {**sizes, "gpu_memory_utilization": job.memory_share(job.rollout)}
    return document


def _micro_batches(job: RlJob) -> dict[str, int]:
    """Tokens of a micro-batch, of all context-parallel ranks (areal/engine/megatron_engine.py)."""
    return {"max_tokens_per_mb": job.micro_tokens}


def _scorer(job: RlJob, role: Role) -> dict[str, Any]:
    """A model that scores: on the actor's GPUs, cut as it is, or on GPUs of its own, a batch of samples at a time."""
    document: dict[str, Any] = {"path": job.model(role)}
    if role is job.beside(role.function):
        colocation = {"type": "colocation", "target": "actor"}
        shape = role.parallelism.model_copy(update={"dp": role.replicas * role.parallelism.dp})
        return {
            "backend": training_backend(shape),
            **document,
            "mb_spec": _micro_batches(job),
            "scheduling_strategy": colocation,
        }
    shape = Parallelism(tp=role.parallelism.tp, dp=role.replicas)
    tokens = int(role.limits[BATCH_SAMPLES]) * job.longest
    return {
        "backend": training_backend(shape),
        **document,
        "mb_spec": {"max_tokens_per_mb": tokens},
        "scheduling_strategy": {"type": "separation"},
    }


def _files(job: RlJob) -> dict[str, str]:
    raise_all(
        *runs_otherwise(job, _ABLE),
        *off_the_gpus(job, _ABLE),
        *other_formats(job, _ABLE),
        *sleeps_otherwise(job, _ABLE),
        *elsewhere(job, _ABLE),
        *takes_otherwise(job, _ABLE),
        critic_shares(job, "AReaL", does="trains actor and critic in turn, wherever the critic stands"),
    )
    slept = said_of_sleep(job, "AReaL") if job.engine == "vllm" else ()
    header = (*job.header, *said_of_calls(job, "AReaL"), *slept, *_said_of_reference(job), *_said_of_updates(job))
    return {"areal.yaml": yaml_document(header, configuration(job)), "launch-areal.sh": _script(job)}


def _said_of_reference(job: RlJob) -> tuple[str, ...]:
    """`PPOTrainer` starts a reference only where something is asked of it."""
    said = "AReaL starts the reference where `actor.kl_ctl` is above 0, as the example's configuration or yours says"
    return (said,) if job.role("reference") is not None else ()


def _said_of_updates(job: RlJob) -> tuple[str, ...]:
    """A comment on plans whose generators end a rollout before they take new weights."""
    if not job.asynchronous or job.in_flight:
        return ()
    return ("AReaL updates weights while samples are under way: `in_flight_updates: true` prices it",)


_MERGE = "import sys; from omegaconf import OmegaConf as c; c.save(c.merge(*map(c.load, sys.argv[1:3])), sys.argv[3])"


def _script(job: RlJob) -> str:
    return folder_script(
        job,
        {
            "AREAL": "the folder of AReaL",
            "EXAMPLE": "a program in it, such as examples/math/gsm8k_rl.py",
            "EXAMPLE_CONFIG": "the configuration of that program",
        },
        'merged="$(mktemp --suffix .yaml)"',
        'cd "${AREAL}"',
        f'python3 -c "{_MERGE}" "${{EXAMPLE_CONFIG}}" "${{here}}/areal.yaml" "${{merged}}"',
        'python3 "${EXAMPLE}" --config "${merged}" scheduler.type=ray "$@"',
    )


TARGETS = (rl_target("areal", "a configuration for AReaL, with its allocation strings", _files),)
