"""Emits training plans for Megatron-LM: `pretrain_gpt.py` under `torchrun`, flags of megatron/training/arguments.py.

Flags are named after the fields of the configuration classes but for those below. All were read by the parsers of
Megatron-LM core_v0.16.1, 0.18.0 and 0.19.0, whose `validate_args` takes them but for the fused loss, which it refuses
from 0.18.2 on.
"""

from collections.abc import Iterator

from planner.emit.refusals import refuse
from planner.emit.shell import reference, word
from planner.emit.training.batch_ramp import rampup, samples, steps
from planner.emit.training.job import DATA_OUTSIDE, LaunchJob, training_target
from planner.emit.training.megatron_model import Value, model_fields
from planner.emit.training.megatron_plan import (
    OPTIMIZERS,
    PRECISIONS,
    environment,
    layout,
    parallel_fields,
    reduction,
    require_optimizer,
    shards_by_element,
)
from planner.emit.training.torch_launch import Flag, launch_script
from planner.engines.training import MEGATRON_SHARDED

NOTES = (
    "It runs Megatron-LM's pretrain_gpt.py. Tokenizer, data, learning rate, and what of a model takes no time (rotary",
    "base, norm epsilon, scores and balancing of routers) are no part of a plan: give their flags as arguments of this",
    "script. Megatron-Core from 0.18.2 on refuses Transformer Engine's fused loss, which plans are priced with. There,",
    "add `--cross-entropy-fusion-impl native`, whose logits take 32 bits of memory each, not 16.",
)
NEEDS = {"MEGATRON_LM": "the folder that holds pretrain_gpt.py"}
LOADS = {"PRETRAINED": "the Megatron checkpoint whose weights are trained on"}
_NAMES = {"num_moe_experts": "num-experts", "gated_linear_unit": "swiglu", "fp8": "fp8-format", "fp4": "fp4-format"}


def flags(job: LaunchJob) -> list[Flag]:
    """All flags of the plan."""
    _require_megatron_lm(job)
    fields = model_fields(job) | parallel_fields(job) | PRECISIONS[job.decision.precision]
    model = [flag for name, value in fields.items() for flag in _flag(name, value)]
    return [*model, *_job_flags(job), *_data_parallel_flags(job), *_checkpoint_flags(job)]


def _flag(name: str, value: Value) -> Iterator[Flag]:
    """A field as a flag; fields at the launcher's own default give none."""
    flag = "--" + _NAMES.get(name, name).replace("_", "-")
    match name, value:
        case "add_bias_linear", _:
            if not value:
                yield "--disable-bias-linear", ()
        case "window_size", [before, after]:
            yield flag, (f"({before}, {after})",)
        case "moe_layer_freq", list():
            yield flag, (_pattern([int(kind) for kind in value]),)
        case "num_query_groups", _:
            yield "--group-query-attention", ()
            yield flag, (str(value),)
        case _, bool():
            if value:
                yield flag, ()
        case _, None:
            return
        case _, list():
            yield flag, tuple(map(str, value))
        case _:
            yield flag, (str(value),)


def _pattern(dense_or_moe: list[int]) -> str:
    """The kinds of the layers as an expression of Python lists: `([0]*3+[1]*58)`."""
    runs: list[tuple[int, int]] = []
    for kind in dense_or_moe:
        count = runs.pop()[1] if runs and runs[-1][0] == kind else 0
        runs.append((kind, count + 1))
    return "(" + "+".join(f"[{kind}]*{count}" for kind, count in runs) + ")"


def _job_flags(job: LaunchJob) -> Iterator[Flag]:
    decision, options, model = job.decision, job.options, job.model
    yield "--seq-length", (str(options.sequence_tokens),)
    yield "--max-position-embeddings", (str(max(options.sequence_tokens, model.position_embeddings)),)
    yield "--position-embedding-type", ("learned_absolute" if model.position_embeddings else "rope",)
    if not model.tied_embeddings:
        yield "--untie-embeddings-and-output-weights", ()
    yield "--micro-batch-size", (str(decision.micro_batch),)
    yield "--global-batch-size", (str(options.global_batch),)
    ramp = rampup(job)
    if ramp is not None:  # which Megatron-LM takes with a run counted in samples only
        yield "--rampup-batch-size", tuple(map(str, ramp))
    if options.train_tokens is not None:
        yield ("--train-iters", (str(steps(job)),)) if ramp is None else ("--train-samples", (str(samples(job)),))
    if options.task == "sft":
        yield "--sft", ()
    if decision.sequence_degrees is not None:
        yield "--hybrid-context-parallel", ()
        yield "--max-seqlen-per-dp-cp-rank", (str(decision.sequence_degrees.max_tokens_per_rank),)
        yield "--calculate-per-token-loss", ()
        yield "--dataloader-type", ("single",)
    if decision.cuda_graphs:
        yield "--te-rng-tracker", ()
    yield "--bf16", ()
    yield "--optimizer", (OPTIMIZERS[options.optimizer],)
    if job.shape.pp > 1:
        yield "--pipeline-model-parallel-layout", (layout(job),)
        if "p2p" not in decision.overlap and job.shape.vpp > 1:
            yield "--no-overlap-p2p-communication", ()
    if "activations" in decision.offload:
        yield "--cpu-offloading-num-layers", (str(job.moved_layers),)
    if job.order == DATA_OUTSIDE:
        yield "--use-tp-pp-dp-mapping", ()


def _data_parallel_flags(job: LaunchJob) -> Iterator[Flag]:
    """ZeRO 1 is the distributed optimizer; 2 and 3 are Megatron's FSDP."""
    decision = job.decision
    if decision.zero_stage in MEGATRON_SHARDED:
        yield "--use-megatron-fsdp", ()
        yield "--data-parallel-sharding-strategy", (MEGATRON_SHARDED[decision.zero_stage],)
        yield "--ckpt-format", ("fsdp_dtensor",)
    if shards_by_element(job):
        yield "--use-distributed-optimizer", ()
        if job.zero_shards != job.data_ranks:
            yield "--num-distributed-optimizer-instances", (str(job.data_ranks // job.zero_shards),)
    if "grad_reduce" in decision.overlap:
        yield "--overlap-grad-reduce", ()
    if reduction(job) == "bf16":
        yield "--grad-reduce-in-bf16", ()
    if job.options.in_network_reduction:
        yield "--use-sharp", ()
    if "param_gather" in decision.overlap and decision.zero_stage:
        yield "--overlap-param-gather", ()
    if "optimizer" in decision.offload:
        yield "--optimizer-cpu-offload", ()
        yield "--use-precision-aware-optimizer", ()


def _checkpoint_flags(job: LaunchJob) -> Iterator[Flag]:
    """How often, and whether behind training; where to is for whoever starts the script, with `--save`."""
    made = job.decision.checkpointing
    if made is not None:
        yield "--save-interval", (str(made.interval_steps),)
        if made.tier != "synchronous":
            yield "--async-save", ()
            yield "--use-persistent-ckpt-worker", ()


def _require_megatron_lm(job: LaunchJob) -> None:
    """Raises PlannerError for jobs that Megatron-LM has no flags for."""
    require_optimizer(job, "Megatron-LM")
    if job.options.task == "lora":
        raise refuse("Megatron-LM trains no adapters", "roles", "use `--target megatron-bridge`")
    if "optimizer" in job.decision.offload and not job.decision.zero_stage:
        raise refuse(
            "the optimizer is offloaded and not sharded",
            "zero_stage",
            "plan ZeRO 1, which Megatron-LM asks for with the optimizer on the host",
        )


def script(job: LaunchJob) -> str:
    """The script of every node."""
    program, needs = [reference("MEGATRON_LM", after="/pretrain_gpt.py")], dict(NEEDS)
    if job.options.task == "sft":
        program += [word("--pretrained-checkpoint"), reference("PRETRAINED")]
        needs |= LOADS
    return launch_script(job, program, flags(job), NOTES, needs, environment(job))


def _files(job: LaunchJob) -> dict[str, str]:
    return {"launch.sh": script(job)}


TARGETS = (
    training_target(
        "megatron-lm", "the script that runs Megatron-LM's `pretrain_gpt.py` on every node", _files, "megatron-lm"
    ),
)
