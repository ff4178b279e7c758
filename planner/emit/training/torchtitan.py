"""Emits training plans for torchtitan: a module for its `--module` and `--config`, and the script that runs it.

torchtitan 0.3 (torchtitan/config/configs.py, torchtitan/config/manager.py). The model comes from torchtitan's own
registry; what the plan decided replaces training, parallelism and recomputation of its configuration.
"""

from planner.emit.documents import commented
from planner.emit.refusals import raise_all, refuse
from planner.emit.shell import word
from planner.emit.training.batch_ramp import require_constant
from planner.emit.training.job import PIPELINE_OUTSIDE, LaunchJob, require_trained, training_target
from planner.emit.training.other_target import or_other_target, target_of_task
from planner.emit.training.torch_launch import launch_script
from planner.engines.trained_models import TITAN_MODELS

SCHEDULES = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb_v": "ZBVZeroBubble", "dualpipev": "DualPipeV"}
RESHARD = {0: "default", 2: "never", 3: "always"}
CONVERTERS = {
    "bf16": ("", ""),
    "fp8": (
        "from torchtitan.components.quantization import Float8LinearConverter\n",
        'Float8LinearConverter.Config(filter_fqns=["lm_head"], model_compile_enabled=True)',
    ),
    "mxfp8": (
        "from torchtitan.components.quantization import MXFP8LinearConverter\n",
        "MXFP8LinearConverter.Config(model_compile_enabled=True)",
    ),
}
RECOMPUTE = {"none": "", "selective": "SelectiveAC", "full": "FullAC"}
_TEXT = '''"""The configuration that torchtitan trains with as planned: `--module plan --config plan`."""

from dataclasses import replace

{quantisation}from torchtitan.config import CompileConfig, ParallelismConfig
{recompute_import}from torchtitan.models.{package} import model_registry
from torchtitan.models.{package}.config_registry import {base}

STAGES = {stages}


def plan():
    """The model's own configuration with what the plan decided in place of its defaults."""
    config = {base}()
    return replace(
        config,
        model_spec=model_registry({flavour!r}{converters}),
        training=replace(
            config.training,
{training}        ),
        parallelism=ParallelismConfig(
{parallelism}            module_fqns_per_model_part=STAGES,
        ),
        activation_checkpoint={recompute},
        compile=CompileConfig(enable=True, enable_async_tensor_parallel={async_tp}),
    )
'''


def module(job: LaunchJob) -> str:
    """Text of the configuration module."""
    _require_torchtitan(job)
    require_constant(job, "torchtitan")
    known, decision = TITAN_MODELS[job.model.name], job.decision
    quantisation, converter = CONVERTERS[decision.precision]
    recompute = RECOMPUTE[job.common_recompute("torchtitan")]
    return _TEXT.format(
        quantisation=quantisation,
        package=known.package,
        base=known.base,
        flavour=known.flavour,
        converters=f", converters=[{converter}]" if converter else "",
        stages=_stages(job),
        training=_lines(_training(job)),
        parallelism=_lines(_parallelism(job)),
        recompute_import=f"from torchtitan.distributed.activation_checkpoint import {recompute}\n" if recompute else "",
        recompute=f"{recompute}.Config()" if recompute else "None",
        async_tp="tp_comm" in decision.overlap and job.shape.tp > 1,
    )


def _training(job: LaunchJob) -> dict[str, object]:
    decision, options = job.decision, job.options
    batch = decision.micro_batch * (decision.num_micro_batches if job.shape.pp > 1 else 1)
    fields: dict[str, object] = {
        "local_batch_size": batch,
        "global_batch_size": options.global_batch,
        "seq_len": options.sequence_tokens,
        "enable_cpu_offload": "optimizer" in decision.offload,
        "disable_cuda_graphs": True,
    }
    if options.train_tokens is not None:
        fields["steps"] = -(-int(options.train_tokens) // (options.global_batch * options.sequence_tokens))
    return fields


def _parallelism(job: LaunchJob) -> dict[str, object]:
    decision, shape = job.decision, job.shape
    shard = job.zero_shards // shape.cp if decision.zero_stage else 1
    fields: dict[str, object] = {
        "data_parallel_replicate_degree": shape.dp // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": RESHARD[decision.zero_stage],
        "tensor_parallel_degree": shape.tp,
        "enable_sequence_parallel": decision.sequence_parallel,
        "pipeline_parallel_degree": shape.pp,
        "context_parallel_degree": shape.cp,
        "expert_parallel_degree": shape.ep,
    }
    if shape.pp > 1:
        fields["pipeline_parallel_schedule"] = SCHEDULES[decision.schedule]
        fields["pipeline_parallel_microbatch_size"] = decision.micro_batch
    return fields


def _stages(job: LaunchJob) -> str:
    """The modules of every stage of the pipeline, in the order in which a micro-batch passes them."""
    if job.shape.pp == 1:
        return "None"
    rows, layer = [], 0
    for run in job.stages:
        names = ["tok_embeddings"] if "embedding" in run.parts else []
        names += [f"layers.{index}" for index in range(layer, layer + run.num_layers)]
        names += ["norm", "lm_head"] if "loss" in run.parts else []
        rows.append(f"    {names!r},\n".replace("'", '"'))
        layer += run.num_layers
    return "[\n" + "".join(rows) + "]"


def _require_torchtitan(job: LaunchJob) -> None:
    """Raises PlannerError for what torchtitan's configuration cannot say."""
    decision, shape = job.decision, job.shape
    require_trained(job, "torchtitan")
    whole = [run for run in job.stages if run.recompute.granularity == "full"]
    parts_of_layers = any(run.recompute.num_layers != run.num_layers for run in whole)
    pretrained = job.options.task == "pretrain"
    task = (
        not pretrained,
        refuse(
            f"torchtitan's configuration here starts from no weights, and task `{job.options.task}` does",
            "roles",
            target_of_task(job),
        ),
    )
    problems = (
        (decision.schedule not in SCHEDULES and shape.pp > 1, "schedule", f"no schedule `{decision.schedule}`"),
        (decision.zero_stage not in RESHARD, "zero_stage", "no ZeRO 1, which shards optimizer states alone"),
        (decision.precision not in CONVERTERS, "precision", f"no {decision.precision} for all layers"),
        (shape.cp > 1 and decision.context_parallel == "ulysses", "context_parallel", "no context parallel `ulysses`"),
        (decision.dispatcher not in (None, "alltoall"), "dispatcher", f"no dispatcher `{decision.dispatcher}` here"),
        (shape.moe_tp > 1, "roles", "no tensor parallelism of experts beside their expert parallelism"),
        (job.heads_for_later_tokens > 0, "stage_runs", "no MTP heads in this configuration"),
        (job.options.optimizer != "adamw", "roles", f"no optimizer `{job.options.optimizer}` here"),
        ("activations" in decision.offload, "offload", "no offloading of activations"),
        (job.zero_shards % shape.cp > 0, "zero_shards", f"no shards that cut the {shape.cp} context-parallel ranks"),
        (decision.zero_stage == 0 and shape.cp > 1, "zero_stage", "no context parallelism without sharded states"),
        (job.order != PIPELINE_OUTSIDE, "placement", "no data parallelism outside the pipeline"),
        (parts_of_layers, "stage_runs", "no recomputation of a part of the layers whole"),
    )
    hint = or_other_target(job, "plan without it", "megatron-lm") if pretrained else target_of_task(job)
    raise_all(task, *((applies, refuse(f"torchtitan has {what}", where, hint)) for applies, where, what in problems))


def _lines(fields: dict[str, object]) -> str:
    return "".join(f"            {name}={value!r},\n".replace("'", '"') for name, value in fields.items())


def _files(job: LaunchJob) -> dict[str, str]:
    flags = (("--module", ("plan",)), ("--config", ("plan",)))
    notes = ["Run it from the folder that holds plan.py."]
    if job.recomputes("selective"):
        notes.append("torchtitan recomputes by operator: all but outputs of attention and of every second product.")
    program = (word("-m"), word("torchtitan.train"))
    return {"launch.sh": launch_script(job, program, flags, notes), "plan.py": commented(job.header) + module(job)}


TARGETS = (
    training_target(
        "torchtitan", "a configuration module of torchtitan, and the script that runs it", _files, "torchtitan"
    ),
)
