"""Emits training plans for Megatron-Bridge: `ConfigContainer` overrides, and a program that applies them.

Megatron-Bridge 0.3 (megatron/bridge/training/config.py). The model comes from its Hugging Face name; the overrides
carry what the plan decided.
"""

from planner.emit.documents import commented, yaml_document
from planner.emit.serving.checkpoints import published_name
from planner.emit.shell import word
from planner.emit.training.batch_ramp import rampup, steps
from planner.emit.training.job import DATA_OUTSIDE, LaunchJob, refuse, training_target
from planner.emit.training.megatron_model import Fields
from planner.emit.training.megatron_plan import (
    OPTIMIZERS,
    SHARDED,
    environment,
    layout,
    parallel_fields,
    require_optimizer,
)
from planner.emit.training.torch_launch import launch_script

NOTES = ("It runs train.py from the folder that it is started in.",)
PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
_PROGRAM = '''"""Trains as planned; tokenizer, data and learning rate are arguments such as `optimizer.lr=3e-4`."""

import sys
from pathlib import Path

from megatron.bridge import AutoBridge
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

HERE = Path(__file__).parent


def main():
    config = _pretrain_common()
    config.model = AutoBridge.from_hf_pretrained(MODEL).to_megatron_provider(load_weights=False)
    config.mixed_precision = PRECISION
    config = process_config_with_overrides(config, str(HERE / "overrides.yaml"), sys.argv[1:])
    pretrain(config=config, forward_step_func=forward_step)


if __name__ == "__main__":
    main()
'''


def sections(job: LaunchJob) -> dict[str, Fields]:
    """The overrides by section of the configuration."""
    require_optimizer(job, "Megatron-Bridge")
    if job.options.task == "lora":
        raise refuse(
            "adapters (task `lora`) have no configuration here",
            "roles",
            "start from a PEFT recipe of Megatron-Bridge and merge the plan's degrees into it",
        )
    decision, options, shape = job.decision, job.options, job.shape
    model = parallel_fields(job) | {"seq_length": options.sequence_tokens}
    if job.shape.pp > 1:
        model["pipeline_model_parallel_layout"] = layout(job)
        model["virtual_pipeline_model_parallel_size"] = shape.vpp if shape.vpp > 1 else None
    if job.model.mtp_layers:
        model["mtp_num_layers"] = job.heads_for_later_tokens or None
    if "activations" in decision.offload:
        model |= {"cpu_offloading": True, "cpu_offloading_num_layers": job.model.num_layers - 1}
    train: Fields = {"micro_batch_size": decision.micro_batch, "global_batch_size": options.global_batch}
    ramp = rampup(job)
    if ramp is not None:
        train["rampup_batch_size"] = list(ramp)
    if options.train_tokens is not None:
        train["train_iters"] = steps(job)
    made = decision.checkpointing
    checkpoint: Fields = {"ckpt_format": "fsdp_dtensor"} if decision.zero_stage > 1 else {}
    if made is not None:
        checkpoint |= {"save_interval": made.interval_steps, "async_save": made.tier != "synchronous"}
    return {
        "model": model,
        "train": train,
        **({"checkpoint": checkpoint} if checkpoint else {}),
        "dataset": {"seq_length": options.sequence_tokens},
        "ddp": _ddp(job),
        "optimizer": {
            "optimizer": OPTIMIZERS[options.optimizer],
            "use_distributed_optimizer": decision.zero_stage > 0,
            "optimizer_cpu_offload": "optimizer" in decision.offload,
        },
        "dist": {"use_tp_pp_dp_mapping": job.order == DATA_OUTSIDE, "use_megatron_fsdp": decision.zero_stage > 1},
    }


def _ddp(job: LaunchJob) -> Fields:
    decision = job.decision
    fields: Fields = {
        "use_distributed_optimizer": decision.zero_stage > 0,
        "overlap_grad_reduce": "grad_reduce" in decision.overlap,
        "overlap_param_gather": "param_gather" in decision.overlap and decision.zero_stage > 0,
    }
    if decision.zero_stage and job.zero_shards != job.data_ranks:
        fields["num_distributed_optimizer_instances"] = job.data_ranks // job.zero_shards
    if decision.zero_stage in SHARDED:
        fields |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": SHARDED[decision.zero_stage]}
    return fields


def _program(job: LaunchJob) -> str:
    key = job.role.model or next(iter(job.cluster.problem.models))
    name = published_name(job.cluster.problem.models[key])
    constants = f"MODEL = {name!r}\nPRECISION = {PRECISIONS[job.decision.precision]!r}\n"
    return _PROGRAM.replace("HERE = Path(__file__).parent\n", f"HERE = Path(__file__).parent\n{constants}")


def _files(job: LaunchJob) -> dict[str, str]:
    return {
        "launch.sh": launch_script(job, (word("train.py"),), (), NOTES, settings=environment(job)),
        "overrides.yaml": yaml_document(job.header, sections(job)),
        "train.py": commented(job.header) + _program(job),
    }


TARGETS = (training_target("megatron-bridge", "overrides for Megatron-Bridge, and a program that trains", _files),)
