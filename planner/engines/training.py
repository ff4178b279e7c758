"""What training engines launch: schedules, sharding, precisions, offloads, by engine, as their sources have it.

- `megatron-lm` (megatron/training/arguments.py, core 0.16) and `megatron-bridge` (0.3.1, megatron/bridge/training/
  config.py): 1F1B and interleaved schedules; ZeRO 1 is the distributed optimizer, ZeRO 2 and 3 are Megatron's FSDP,
  which has no pipeline and reads no checkpoint of another layout, so that fine-tuning does without it; experts are sent
  by `alltoall`, or by the `flex` dispatcher with DeepEP or, in racks of 72, HybridEP (moe_flex_dispatcher_backend).
  Megatron-LM has Muon, with states by whole layers on data-parallel ranks (`dist_muon`).
- `torchtitan` (0.3, torchtitan/config/configs.py, torchtitan/distributed/fsdp.py): FSDP2 beside the schedules of
  torch.distributed.pipelining; ZeRO 2 keeps gathered weights until the step ends. Its DeepSeek-V3 of 671B has no MTP
  heads (torchtitan/models/deepseek_v3, `num_mtp_layers`), nor have models of Hugging Face that NeMo AutoModel trains.
- `deepspeed` (0.19, deepspeed/runtime/config.py): ZeRO 0 to 3; its pipelines and experts are classes of the program, so
  that no configuration states them, and its tensor parallelism works with ZeRO 2 at most.
- `nemo-automodel` (0.3, nemo_automodel/components/distributed/config.py): FSDP2 of models of Hugging Face, which it
  fine-tunes; its pipelines and experts on several ranks are left out here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

from planner.errors import PlannerError, require_known

TrainingEngineName = Literal["megatron-lm", "megatron-bridge", "torchtitan", "deepspeed", "nemo-automodel"]
Dispatcher = Literal["alltoall", "deepep", "hybridep"]
Reduction = Literal["bf16", "fp32"]

MEGATRON_MODULES = {
    "core_attention": "core_attn",
    "mlp": "mlp",
    "moe": "moe",
    "moe_activation": "moe_act",
    "layernorm": "layernorm",
    "mla_up_projection": "mla_up_proj",
}
"""What Megatron-Core calls modules that are computed again (`recompute_modules`), by their names in plans."""

MEGATRON_SHARDED = {2: "optim_grads", 3: "optim_grads_params"}
"""What its FSDP shards, by ZeRO stage; 1 is the distributed optimizer."""
MEGATRON_CONTEXT = {"ring": "p2p", "all_gather": "all_gather", "ulysses": "a2a"}
"""How its context-parallel ranks exchange keys and values (`cp_comm_type`), by the names of plans."""

FORWARDING: tuple[Dispatcher, ...] = ("deepep", "hybridep")
"""Dispatchers that send a token to a domain once for all of its experts there."""

DEEPEP_RANKS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)
"""Sizes of groups that DeepEP has settings for (`get_dispatch_config` of deep_ep/buffer.py, which Megatron-Core calls);
one rank sends nothing."""


@dataclass(frozen=True, slots=True)
class TrainingEngine:
    """What one engine launches; names are those of a training plan's decision."""

    name: TrainingEngineName
    release: str
    schedules: tuple[str, ...]
    zero_stages: tuple[int, ...]
    piped_zero_stages: tuple[int, ...]  # in a pipeline
    tuned_zero_stages: tuple[int, ...]  # of jobs that start from given weights, which not every way to shard can load
    precisions: tuple[str, ...]
    tasks: tuple[str, ...]
    context_methods: tuple[str, ...]
    optimizers: tuple[str, ...] = ("adamw", "sgd")
    overlaps: tuple[str, ...] = ("grad_reduce", "param_gather", "tp_comm", "p2p")  # that run beside computing if asked
    always_overlaps: tuple[str, ...] = ()  # of them, those that nothing switches off
    reductions: tuple[Reduction, ...] = ("fp32",)  # formats that gradients are summed in, the usual one first
    dispatchers: tuple[Dispatcher, ...] = ("alltoall",)  # the first is its default
    offloads: tuple[str, ...] = ("optimizer", "activations")
    degrees_by_document: bool = False  # context-parallel ranks of each document by its length
    mtp: bool = True  # trains heads of the model that predict further tokens, which it leaves out otherwise
    towers: bool = False  # trains models with towers in front of the decoder
    most_pp: int | None = None
    most_ep: int | None = None
    splits_experts: bool = True  # by tensor parallelism, beside expert parallelism
    most_tensor_zero: int = 3  # the highest ZeRO stage beside tensor parallelism
    partial_shards: bool = True  # states shared out over a part of the ranks
    whole_context_shards: bool = False  # a shard group holds whole context-parallel groups, and these need one
    some_layers_again: bool = True  # recomputes some layers of a stage whole
    again_by_operator: bool = False  # its selective recomputation is a policy of operators, and names no modules
    graphs: bool = False  # captures layers as CUDA graphs
    drops: bool = False  # tokens beyond an expert's capacity
    ramps: bool = False  # grows the batch
    packs: bool = False  # documents into sequences, each attending to itself
    in_network: bool = False  # asks switches to reduce (SHARP)
    dropout: bool = False  # has settings of how much it drops, which models of others bring
    strict_overlaps: bool = False  # asserts against overlap that does not go with schedule, recomputation or sharding

    def stages(self, pp: int, task: str) -> tuple[int, ...]:
        """ZeRO stages of a job with so many pipeline ranks."""
        able = self.zero_stages if pp == 1 else self.piped_zero_stages
        return able if task == "pretrain" else tuple(stage for stage in able if stage in self.tuned_zero_stages)

    def shards(self, stage: int, parts: int, *, tp: int, cp: int) -> bool:
        """Whether it shares out states at this ZeRO stage over `parts` ranks, 0 for all."""
        if tp > 1 and stage > self.most_tensor_zero:
            return False
        if parts and not self.partial_shards:
            return False
        return not self.whole_context_shards or (parts % cp == 0 and (stage > 0 or cp == 1))

    def moves(self, offload: frozenset[str], stage: int, pp: int) -> bool:
        """Whether it moves this to host memory: Megatron-Core activations without a pipeline, a sharded optimizer."""
        if not offload <= set(self.offloads):
            return False
        return ("activations" not in offload or pp == 1) and ("optimizer" not in offload or stage > 0)


_MEGATRON_LM = TrainingEngine(
    name="megatron-lm",
    release="0.16",
    schedules=("1f1b", "interleaved"),
    zero_stages=(0, 1, 2, 3),
    piped_zero_stages=(0, 1),
    tuned_zero_stages=(0, 1),
    precisions=("bf16", "fp8", "fp8_block", "mxfp8", "nvfp4"),
    tasks=("pretrain", "sft"),
    context_methods=("ring", "all_gather", "ulysses"),
    overlaps=("grad_reduce", "param_gather", "tp_comm", "p2p", "ep_comm"),
    reductions=("fp32", "bf16"),
    dispatchers=("deepep", "hybridep", "alltoall"),
    optimizers=("adamw", "sgd", "muon"),
    graphs=True,
    drops=True,
    ramps=True,
    packs=True,
    in_network=True,
    dropout=True,
    strict_overlaps=True,
    degrees_by_document=True,
)
_MEGATRON_BRIDGE = replace(
    _MEGATRON_LM,
    name="megatron-bridge",
    release="0.3",
    tasks=("pretrain", "sft", "lora"),
    optimizers=("adamw", "sgd"),
    degrees_by_document=False,
    towers=True,
)
_TORCHTITAN = TrainingEngine(
    name="torchtitan",
    release="0.3",
    schedules=("1f1b", "interleaved", "zb_v", "dualpipev"),
    zero_stages=(0, 2, 3),
    piped_zero_stages=(0, 2, 3),
    tuned_zero_stages=(),
    precisions=("bf16", "fp8", "mxfp8"),
    tasks=("pretrain",),
    context_methods=("ring", "all_gather"),
    optimizers=("adamw",),
    always_overlaps=("grad_reduce", "param_gather", "p2p"),
    offloads=("optimizer",),
    mtp=False,
    splits_experts=False,
    whole_context_shards=True,
    some_layers_again=False,
    again_by_operator=True,
)
_DEEPSPEED = TrainingEngine(
    name="deepspeed",
    release="0.19",
    schedules=("1f1b",),
    zero_stages=(0, 1, 2, 3),
    piped_zero_stages=(),
    tuned_zero_stages=(0, 1, 2, 3),
    precisions=("bf16",),
    tasks=("pretrain", "sft"),
    context_methods=("ulysses",),
    optimizers=("adamw", "lamb", "sgd"),
    overlaps=("grad_reduce", "param_gather", "p2p"),
    always_overlaps=("param_gather", "p2p"),
    reductions=("bf16",),
    offloads=("optimizer",),
    most_pp=1,
    most_ep=1,
    splits_experts=False,
    most_tensor_zero=2,
    partial_shards=False,
)
_NEMO_AUTOMODEL = TrainingEngine(
    name="nemo-automodel",
    release="0.3",
    schedules=("1f1b",),
    zero_stages=(2, 3),
    piped_zero_stages=(),
    tuned_zero_stages=(2, 3),
    precisions=("bf16",),
    tasks=("sft", "lora"),
    context_methods=("ring", "all_gather"),
    optimizers=("adamw",),
    always_overlaps=("grad_reduce", "p2p"),
    offloads=("optimizer",),
    mtp=False,
    most_pp=1,
    most_ep=1,
    splits_experts=False,
    whole_context_shards=True,
    some_layers_again=False,
    again_by_operator=True,
    packs=True,
)
TRAINING_ENGINES: dict[str, TrainingEngine] = {
    engine.name: engine for engine in (_MEGATRON_LM, _MEGATRON_BRIDGE, _TORCHTITAN, _DEEPSPEED, _NEMO_AUTOMODEL)
}
assert tuple(TRAINING_ENGINES) == get_args(TrainingEngineName)


def uneven_ramp(batches: Sequence[int], samples: Sequence[int]) -> tuple[str, str] | None:
    """Why no engine grows its batch so, `batches` with the last and the samples of each before it, and what would do.

    Megatron takes an increment, and equally many samples for each (megatron/core/num_microbatches_calculator.py).
    """
    increments = sorted({later - earlier for earlier, later in pairwise(batches)})
    if len(increments) > 1:
        return f"the batch grows by {increments[0]} and {increments[1]}", "let it grow by one increment"
    if max(samples) - min(samples) > 1:  # rounded samples of equal tokens
        what = f"batches last for {min(samples)} and for {max(samples)} samples"
        return what, "give every batch of `batch_ramp` equally many tokens"
    return None


def training_engine(name: str, version: str | None = None, *, where: str = "engine") -> TrainingEngine:
    """The engine of this name; raises PlannerError for another name, and for a release that nothing is known of."""
    require_known("training engine", name, TRAINING_ENGINES, listing="those that launch training are", where=where)
    engine = TRAINING_ENGINES[name]
    if version is not None and version != engine.release and not version.startswith(f"{engine.release}."):
        raise PlannerError(
            f"nothing is known of `{name}` {version}",
            where=f"{where}.version",
            hint=f'write `version: "{engine.release}"`, or leave it out',
        )
    return engine


def usual_engine(task: str, *, towers: bool = False) -> TrainingEngine:
    """The engine of a job that names none: Megatron-LM, and Megatron-Bridge for adapters and towers, which it has."""
    plain = task in _MEGATRON_LM.tasks and not towers
    return TRAINING_ENGINES["megatron-lm" if plain else "megatron-bridge"]
