"""A training plan in Megatron-Core's terms: fields of its `ModelParallelConfig` and `TransformerConfig`."""

from planner.emit.refusals import raise_first, refuse
from planner.emit.training.job import LaunchJob
from planner.emit.training.megatron_model import Fields
from planner.engines.training import MEGATRON_CONTEXT, MEGATRON_MODULES, MEGATRON_SHARDED, TRAINING_ENGINES
from planner.kinds.train.decision import StageRun
from planner.models.architecture import MoeFfn

SCHEDULES = ("1f1b", "interleaved")
PRECISIONS: dict[str, Fields] = {  # fields for the formats of matrix products; the rest is bf16
    "bf16": {},
    "fp8": {"fp8": "hybrid", "fp8_recipe": "tensorwise"},
    "fp8_block": {"fp8": "e4m3", "fp8_recipe": "blockwise"},
    "mxfp8": {"fp8": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"fp4": "e2m1", "fp4_recipe": "nvfp4"},
}
FUSED_LOSS: Fields = {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}
"""Logits stay in 16 bits at the loss, as they are priced: of Megatron-Core's own fusion, and without one, in 32."""
OPTIMIZERS = {"adamw": "adam", "sgd": "sgd", "muon": "dist_muon"}


def parallel_fields(job: LaunchJob) -> Fields:
    """Degrees, precision and overlap."""
    shape, decision = job.shape, job.decision
    require_schedule(job)
    fields: Fields = {
        "tensor_model_parallel_size": shape.tp,
        "pipeline_model_parallel_size": shape.pp,
        "context_parallel_size": shape.cp,
        "expert_model_parallel_size": shape.ep,
        "sequence_parallel": decision.sequence_parallel,
    }
    if shape.ep * shape.moe_tp > 1:
        fields["expert_tensor_parallel_size"] = shape.moe_tp
    if shape.cp > 1:
        fields["cp_comm_type"] = MEGATRON_CONTEXT[decision.context_parallel]
    if "tp_comm" in decision.overlap and shape.tp > 1:
        fields["tp_comm_overlap"] = True
    if "ep_comm" in decision.overlap and shape.ep > 1:
        fields["overlap_moe_expert_parallel_comm"] = True
    if shape.ep * shape.moe_tp > 1 and shape.tp > 1 and not decision.sequence_parallel:
        raise refuse(
            f"experts over ep {shape.ep} with tp {shape.tp} and no sequence parallelism",
            "sequence_parallel",
            "turn sequence parallelism on: Megatron-Core asks for it",
        )
    fields |= dropout_fields(job) | FUSED_LOSS
    return fields | _dispatcher(job) | _capacity(job) | recompute_fields(job) | _graphs(job)


def _graphs(job: LaunchJob) -> Fields:
    """What is captured: whole steps by Megatron-Core itself, parts of layers by Transformer Engine."""
    scopes: list[str] = [*job.decision.cuda_graphs]
    if not scopes:
        return {}
    whole = "full_iteration" in scopes
    return {"cuda_graph_impl": "local" if whole else "transformer_engine", "cuda_graph_scope": scopes}


def _dispatcher(job: LaunchJob) -> Fields:
    """What sends tokens to their experts: all-to-all, or the flexible dispatcher with a library that forwards."""
    if not any(isinstance(layer.ffn, MoeFfn) for layer in job.model.layers):
        return {}
    library = job.decision.dispatcher
    if library is None or library == "alltoall":
        return {"moe_token_dispatcher_type": "alltoall"}
    return {
        "moe_token_dispatcher_type": "flex",
        "moe_flex_dispatcher_backend": library,
        "moe_router_dtype": "fp32",  # the libraries take probabilities in fp32 alone
    }


def _capacity(job: LaunchJob) -> Fields:
    """The most rows that an expert takes, where the problem limits them."""
    load = job.options.experts
    if load is None or load.capacity is None:
        return {}
    fields: Fields = {"moe_expert_capacity_factor": load.capacity}
    return fields | ({"moe_pad_expert_input_to_capacity": True} if load.padded else {})


def shards_by_element(job: LaunchJob) -> bool:
    """Whether the distributed optimizer shards states; Muon's lie on ranks by whole layers (`dist_muon`)."""
    return job.decision.zero_stage > 0 and job.options.optimizer != "muon"


def reduction(job: LaunchJob) -> str:
    """The format that gradients are summed in: what the problem says, else what the plan is priced with."""
    return job.options.reduce_gradients or TRAINING_ENGINES["megatron-lm"].reductions[0]


def layout(job: LaunchJob) -> str:
    """The pipeline layout: E embedding, t layer, m MTP head, L loss, `|` between stages, equal ones as `()*n`."""
    runs = [(_stage(run, job.heads_for_later_tokens), run.stages) for run in job.decision.stage_runs]
    last = len(runs) - 1
    return "".join(_run(text, count, index == last) for index, (text, count) in enumerate(runs))


def dropout_fields(job: LaunchJob) -> Fields:
    """What is dropped, which is a tenth where Megatron-Core is not told (`TransformerConfig`)."""
    drops = job.options.dropout
    hidden, attention = (drops.hidden, drops.attention) if drops else (0.0, 0.0)
    return {"hidden_dropout": hidden, "attention_dropout": attention}


def recompute_fields(job: LaunchJob) -> Fields:
    """What every stage recomputes; PlannerError where stages differ beyond what one setting says of all."""
    kind = job.common_recompute("Megatron")
    stages = [stage for stage in job.stages if stage.num_layers]
    if kind == "none":
        return {}
    if kind == "selective":
        return _selective(stages)
    most = max(stage.recompute.num_layers for stage in stages)
    if all(stage.recompute.num_layers == stage.num_layers for stage in stages):
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if any(stage.recompute.num_layers != min(most, stage.num_layers) for stage in stages):
        raise refuse(
            "stages recompute different numbers of layers",
            "stage_runs",
            "Megatron has one number for all stages: plan the same everywhere",
        )
    return {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": most}


def require_optimizer(job: LaunchJob, launcher: str) -> None:
    """Raises PlannerError for optimizers, and shards of them, that neither launcher of Megatron-Core has."""
    raise_first(
        (
            job.options.optimizer not in OPTIMIZERS,
            refuse(
                f"{launcher} has no optimizer `{job.options.optimizer}`",
                "roles",
                "set `options.optimizer` to adamw",
            ),
        ),
        (
            job.options.optimizer == "muon" and launcher != "Megatron-LM",
            refuse(f"{launcher} has no optimizer `muon`", "roles", "use `--target megatron-lm`"),
        ),
        (
            job.data_ranks % job.zero_shards > 0,
            refuse(
                f"{job.zero_shards} shards of the optimizer on {job.data_ranks} ranks",
                "zero_shards",
                "use a number that divides the ranks",
            ),
        ),
    )


def require_schedule(job: LaunchJob) -> None:
    """Raises PlannerError for schedules that Megatron-Core does not run, and for what it cannot combine."""
    decision = job.decision
    if decision.schedule not in SCHEDULES:
        able = " or ".join(f"`{name}`" for name in SCHEDULES)
        raise refuse(
            f"Megatron-Core has no schedule `{decision.schedule}`",
            "schedule",
            f"plan {able}: write `search: {{schedule: [{', '.join(SCHEDULES)}]}}` into the options",
        )
    if decision.zero_stage in MEGATRON_SHARDED and job.options.task != "pretrain":
        raise refuse(
            f"task `{job.options.task}` with ZeRO {decision.zero_stage}",
            "zero_stage",
            "plan with `options.search.zero_stage=[0, 1]`: Megatron's FSDP does not read the checkpoints that hold "
            "weights",
        )
    if decision.zero_stage in MEGATRON_SHARDED and job.shape.pp > 1:
        raise refuse(
            f"ZeRO {decision.zero_stage} with pp {job.shape.pp}",
            "zero_stage",
            "Megatron's FSDP has no pipeline: plan with `options.search.zero_stage=[0, 1]`, or use "
            "`--target torchtitan`",
        )
    if "activations" in decision.offload and job.shape.pp > 1:
        raise refuse(
            f"activations are offloaded with pp {job.shape.pp}",
            "offload",
            "Megatron-Core offloads activations without a pipeline only: plan pp 1",
        )
    _require_overlaps(job)


def environment(job: LaunchJob) -> dict[str, str]:
    """How many queues a device has: one keeps collectives before the kernels beside them, FSDP needs several.

    Megatron-Core asks that NCCL registers no buffers of graphs beside segments that expand.
    """
    queues = {"CUDA_DEVICE_MAX_CONNECTIONS": "8" if job.decision.zero_stage > 1 else "1"}
    return queues | ({"NCCL_GRAPH_REGISTER": "0"} if job.decision.cuda_graphs else {})


def _require_overlaps(job: LaunchJob) -> None:
    """Raises PlannerError for overlap that Megatron-Core asserts against when it starts."""
    decision, shape = job.decision, job.shape
    names = set(decision.overlap)
    tensors, experts = "tp_comm" in names and shape.tp > 1, "ep_comm" in names and shape.ep > 1
    problems = (
        (tensors and not decision.sequence_parallel, "`tp_comm` without sequence parallelism"),
        (experts and shape.pp > 1 and shape.vpp == 1, "`ep_comm` in a pipeline with vpp 1"),
        (experts and job.recomputes("full"), "`ep_comm` with layers recomputed whole"),
        (shape.vpp > 1 and shape.pp == 2 and "p2p" not in names, "interleaving over pp 2 without `p2p`"),
    )
    hint = "Megatron-Core refuses it: change `options.overlap`"
    raise_first(*((applies, refuse(f"overlap of {what}", "overlap", hint)) for applies, what in problems))


def _selective(stages: list[StageRun]) -> Fields:
    modules = stages[0].recompute.modules
    if unknown := [name for name in modules if name not in MEGATRON_MODULES]:
        raise refuse(
            f"Megatron-Core computes no `{unknown[0]}` again by itself",
            "stage_runs",
            "plan it for `megatron-lm`, or with `search: {recompute: [none, full]}`",
        )
    if any(set(stage.recompute.modules) != set(modules) for stage in stages):
        raise refuse(
            "stages recompute different modules",
            "stage_runs",
            "Megatron has one list for all stages: plan the same everywhere",
        )
    return {"recompute_granularity": "selective", "recompute_modules": [MEGATRON_MODULES[name] for name in modules]}


def _stage(run: StageRun, heads: int) -> str:
    layers = "" if not run.num_layers else "t" if run.num_layers == 1 else f"t*{run.num_layers}"
    mtp = ("m" if heads == 1 else f"m*{heads}") if "mtp" in run.parts and heads else ""
    return ("E" if "embedding" in run.parts else "") + layers + mtp + ("L" if "loss" in run.parts else "")


def _run(stage: str, count: int, last: bool) -> str:
    """`count` equal stages with a bar after each, but for the last stage of the pipeline."""
    followed = count - 1 if last else count
    bars = f"({stage}|)*{followed}" if followed > 1 else f"{stage}|" * followed
    return bars + (stage if last else "")
