"""Emits RL plans for slime: flags of its `train.py` and `train_async.py`, Megatron-LM and SGLang."""

from collections.abc import Iterator

from planner.emit.refusals import raise_all, refuse
from planner.emit.rl.job import FP8_RECIPES, RlJob, command_script, flag, rl_target, said_of_calls
from planner.emit.rl.otherwise import (
    cut_otherwise,
    elsewhere,
    other_formats,
    runs_otherwise,
    sleeps_otherwise,
    trains_otherwise,
)
from planner.emit.rl.served import critic_shares, takes_otherwise
from planner.emit.shell import Flag
from planner.engines.rl_launchers import RL_LAUNCHERS
from planner.kinds.rl.names import BATCH_SAMPLES

_ABLE = RL_LAUNCHERS["slime"]
_ESTIMATORS = {"ppo": "ppo", "grpo": "grpo", "dapo": "grpo", "gspo": "gspo", "reinforce_pp": "reinforce_plus_plus"}


def flags(job: RlJob) -> Iterator[Flag]:
    """Flags and values."""
    yield flag("--actor-num-nodes", job.training.nodes)
    yield flag("--actor-num-gpus-per-node", job.training.gpus_per_node)
    if job.colocated:
        yield flag("--colocate")
    else:
        yield flag("--rollout-num-gpus", job.generating.gpus)
    yield flag("--rollout-num-gpus-per-engine", job.rollout.parallelism.devices)
    if job.node_gpus != 8:
        yield flag("--num-gpus-per-node", job.node_gpus)
    yield from _parallelism(job)
    yield from _formats(job)
    yield from _batches(job)
    yield from _engine(job)


def _parallelism(job: RlJob) -> Iterator[Flag]:
    shape = job.shape
    yield flag("--tensor-model-parallel-size", shape.tp)
    if shape.tp > 1:
        yield flag("--sequence-parallel")
    yield flag("--pipeline-model-parallel-size", shape.pp)
    ends = job.end_stages(job.actor)
    if ends is not None:
        yield flag("--decoder-first-pipeline-num-layers", ends[0])
        yield flag("--decoder-last-pipeline-num-layers", ends[1])
    yield flag("--context-parallel-size", shape.cp)
    yield flag("--expert-model-parallel-size", shape.ep)
    yield flag("--expert-tensor-parallel-size", shape.moe_tp)
    for part in ("hidden", "attention"):  # which Megatron-LM drops a tenth of unasked
        yield flag(f"--{part}-dropout", 0.0)
    if job.recomputes(job.actor):
        yield flag("--recompute-granularity", "full")
        yield flag("--recompute-method", "uniform")
        yield flag("--recompute-num-layers", 1)


def _formats(job: RlJob) -> Iterator[Flag]:
    """Training in fp8; generators take the format of the checkpoint."""
    if job.precision in FP8_RECIPES:
        values, recipe = FP8_RECIPES[job.precision]
        yield flag("--fp8-format", values)
        yield flag("--fp8-recipe", recipe)


_FILTER = "slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std"


def _batches(job: RlJob) -> Iterator[Flag]:
    options = job.options
    yield flag("--advantage-estimator", _ESTIMATORS[options.algorithm])
    yield flag("--rollout-batch-size", options.prompts)
    yield flag("--n-samples-per-prompt", options.samples_per_prompt)
    yield flag("--num-steps-per-rollout", options.minibatches)
    if options.over_sampling > 1:
        yield flag("--over-sampling-batch-size", round(options.prompts * options.over_sampling))
    if options.useful_share < 1:
        yield flag("--dynamic-sampling-filter-path", _FILTER)
    if options.partial_rollouts:
        yield flag("--partial-rollout")
    yield flag("--rollout-max-prompt-len", job.prompt_tokens)
    yield flag("--rollout-max-response-len", job.response_tokens)
    yield flag("--use-dynamic-batch-size")
    yield flag("--max-tokens-per-gpu", job.rank_tokens)
    yield flag("--balance-data")
    if job.role("reference") is not None:
        yield flag("--use-kl-loss")
    if job.role("teacher") is not None:
        yield flag("--use-opd")
        yield flag("--opd-type", "sglang" if job.served("teacher") else "megatron")
    if job.served("reward") is not None:
        yield flag("--rm-type", "remote_rm")


def _engine(job: RlJob) -> Iterator[Flag]:
    shape = job.rollout.parallelism
    yield flag("--sglang-server-concurrency", job.max_batch)
    yield flag("--sglang-mem-fraction-static", job.memory_share(job.rollout))
    if shape.pp > 1:
        yield flag("--sglang-pp-size", shape.pp)
    if shape.ep > 1:
        yield flag("--sglang-ep-size", shape.ep)


def _straddles(job: RlJob) -> bool:
    """Whether an engine begins on one node and ends on another: engines stand behind the last GPU that trains."""
    engine, node, first = job.rollout.parallelism.devices, job.node_gpus, _gpus_before(job)
    return any(start % node + min(engine, node) > node for start in range(first, first + job.generating.gpus, engine))


def _gpus_before(job: RlJob) -> int:
    return 0 if job.colocated else job.training.gpus


def _files(job: RlJob) -> dict[str, str]:
    raise_all(
        (
            _straddles(job),
            refuse(
                f"an engine of {job.rollout.parallelism.devices} GPUs behind {_gpus_before(job)} straddles nodes",
                "roles",
                "solve with `whole_nodes: true`",
            ),
        ),
        *runs_otherwise(job, _ABLE),
        *other_formats(job, _ABLE),
        *sleeps_otherwise(job, _ABLE),
        *cut_otherwise(job, _ABLE),
        *trains_otherwise(job, "slime"),
        *elsewhere(job, _ABLE),
        *takes_otherwise(job, _ABLE),
        critic_shares(job, "slime"),
        (
            job.served("reward") is not None and job.served("teacher") is not None,
            refuse("slime asks one server beside the job", "roles", "serve the reward or the teacher, not both"),
        ),
    )
    script = "train_async.py" if job.asynchronous else "train.py"
    aside = list(_beside(job))
    needs = _needs(job) | {variable: what for _, variable, what in aside}
    start = (
        f'python3 "${{SLIME}}"/{script} ${{MODEL_ARGS}} --hf-checkpoint "${{CHECKPOINT}}" --prompt-data "${{PROMPTS}}"'
    )
    program = " ".join([start, *(f'--{name} "${{{variable}}}"' for name, variable, _ in aside)])
    return {"launch-slime.sh": command_script(job, needs, program, flags(job), said_of_calls(job, "slime"))}


def _needs(job: RlJob) -> dict[str, str]:
    """Variables of the environment that the script asks for, and what each is."""
    return {
        "SLIME": "the folder of slime",
        "MODEL_ARGS": "the flags of the model, from a file of slime's scripts/models",
        "CHECKPOINT": "the folder of the Hugging Face checkpoint"
        + (", converted by slime's tools/convert_hf_to_fp8.py" if job.rollout_weights != "bf16" else ""),
        "PROMPTS": "the prompts, a JSON lines file",
    }


def _beside(job: RlJob) -> Iterator[tuple[str, str, str]]:
    """Flags of what lies beside the job: name, variable of the environment, and what that is."""
    for part in ("reward", "teacher"):
        role = job.served(part)
        if role is not None:
            size = f"{role.replicas} engines of tp {role.parallelism.tp}, {role.limits[BATCH_SAMPLES]} requests each"
            yield "rm-url", f"{part.upper()}_URL", f"the address of the {part}: {size}"
    if job.beside("teacher") is not None:
        yield "opd-teacher-load", "TEACHER", "the folder of the teacher's Megatron checkpoint"


TARGETS = (rl_target("slime", "a script with slime's flags", _files),)
