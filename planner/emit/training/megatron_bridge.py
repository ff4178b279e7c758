"""Emits training plans for Megatron-Bridge: `ConfigContainer` overrides, and a program that applies them.

Megatron-Bridge 0.3 (megatron/bridge/training/config.py). The model comes from its Hugging Face name; the overrides
carry what the plan decided. Fine-tuning loads weights from a checkpoint that `AutoBridge.import_ckpt` writes, and reads
a folder of examples (megatron/bridge/recipes/common.py: `_sft_common`, `_peft_common`).
"""

from planner.emit.documents import commented, yaml_document
from planner.emit.serving.checkpoints import loaded_name
from planner.emit.shell import word
from planner.emit.training.apart import bridge_files
from planner.emit.training.batch_ramp import rampup, steps
from planner.emit.training.job import DATA_OUTSIDE, LaunchJob, require_trained, training_target
from planner.emit.training.megatron_model import Fields
from planner.emit.training.megatron_plan import (
    OPTIMIZERS,
    environment,
    layout,
    parallel_fields,
    reduction,
    require_optimizer,
)
from planner.emit.training.torch_launch import launch_script
from planner.emit.training.towers import DATA_OF_TOWERS, frozen_fields, mock_images, require_towers, sample_order
from planner.engines.trained_models import trained_without
from planner.engines.training import MEGATRON_SHARDED
from planner.models.architecture import MoeFfn

NOTES = ("It runs train.py from the folder that it is started in.",)
PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "fp8_block": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
NEEDS = {  # of fine-tuning
    "PRETRAINED": "the Megatron checkpoint to start from, which AutoBridge.import_ckpt writes of a Hugging Face model",
    "DATA": "the folder that holds training.jsonl and validation.jsonl",
}
_PROGRAM = '''"""{what}"""

{system}import sys
from pathlib import Path

from megatron.bridge import AutoBridge
{imports}
from megatron.bridge.training.{step} import forward_step
from megatron.bridge.training.{verb} import {verb}
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

HERE = Path(__file__).parent
MODEL = {model!r}
PRECISION = {precision!r}


def main():
    config = {recipe}()
    config.model = AutoBridge.from_hf_pretrained(MODEL).to_megatron_provider(load_weights=False)
    config.mixed_precision = get_mixed_precision_config(PRECISION)
    config.mixed_precision.grad_reduce_in_fp32 = {fp32}
{loads}    config = process_config_with_overrides(config, str(HERE / "overrides.yaml"), sys.argv[1:])
    {verb}(config=config, forward_step_func=forward_step)


if __name__ == "__main__":
    main()
'''
_LOADS = """    config.tokenizer.tokenizer_model = MODEL
    config.checkpoint.pretrained_checkpoint = os.environ["PRETRAINED"]
    config.dataset = FinetuningDatasetConfig(
        dataset_root=os.environ["DATA"],
        seq_length={tokens},
        dataset_kwargs={{"pad_to_max_length": True}},
        packed_sequence_specs={packed},
        do_test=False,
    )
"""
_ADAPTERS = """    config.peft = LoRA(target_modules={modules!r}, dim={rank}, alpha={rank})
"""
ADAPTED = ["linear_qkv", "linear_proj"]
"""Megatron-Core's names of the products that adapters stand beside in the costs: those of the attention."""


def sections(job: LaunchJob) -> dict[str, Fields]:
    """The overrides by section of the configuration."""
    require_optimizer(job, "Megatron-Bridge")
    require_trained(job, "megatron-bridge")
    if not _apart(job):
        require_towers(job)
    decision, options, shape = job.decision, job.options, job.shape
    model = parallel_fields(job) | {"seq_length": options.sequence_tokens}
    if job.shape.pp > 1:
        model["pipeline_model_parallel_layout"] = layout(job)
        model["virtual_pipeline_model_parallel_size"] = shape.vpp if shape.vpp > 1 else None
        beside = shape.vpp > 1 and "p2p" in decision.overlap
        model |= {"overlap_p2p_comm": beside, "batch_p2p_comm": not beside}
    if any(isinstance(layer.ffn, MoeFfn) for layer in job.model.layers):
        model["moe_permute_fusion"] = True  # as it is priced
    if _tuned(job) and shape.cp > 1:  # ranks whose tokens are all masked have no loss of their own
        model["calculate_per_token_loss"] = True
    if job.model.mtp_layers:
        model["mtp_num_layers"] = job.heads_for_later_tokens or None
    if trained_without(job.model):  # attention over all tokens, as it is priced
        model["experimental_attention_variant"] = None
    if "activations" in decision.offload:
        model |= {"cpu_offloading": True, "cpu_offloading_num_layers": job.moved_layers}
    if decision.cuda_graphs:
        model["use_te_rng_tracker"] = True
    model |= {} if _apart(job) else frozen_fields(job)
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
        **({"rng": {"te_rng_tracker": True}} if decision.cuda_graphs else {}),
        "dataset": {"seq_length": options.sequence_tokens},
        "ddp": _ddp(job),
        "optimizer": {
            "optimizer": OPTIMIZERS[options.optimizer],
            "use_distributed_optimizer": decision.zero_stage > 0,
            **_host_optimizer(job),
        },
        "dist": {
            "use_tp_pp_dp_mapping": job.order == DATA_OUTSIDE,
            "use_megatron_fsdp": decision.zero_stage > 1,
            **({"use_sharp": True} if options.in_network_reduction else {}),
        },
    }


def _host_optimizer(job: LaunchJob) -> Fields:
    """All of the optimizer on the host, as Megatron-Core does by the code of its precision-aware optimizer, or none."""
    if "optimizer" not in job.decision.offload:
        return {"optimizer_cpu_offload": False}
    return {
        "optimizer_cpu_offload": True,
        "optimizer_offload_fraction": 1.0,
        "use_precision_aware_optimizer": True,
    }


def _ddp(job: LaunchJob) -> Fields:
    decision = job.decision
    fields: Fields = {
        "grad_reduce_in_fp32": reduction(job) == "fp32",
        "use_distributed_optimizer": decision.zero_stage > 0,
        "overlap_grad_reduce": "grad_reduce" in decision.overlap,
        "overlap_param_gather": "param_gather" in decision.overlap and decision.zero_stage > 0,
    }
    if _tuned(job) and job.shape.cp > 1:
        fields["average_in_collective"] = False
    if decision.zero_stage and job.zero_shards != job.data_ranks:
        fields["num_distributed_optimizer_instances"] = job.data_ranks // job.zero_shards
    if decision.zero_stage in MEGATRON_SHARDED:
        fields |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": MEGATRON_SHARDED[decision.zero_stage]}
    return fields


def _apart(job: LaunchJob) -> bool:
    """Whether towers have GPUs of their own."""
    return any(module.place == "apart" for module in job.decision.modules)


def _tuned(job: LaunchJob) -> bool:
    """Whether training starts from given weights."""
    return job.options.task != "pretrain"


def _program(job: LaunchJob) -> str:
    key, task = job.role.model or next(iter(job.cluster.problem.models)), job.options.task
    recipe = {"pretrain": "_pretrain_common", "sft": "_sft_common", "lora": "_peft_common"}[task]
    imports = [f"from megatron.bridge.recipes.common import {recipe}"]
    loads, what = "", "Trains as planned; tokenizer, data and learning rate are arguments such as `optimizer.lr=3e-4`."
    if _tuned(job):
        what = "Trains given weights as planned; the learning rate is an argument such as `optimizer.lr=5e-6`."
        packed = "None"  # its recipes pack sequences into micro-batches of one alone
        if job.decision.micro_batch == 1:
            imports.insert(0, "from megatron.bridge.data.datasets.packed_sequence import PackedSequenceSpecs")
            pieces = 2 * job.shape.cp if job.shape.cp > 1 else 1
            tokens = job.options.sequence_tokens
            packed = f"PackedSequenceSpecs(packed_sequence_size={tokens}, pad_seq_to_mult={pieces})"
        loads = _LOADS.format(tokens=job.options.sequence_tokens, packed=packed)
        imports.append("from megatron.bridge.training.config import FinetuningDatasetConfig")
    if task == "lora":
        loads += _ADAPTERS.format(modules=ADAPTED, rank=job.options.lora_rank)
        imports.insert(-2, "from megatron.bridge.peft.lora import LoRA")
    if job.decision.modules:
        loads = mock_images(job)
        imports.append(DATA_OF_TOWERS)
        what = "Trains as planned on mock images; put your own dataset in their place."
    return _PROGRAM.format(
        what=what,
        step="vlm_step" if job.decision.modules else "gpt_step",
        system="import os\n" if _tuned(job) else "",
        imports="\n".join(imports),
        verb="finetune" if _tuned(job) else "pretrain",
        model=loaded_name(job.cluster.problem.models[key]),
        precision=PRECISIONS[job.decision.precision],
        fp32=reduction(job) == "fp32",
        recipe=recipe,
        loads=loads,
    )


def _files(job: LaunchJob) -> dict[str, str]:
    if _apart(job):
        return {**bridge_files(job, yaml_document(job.header, sections(job))), **sample_order(job)}
    needs = NEEDS if _tuned(job) else {}
    return {
        "launch.sh": launch_script(job, (word("train.py"),), (), NOTES, needs, settings=environment(job)),
        "overrides.yaml": yaml_document(job.header, sections(job)),
        "train.py": commented(job.header) + _program(job),
        **sample_order(job),
    }


TARGETS = (
    training_target(
        "megatron-bridge",
        "overrides for Megatron-Bridge, and a program that trains",
        _files,
        "megatron-bridge",
        towers=True,
    ),
)
