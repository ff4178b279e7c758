"""A training configuration: job, machine and every decision (tp, pp, dp, cp, ep, ZeRO, ...) that costs depend on."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from typing import Literal

from planner.costs.operators.elementwise import EAGER, FUSED, Fusion
from planner.costs.operators.experts import EVEN, ExpertLoad
from planner.hardware.accelerator import Accelerator
from planner.hardware.cluster import NodeType
from planner.models.architecture import Architecture, Layer
from planner.solvers.schedules.pipeline import stages_of_ranks

Schedule = Literal["1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipev"]
Task = Literal["pretrain", "sft", "lora"]
ContextParallel = Literal["ring", "all_gather", "ulysses"]
OptimizerName = Literal["adamw", "lamb", "sgd", "muon"]
Precision = Literal["bf16", "fp8", "fp8_block", "mxfp8", "nvfp4"]
GraphScope = Literal["attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", "full_iteration"]
"""What a CUDA graph holds, by Megatron-Core's names (`cuda_graph_modules`): parts of layers, or whole steps."""

MEGATRON_OVERLAPS = frozenset({"grad_reduce", "param_gather", "p2p"})
"""What Megatron's launch scripts switch on beside the distributed optimizer."""

NEEDED_PRECISION = {"bf16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "mxfp8": "mxfp8", "nvfp4": "nvfp4"}
"""The format of tensor cores that training in a precision takes."""

USABLE_SHARE = 0.95
"""Of a device's memory that a plan is chosen to fill where nothing is said; the allocator loses the rest."""

_GENERATIONS = {"7.0": "volta", "8.0": "ampere", "8.6": "ampere", "8.9": "hopper", "9.0": "hopper"}
_MULTIPROCESSORS = {"volta": 80, "ampere": 108, "hopper": 132, "blackwell": 148, "cdna": 304}  # of users' own
_RACK_OF_72 = 64  # GPUs of a rack of 72 that jobs of a power of two take, so that groups do not straddle racks


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """Equal nodes, as the costs see them; `machine_of` makes one for each node type, so that it hashes by identity."""

    node: NodeType
    generation: str  # ampere, hopper, blackwell, or the vendor where there is no name
    peak_flop_per_s: Mapping[str, float] = field(repr=False)
    memory_bandwidth_bytes_per_s: float
    memory_bytes: float
    num_multiprocessors: int
    domain_gpus: int  # GPUs that NVLink joins
    link_bytes_per_s: float  # per GPU and direction, in the domain
    fabric_bytes_per_s: float  # per GPU and direction, out of it
    host_bytes_per_s: float

    @property
    def rated(self) -> str:
        """What rates of its kernels hang on: the generation, and behind a colon the accelerator."""
        return f"{self.generation}:{self.node.accelerator.name}"


def computed_in(accelerator: Accelerator) -> list[str]:
    """Precisions in which an accelerator can train."""
    return [name for name, needed in NEEDED_PRECISION.items() if _computes(accelerator, needed)]


def _computes(accelerator: Accelerator, precision: str) -> bool:
    if precision == "mxfp8":  # microscaled formats are those of tensor cores that have 4-bit ones too
        return accelerator.supports("mxfp8") or (accelerator.supports("fp8") and accelerator.supports("nvfp4"))
    return accelerator.supports(precision)


@lru_cache(maxsize=256)
def machine_of(node: NodeType) -> Machine:
    """The machine of nodes of this type."""
    accelerator = node.accelerator
    generation = _GENERATIONS.get(accelerator.compute_capability, "blackwell")
    if accelerator.vendor != "nvidia":
        generation = "cdna"
    domain = _RACK_OF_72 if node.scale_up_size == 72 else node.scale_up_size
    return Machine(
        node=node,
        generation=generation,
        peak_flop_per_s={name: accelerator.peak(name) for name in ("bf16", "fp8", "nvfp4")},
        memory_bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s,
        memory_bytes=accelerator.memory_bytes,
        num_multiprocessors=accelerator.num_multiprocessors or _MULTIPROCESSORS[generation],
        domain_gpus=domain,
        link_bytes_per_s=node.scale_up_bandwidth_bytes_per_s,
        fabric_bytes_per_s=node.nic_bandwidth_bytes_per_s,
        host_bytes_per_s=node.pcie_bandwidth_bytes_per_s,
    )


@dataclass(frozen=True, slots=True)
class RecomputeConfig:
    """What the backward pass computes again, with Megatron-LM's names (see `planner.costs.operators.recompute`)."""

    granularity: Literal["none", "selective", "full"] = "none"
    modules: tuple[str, ...] = ()  # with `selective`
    num_layers: int = 0  # with `full`: the first layers of each of the pp x vpp stages; 0 = all of them


@dataclass(frozen=True, slots=True)
class Framework:
    """Choices of the training code that no plan makes, and that differ between published measurements."""

    name: str = "megatron"
    family: str = "Megatron"  # of codes that share out training states in the same way
    attention: str = "cudnn"  # kernel of the softmax attention: cudnn, flash (FlashAttention-2), triton or unfused
    sequence_parallel: bool = True  # wherever tp > 1
    fused: bool = True  # fused norms, activations and rotary embeddings; eager PyTorch where false
    gradient_bytes: float = 4.0  # main gradients that micro-batches add up in
    parameter_bytes: float = 2.0  # working weights kept between steps; 4 where FSDP keeps fp32 shards and casts
    embeddings_tied: bool = False  # input and output matrices tied although the model description unties them
    logit_bytes: float = 2.0  # per logit at the peak of the loss: 2 where it is fused, up to 14 with fp32 copies
    host: str = "eager"  # how its host launches kernels: graphs (of whole steps), plain, eager or legacy
    captured: frozenset[GraphScope] = frozenset()  # parts of layers that it launches as graphs beside that
    reduce_bytes: float = 2.0  # of a gradient on its way between ranks
    exchange_copies: bool = False  # sharded parameters are copied out of and into the buffers of their exchange (FSDP2)
    whole_gradients: bool = True  # those of a layer have one buffer from the first on where ZeRO-2 or 3 scatters them
    gradient_placeholders: bool = False  # 16-bit stand-ins for gradients that products add up in place stay allocated
    fused_experts: bool = False  # activation and quantisation run within the products of experts
    fused_dispatch: bool = False  # permutations around a plain all-to-all are one kernel, as forwarding ones are
    forwarded_experts: bool = True  # tokens cross to a node once for all of its experts (DeepEP), else once an expert
    parallel_block: bool = False  # attention and feed-forward part read one norm's output, and their sum is added once
    loaders_per_node: int = 0  # processes that read the same samples one after another as a step begins; 0: read ahead
    blocking_hand_overs: bool = False  # the host waits for the device after each message between pipeline stages
    hidden_dropout: bool = False  # outputs of attention and feed-forward part are dropped from, by masks that are kept
    attention_dropout: bool = False  # weights of the softmax attention are


@dataclass(frozen=True, slots=True)
class Loading:
    """What brings samples: read and prepared ahead while the step before runs, through adapters that training shares.

    A step is no shorter than its samples take, and training has nothing of an adapter that carries them, as is counted
    of checkpoints (`planner.reliability.tiers`). First principles; no measured run states either.
    """

    sample_bytes: float = 0.0
    read_bytes_per_s: float = inf  # of the store, the whole job together
    samples_per_s: float = inf  # that the loader of one data-parallel rank prepares

    def ready_s(self, samples_of_rank: float, samples: float) -> float:
        """Least seconds between steps of so many samples, of which a data-parallel rank has its part."""
        return max(samples * self.sample_bytes / self.read_bytes_per_s, samples_of_rank / self.samples_per_s)

    def beside_s(self, step_s: float, samples_of_rank: float, samples: float, fabric_bytes_per_s: float) -> float:
        """A step of so long with those of the next one on their way, through the adapter of the rank that reads."""
        carried_s = samples_of_rank * self.sample_bytes / fabric_bytes_per_s if fabric_bytes_per_s else 0.0
        return max(step_s + carried_s, self.ready_s(samples_of_rank, samples))


AHEAD = Loading()
"""Samples are there before they are needed."""

MEGATRON = Framework(gradient_placeholders=True)
_2021 = Framework(
    "megatron_2021",
    attention="unfused",
    sequence_parallel=False,
    embeddings_tied=True,
    logit_bytes=10.0,
    host="legacy",
    reduce_bytes=4.0,
    forwarded_experts=False,
    hidden_dropout=True,
    attention_dropout=True,
)
_FSDP = Framework(
    "torchtitan",
    family="FSDP",
    attention="flash",
    parameter_bytes=4.0,
    logit_bytes=14.0,
    reduce_bytes=4.0,
    exchange_copies=True,
    whole_gradients=False,
)
FRAMEWORKS: dict[str, Framework] = {
    "megatron": MEGATRON,
    "megatron_graphs": replace(MEGATRON, name="megatron_graphs", host="graphs"),
    "nemo": replace(MEGATRON, name="nemo", forwarded_experts=False, gradient_placeholders=False),
    "megatron_2021": _2021,
    "megatron_2023": replace(_2021, name="megatron_2023", host="plain"),
    "megatron_deepspeed": replace(_2021, name="megatron_deepspeed", gradient_bytes=2.0, reduce_bytes=2.0),
    "composer": Framework(
        "composer",
        family="FSDP",
        attention="triton",
        fused=False,
        parameter_bytes=4.0,
        embeddings_tied=True,
        logit_bytes=4.0,
        whole_gradients=False,
    ),
    "torchtitan": _FSDP,
    "torchtitan_eager": replace(_FSDP, name="torchtitan_eager", fused=False),
    "fsdp": replace(_FSDP, name="fsdp", reduce_bytes=2.0, exchange_copies=False),
    "deepspeed": Framework(
        "deepspeed",
        family="DeepSpeed",
        attention="flash",
        gradient_bytes=2.0,
        logit_bytes=14.0,
        whole_gradients=False,
    ),
}
"""Training codes by name; `megatron` is Megatron-LM and Megatron Bridge since 25.09, `nemo` their forerunners."""


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """One plan of one job; `num_gpus = tp x cp x pp x dp`, experts on ep x etp of the tp x cp x dp ranks of a stage.

    Ranks lie as Megatron-LM places them: tp innermost, then cp, dp, and pp outermost.
    """

    arch: Architecture
    machine: Machine
    sequence_tokens: int
    global_batch: int
    micro_batch: int
    tp: int = 1
    pp: int = 1
    vpp: int = 1
    cp: int = 1
    context_parallel: ContextParallel = "ring"
    ep: int = 1
    etp: int = 1
    dp: int = 1
    zero_stage: int = 1
    zero_ranks: int = 0  # ranks that share the shards (HSDP); 0 = all dp x cp of them
    schedule: Schedule = "1f1b"
    recompute: RecomputeConfig = RecomputeConfig()
    precision: Precision = "bf16"
    task: Task = "pretrain"
    optimizer: OptimizerName = "adamw"
    overlap: frozenset[str] = MEGATRON_OVERLAPS
    offload: frozenset[str] = frozenset()  # of "optimizer" and "activations"
    moved_layers: int = 0  # whose activations move to the host, where these are offloaded; 0: all but the last
    lora_rank: int = 16
    framework: Framework = MEGATRON
    layers_of_stage: tuple[int, ...] = ()  # decoder layers of the pp x vpp stages in order; empty = as even as possible
    expert_load: ExpertLoad = EVEN
    document_tokens: float = 0.0  # of the documents that a sequence is packed of; 0: it is one
    in_network: bool = False  # switches add up what is reduced beyond the NVLink domain (SHARP)
    step_spread: float = 0.0  # standard deviation of a GPU's step over its mean
    loading: Loading = AHEAD
    ends_count_as_layers: bool = False  # embedding and loss take a layer's place each in the even layout

    @property
    def num_gpus(self) -> int:
        return self.tp * self.cp * self.pp * self.dp

    @property
    def num_micro_batches(self) -> int:
        """Of each data-parallel rank and step, at least one."""
        return max(self.global_batch // (self.dp * self.micro_batch), 1)

    @property
    def moved_share(self) -> float:
        """Of the activations of all layers but the last, which its backward pass takes at once: what the host holds."""
        if "activations" not in self.offload:
            return 0.0
        return min(self.moved_layers / max(self.arch.num_layers - 1, 1), 1.0) if self.moved_layers else 1.0

    @property
    def dense_shard(self) -> "Shard":
        """The key of what has no experts: shapes that differ in their experts alone share it."""
        return replace(self.shard, ep=1, etp=1, expert_load=EVEN)

    @property
    def shard(self) -> "Shard":
        """What the costs of one layer hang on."""
        framework = self.framework
        return Shard(
            hidden=self.arch.hidden_size,
            sequences=self.micro_batch,
            sequence_tokens=self.sequence_tokens,
            tp=self.tp,
            cp=self.cp,
            context_parallel=self.context_parallel if self.cp > 1 else "ring",
            ep=self.ep,
            etp=self.etp,
            precision=self.precision,
            sequence_parallel=framework.sequence_parallel and self.tp > 1,
            attention=framework.attention,
            fused=framework.fused,
            host=framework.host,
            captured=framework.captured if framework.host != "graphs" else frozenset(),
            forwarded=framework.forwarded_experts,
            fused_dispatch=framework.fused_dispatch,
            fused_experts=framework.fused_experts,
            parallel_block=framework.parallel_block,
            lora_rank=self.lora_rank if self.task == "lora" else 0,
            tp_overlap="fused" if "tp_fused" in self.overlap else "split" if "tp_comm" in self.overlap else "none",
            ep_overlap="ep_comm" in self.overlap,
            expert_load=self.expert_load,
            document_tokens=self.document_tokens,
            hidden_dropout=framework.hidden_dropout,
            attention_dropout=framework.attention_dropout,
        )


@dataclass(frozen=True, slots=True)
class Shard:
    """What one rank sees of one micro-batch in one layer: the key under which costs are kept."""

    hidden: int
    sequences: int
    sequence_tokens: int
    tp: int
    cp: int
    context_parallel: ContextParallel
    ep: int
    etp: int
    precision: str
    sequence_parallel: bool
    attention: str
    fused: bool
    host: str
    forwarded: bool
    fused_dispatch: bool
    parallel_block: bool
    lora_rank: int
    tp_overlap: Literal["none", "split", "fused"]  # of gathers and scatters with the products next to them
    ep_overlap: bool
    expert_load: ExpertLoad = EVEN
    document_tokens: float = 0.0
    captured: frozenset[GraphScope] = frozenset()
    fused_experts: bool = False
    hidden_dropout: bool = False
    attention_dropout: bool = False

    @property
    def tokens(self) -> float:
        """Of the micro-batch on one context-parallel rank."""
        return self.sequences * self.sequence_tokens / self.cp

    @property
    def scores_written(self) -> bool:
        """Whether the softmax attention writes its scores out."""
        return self.attention == "unfused"

    @property
    def code(self) -> Fusion:
        """Which elementwise operators the training code joins."""
        return FUSED if self.fused else EAGER

    @property
    def spread(self) -> float:
        """Ranks over which norms, residuals and dropouts are spread: tp under sequence parallelism."""
        return float(self.tp) if self.sequence_parallel else 1.0


@lru_cache(maxsize=4096)
def layer_runs(layers: tuple[Layer, ...], counts: tuple[int, ...]) -> tuple[tuple[tuple[Layer, int], ...], ...]:
    """The layers cut into stages of the given sizes: for each stage, its distinct layers and how often they occur."""
    stages: list[tuple[tuple[Layer, int], ...]] = []
    start = 0
    for count in counts:
        count_of: dict[Layer, int] = {}
        for layer in layers[start : start + count]:
            count_of[layer] = count_of.get(layer, 0) + 1
        stages.append(tuple(count_of.items()))
        start += count
    return tuple(stages)


def stages_of_rank(config: TrainingConfig) -> tuple[tuple[int, ...], ...]:
    """The stages of each pipeline rank, in the order in which a micro-batch passes them."""
    if config.pp == 1:
        return (tuple(range(config.vpp)),)
    return stages_of_ranks(config.schedule, config.pp, config.vpp)


def stage_layers(config: TrainingConfig) -> tuple[int, ...]:
    """Decoder layers of each of the pp x vpp stages, in the order in which a micro-batch passes them."""
    if config.layers_of_stage:
        return config.layers_of_stage
    return even_layout(config.arch.num_layers, config.pp * config.vpp, config.ends_count_as_layers)


@lru_cache(maxsize=4096)
def even_layout(num_layers: int, num_stages: int, ends_count: bool) -> tuple[int, ...]:
    """Layers over stages as evenly as possible; what is over goes to the middle, away from embedding and loss."""
    total = num_layers + (2 if ends_count else 0)
    base, over = divmod(total, num_stages)
    counts = [base] * num_stages
    first = max((num_stages - over) // 2, 0)
    for stage in range(first, first + over):
        counts[stage] += 1
    if ends_count and num_stages > 1:
        counts[0] -= 1
        counts[-1] -= 1
    elif ends_count:
        counts[0] -= 2
    return tuple(counts)
