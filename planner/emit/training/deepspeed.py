"""Emits training plans for DeepSpeed: its JSON configuration, and a script that starts the user's program with it.

DeepSpeed 0.19 (deepspeed/runtime/config.py, deepspeed/runtime/zero/config.py). DeepSpeed gets its pipeline and its
experts from the program's own classes, so plans with them are refused.
"""

import json
from collections.abc import Iterator

from planner.costs.operators.recompute import BY_OPERATOR
from planner.emit.refusals import raise_all, refuse
from planner.emit.shell import reference
from planner.emit.training.batch_ramp import require_constant
from planner.emit.training.job import PIPELINE_OUTSIDE, LaunchJob, training_target
from planner.emit.training.other_target import or_other_target, target_of_task
from planner.emit.training.torch_launch import launch_script
from planner.errors import PlannerError

NEEDS = {"TRAIN": "the program that calls deepspeed.initialize with its --deepspeed_config"}
TENSOR_PARALLEL_ZERO = 2  # the highest stage that its tensor parallelism works with


def configuration(job: LaunchJob) -> dict[str, object]:
    """The configuration file."""
    _require_deepspeed(job)
    decision, shape, options = job.decision, job.shape, job.options
    zero: dict[str, object] = {"stage": decision.zero_stage}
    if decision.zero_stage:
        zero["overlap_comm"] = "grad_reduce" in decision.overlap
        zero["contiguous_gradients"] = True
    if "optimizer" in decision.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    config: dict[str, object] = {
        "train_batch_size": options.global_batch,
        "train_micro_batch_size_per_gpu": decision.micro_batch,
        "gradient_accumulation_steps": decision.num_micro_batches,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
    }
    if shape.tp > 1:
        config["tensor_parallel"] = {"autotp_size": shape.tp}
    if shape.cp > 1:
        config["sequence_parallel_size"] = shape.cp
    if job.recomputes("full"):
        config["activation_checkpointing"] = {"partition_activations": False, "contiguous_memory_optimization": False}
    return config


def _require_deepspeed(job: LaunchJob) -> None:
    """Raises PlannerError for what the configuration cannot say."""
    require_constant(job, "DeepSpeed")
    raise_all(*_beyond_layouts(job), *_beyond_states(job))


def _or_instead(job: LaunchJob, remedy: str) -> str:
    """A remedy, or one target for all that DeepSpeed's configuration does not say of a plan."""
    hybrid = job.zero_shards != job.data_ranks
    return or_other_target(job, remedy, *(("torchtitan",) if hybrid else ()), "megatron-lm", "megatron-bridge")


def _beyond_layouts(job: LaunchJob) -> Iterator[tuple[bool, PlannerError]]:
    """Whether ranks are laid out as no configuration says it, and the refusal."""
    decision, shape = job.decision, job.shape
    yield (
        shape.pp > 1,
        refuse(
            f"pp {shape.pp}: DeepSpeed cuts pipelines in the program, not by configuration",
            "roles",
            _or_instead(job, "plan with `search: {pp: 1}`"),
        ),
    )
    yield (
        shape.ep * shape.moe_tp > 1,
        refuse(
            f"ep {shape.ep} x moe_tp {shape.moe_tp}: DeepSpeed lays experts in the program, not by configuration",
            "roles",
            _or_instead(job, "plan with `search: {ep: 1, moe_tp: 1}`"),
        ),
    )
    yield (
        shape.cp > 1 and decision.context_parallel != "ulysses",
        refuse(
            f"context parallelism by `{decision.context_parallel}`",
            "context_parallel",
            "plan with `search: {context_parallel: ulysses}`, which DeepSpeed has",
        ),
    )
    yield (
        job.order != PIPELINE_OUTSIDE,
        refuse("data parallelism lies outside the pipeline", "placement", "place ranks dp, cp, tp"),
    )


def _beyond_states(job: LaunchJob) -> Iterator[tuple[bool, PlannerError]]:
    """Whether it trains or shards otherwise than DeepSpeed does, and the refusal."""
    decision, shape, zero = job.decision, job.shape, job.decision.zero_stage
    yield (
        job.options.task == "lora",
        refuse("DeepSpeed's configuration has no adapters", "roles", target_of_task(job)),
    )
    yield (
        shape.tp > 1 and zero > TENSOR_PARALLEL_ZERO,
        refuse(f"ZeRO {zero} with tp {shape.tp}", "zero_stage", f"plan ZeRO {TENSOR_PARALLEL_ZERO} or lower, or tp 1"),
    )
    yield (
        decision.precision != "bf16",
        refuse(f"DeepSpeed does not train in {decision.precision}", "precision", "plan bf16"),
    )
    unsharded = job.options.optimizer == "lamb" and zero > 0
    yield (
        job.zero_shards != job.data_ranks and not unsharded,
        refuse(
            f"states sharded over {job.zero_shards} of {job.data_ranks} ranks",
            "zero_shards",
            _or_instead(job, "shard over all ranks"),
        ),
    )
    yield (
        unsharded,
        refuse(
            f"optimizer `lamb` with ZeRO {zero}",
            "zero_stage",
            "plan ZeRO 0: DeepSpeed does not shard LAMB, whose norms are of whole layers",
        ),
    )


def _files(job: LaunchJob) -> dict[str, str]:
    flags = (("--deepspeed", ()), ("--deepspeed_config", ("ds_config.json",)))
    notes = [
        f"The program trains sequences of {job.options.sequence_tokens} tokens.",
        *(f"It recomputes {line}." for line in _recomputed(job)),
    ]
    text = json.dumps(configuration(job), indent=2) + "\n"
    return {"ds_config.json": text, "launch.sh": launch_script(job, (reference("TRAIN"),), flags, notes, NEEDS)}


def _recomputed(job: LaunchJob) -> list[str]:
    """What the program must recompute, in words."""
    run = job.decision.stage_runs[0].recompute
    if run.granularity == "full":
        return [f"the first {run.num_layers} layers whole, by deepspeed.checkpointing"]
    if BY_OPERATOR in run.modules:
        return ["all but outputs of attention and of every second product, by a policy of torch.utils.checkpoint"]
    return [f"{', '.join(run.modules)} of every layer"] if run.granularity == "selective" else []


TARGETS = (
    training_target(
        "deepspeed", "DeepSpeed's configuration, and the script that starts a program with it", _files, "deepspeed"
    ),
)
