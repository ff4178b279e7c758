"""Training with DeepSpeed: its JSON configuration, and the script that starts the user's program with it.

DeepSpeed 0.19 (deepspeed/runtime/config.py, deepspeed/runtime/zero/config.py). DeepSpeed gets its pipeline and its
experts from the program's own classes, so plans with them are refused.
"""

import json

from planner.emit.registry import Target
from planner.emit.shell import reference
from planner.emit.training.batch_ramp import require_constant
from planner.emit.training.job import PIPELINE_OUTSIDE, TrainJob, read_job, refuse
from planner.emit.training.torch_launch import launch_script
from planner.plan.schema import Decision, Envelope

NEEDS = {"TRAIN": "the program that calls deepspeed.initialize with its --deepspeed_config"}
TENSOR_PARALLEL_ZERO = 2  # the highest stage that its tensor parallelism works with


def configuration(job: TrainJob) -> dict[str, object]:
    """The configuration file."""
    _require_deepspeed(job)
    decision, shape, options = job.decision, job.shape, job.options
    zero: dict[str, object] = {"stage": decision.zero_stage}
    if decision.zero_stage:
        zero["overlap_comm"] = "grad_reduce" in decision.overlap
        zero["contiguous_gradients"] = True
    if "optimizer" in decision.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    found: dict[str, object] = {
        "train_batch_size": options.global_batch,
        "train_micro_batch_size_per_gpu": decision.micro_batch,
        "gradient_accumulation_steps": decision.num_micro_batches,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
    }
    if shape.tp > 1:
        found["tensor_parallel"] = {"autotp_size": shape.tp}
    if shape.cp > 1:
        found["sequence_parallel_size"] = shape.cp
    if any(run.recompute.granularity == "full" for run in decision.stage_runs):
        found["activation_checkpointing"] = {"partition_activations": False, "contiguous_memory_optimization": False}
    return found


def _require_deepspeed(job: TrainJob) -> None:
    """Raises PlannerError for what the configuration cannot say."""
    decision, shape, options = job.decision, job.shape, job.options
    require_constant(job, "DeepSpeed")
    if shape.pp > 1:
        hint = "plan with `search: {pp: 1}`, or use `--target megatron-lm`"
        raise refuse(f"pp {shape.pp}: DeepSpeed cuts pipelines in the program, not by configuration", "roles", hint)
    if shape.ep * shape.moe_tp > 1:
        what = f"ep {shape.ep} x moe_tp {shape.moe_tp}: DeepSpeed lays experts in the program, not by configuration"
        raise refuse(what, "roles", "plan with `search: {ep: 1, moe_tp: 1}`, or use `--target megatron-lm`")
    if shape.cp > 1 and decision.context_parallel != "ulysses":
        what = f"context parallelism by `{decision.context_parallel}`"
        raise refuse(what, "context_parallel", "plan with `search: {context_parallel: ulysses}`, which DeepSpeed has")
    if shape.tp > 1 and decision.zero_stage > TENSOR_PARALLEL_ZERO:
        what = f"ZeRO {decision.zero_stage} with tp {shape.tp}"
        raise refuse(what, "zero_stage", f"plan ZeRO {TENSOR_PARALLEL_ZERO} or lower, or tp 1")
    if decision.precision != "bf16":
        raise refuse(f"DeepSpeed does not train in {decision.precision}", "precision", "plan bf16")
    if job.zero_shards != shape.dp * shape.cp:
        what = f"states sharded over {job.zero_shards} of {shape.dp * shape.cp} ranks"
        raise refuse(what, "zero_shards", "shard over all ranks, or use `--target torchtitan`")
    if options.optimizer == "lamb" and decision.zero_stage:
        what = f"optimizer `lamb` with ZeRO {decision.zero_stage}"
        raise refuse(what, "zero_stage", "plan ZeRO 0: DeepSpeed does not shard LAMB, whose norms are of whole layers")
    if job.order != PIPELINE_OUTSIDE:
        raise refuse("data parallelism lies outside the pipeline", "placement", "place ranks dp, cp, tp")


def _emit(envelope: Envelope, decision: Decision) -> dict[str, str]:
    job = read_job(envelope, decision)
    flags = (("--deepspeed", ()), ("--deepspeed_config", ("ds_config.json",)))
    notes = [
        f"The program trains sequences of {job.options.sequence_tokens} tokens.",
        *(f"It recomputes {line}." for line in _recomputed(job)),
    ]
    text = json.dumps(configuration(job), indent=2) + "\n"
    return {"ds_config.json": text, "launch.sh": launch_script(job, (reference("TRAIN"),), flags, notes, NEEDS)}


def _recomputed(job: TrainJob) -> list[str]:
    """What the program must recompute, in words."""
    run = job.decision.stage_runs[0].recompute
    if run.granularity == "full":
        return [f"the first {run.num_layers} layers whole, by deepspeed.checkpointing"]
    return [f"{', '.join(run.modules)} of every layer"] if run.granularity == "selective" else []


TARGETS = (
    Target("deepspeed", "DeepSpeed's configuration, and the script that starts a program with it", ("train",), _emit),
)
