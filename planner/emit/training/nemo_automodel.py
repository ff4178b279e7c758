"""Emits training plans for NeMo AutoModel: a recipe in YAML for its `finetune.py`, and the script that runs it.

NeMo AutoModel 0.3 (nemo_automodel/components/distributed/config.py, `FSDP2Config`; examples/llm_finetune). Weights come
from the Hugging Face name of the model; data are a file or a data set of questions and answers.
"""

import yaml

from planner.emit.documents import commented
from planner.emit.refusals import raise_all, refuse
from planner.emit.shell import reference, word
from planner.emit.training.batch_ramp import require_constant, steps
from planner.emit.training.job import PIPELINE_OUTSIDE, LaunchJob, training_target
from planner.emit.training.other_target import or_other_target, target_of_task
from planner.emit.training.torch_launch import launch_script

NEEDS = {
    "AUTOMODEL": "the folder that holds examples/llm_finetune/finetune.py",
    "DATA": "a JSON file or data set with the columns `question` and `answer`",
}
RESHARD = {2: False, 3: True}  # weights gathered anew in the backward pass, by ZeRO stage
RECOMPUTE: dict[str, str | bool] = {"none": False, "selective": "selective", "full": "full"}
DISTRIBUTED = "nemo_automodel.components.distributed.config.FSDP2Config"
Section = dict[str, object]


def recipe(job: LaunchJob) -> dict[str, Section]:
    """The sections of a recipe by name; raises PlannerError for a job that NeMo AutoModel does not run."""
    _require_automodel(job)
    require_constant(job, "NeMo AutoModel")
    decision, options = job.decision, job.options
    packed = decision.micro_batch == 1
    scheduler: Section = {"global_batch_size": options.global_batch, "local_batch_size": decision.micro_batch}
    if options.train_tokens is not None:
        scheduler["max_steps"] = steps(job)
    sections: dict[str, Section] = {
        "step_scheduler": scheduler,
        "dist_env": {"backend": "nccl", "timeout_minutes": 10},
        "model": {
            "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
            "pretrained_model_name_or_path": job.model.name,
            "torch_dtype": "bfloat16" if options.task == "lora" else "float32",
        },
        "distributed": _sizes(job),
        "distributed_config": _sharding(job),
        "loss_fn": {"_target_": "nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy"},
        "dataset": {
            "_target_": "nemo_automodel.components.datasets.llm.column_mapped_text_instruction_dataset."
            "ColumnMappedTextInstructionDataset",
            "column_mapping": {"question": "question", "answer": "answer"},
            **({} if packed else {"seq_length": options.sequence_tokens, "padding": "max_length"}),
        },
        "packed_sequence": {"packed_sequence_size": options.sequence_tokens if packed else 0},
        "dataloader": {
            "_target_": "torchdata.stateful_dataloader.StatefulDataLoader",
            "collate_fn": "nemo_automodel.components.datasets.utils.default_collater",
        },
        "optimizer": {"_target_": "torch.optim.AdamW", "lr": 1.0e-5},
    }
    if options.task == "lora":
        sections["peft"] = {
            "_target_": "nemo_automodel.components._peft.lora.PeftConfig",
            "target_modules": ["*.q_proj", "*.k_proj", "*.v_proj", "*.o_proj"],
            "dim": options.lora_rank,
            "alpha": 2 * options.lora_rank,
        }
    return sections


def _sizes(job: LaunchJob) -> Section:
    shape, shard = job.shape, job.zero_shards // job.shape.cp
    return {
        "dp_size": shape.dp,
        "dp_replicate_size": shape.dp // shard,
        "tp_size": shape.tp,
        "cp_size": shape.cp,
    }


def _sharding(job: LaunchJob) -> Section:
    decision = job.decision
    fields: Section = {
        "_target_": DISTRIBUTED,
        "sequence_parallel": decision.sequence_parallel,
        "activation_checkpointing": RECOMPUTE[job.common_recompute("NeMo AutoModel")],
        "reshard_after_forward": RESHARD[decision.zero_stage],
        "enable_async_tensor_parallel": "tp_comm" in decision.overlap and job.shape.tp > 1,
        "enable_fsdp2_prefetch": "param_gather" in decision.overlap,
        "defer_fsdp_grad_sync": False,  # gradients are scattered with every micro-batch, as priced
    }
    if "optimizer" in decision.offload:
        fields["offload_policy"] = {"_target_": "torch.distributed.fsdp.CPUOffloadPolicy"}
    return fields


def _require_automodel(job: LaunchJob) -> None:
    """Raises PlannerError for what NeMo AutoModel's configuration cannot say."""
    decision, shape = job.decision, job.shape
    pretrained = job.options.task == "pretrain"
    whole = [run for run in job.stages if run.recompute.granularity == "full"]
    problems = (
        (pretrained, "roles", "no pre-training from scratch here"),
        (shape.pp > 1, "roles", "no pipeline here"),
        (shape.ep * shape.moe_tp > 1, "roles", "no experts on several ranks here"),
        (decision.zero_stage not in RESHARD, "zero_stage", f"no ZeRO {decision.zero_stage} here"),
        (decision.precision != "bf16", "precision", f"no {decision.precision} here"),
        (shape.cp > 1 and decision.context_parallel == "ulysses", "context_parallel", "no context parallel `ulysses`"),
        (job.heads_for_later_tokens > 0, "stage_runs", "no MTP heads in this configuration"),
        (job.options.optimizer != "adamw", "roles", f"no optimizer `{job.options.optimizer}` here"),
        ("activations" in decision.offload, "offload", "no offloading of activations here"),
        (job.zero_shards % shape.cp > 0, "zero_shards", f"no shards that cut the {shape.cp} context-parallel ranks"),
        (job.order != PIPELINE_OUTSIDE, "placement", "no data parallelism outside the pipeline"),
        (
            any(run.recompute.num_layers != run.num_layers for run in whole),
            "stage_runs",
            "no recomputation of a part of the layers whole",
        ),
    )
    hint = target_of_task(job) if pretrained else or_other_target(job, "plan without it", "megatron-bridge")
    raise_all(*((applies, refuse(f"NeMo AutoModel has {what}", where, hint)) for applies, where, what in problems))


def _files(job: LaunchJob) -> dict[str, str]:
    text = commented(job.header) + yaml.safe_dump(recipe(job), sort_keys=False)
    notes = ["Run it from the folder that holds recipe.yaml."]
    if job.recomputes("selective"):
        notes.append("AutoModel recomputes by operator: all but outputs of attention and of every second product.")
    flags = (("--config", ("recipe.yaml",)),)
    program = [reference("AUTOMODEL", after="/examples/llm_finetune/finetune.py")]
    program += [word("--dataset.path_or_dataset_id"), reference("DATA")]
    return {"launch.sh": launch_script(job, program, flags, notes, NEEDS), "recipe.yaml": text}


TARGETS = (
    training_target(
        "nemo-automodel", "a recipe of NeMo AutoModel, and the script that runs it", _files, "nemo-automodel"
    ),
)
