"""Trained and frozen parameters of one rank, and the bytes of weights, gradients and optimizer state by ZeRO stage."""

from dataclasses import dataclass
from functools import lru_cache

from planner.costs.operators.products import mixer_products
from planner.costs.training.config import TrainingConfig, layer_runs, stage_layers, stages_of_rank
from planner.costs.training.optimizers import muon
from planner.costs.training.optimizers.host import MOMENTS_BYTES, STATE_BYTES
from planner.costs.training.optimizers.muon import muon_share
from planner.costs.training.optimizers.shards import lie_on_host
from planner.models.architecture import Architecture, Layer, Precisions
from planner.models.parameters import edge_tensors, layer_tensors

WORKING_BYTES = 2.0  # of a weight that is gathered for products
MASTER_BYTES = 12.0  # fp32 weight and two fp32 moments of Adam (arXiv:1910.02054, section 3.1)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Elements on one rank: those of all tp x cp x dp ranks alike but for tp, and those of experts."""

    dense: float = 0.0
    expert: float = 0.0

    def __add__(self, other: "Parameters") -> "Parameters":
        return Parameters(self.dense + other.dense, self.expert + other.expert)

    def times(self, count: float) -> "Parameters":
        return Parameters(self.dense * count, self.expert * count)

    @property
    def total(self) -> float:
        return self.dense + self.expert


@lru_cache(maxsize=4096)
def layer_parameters(layer: Layer, hidden: int, tp: int, ep: int, etp: int) -> Parameters:
    """Elements of one layer on one rank."""
    dense = expert = 0.0
    for tensor in layer_tensors(layer, _shell(hidden)):
        if tensor.part == "experts":
            expert += tensor.elements / (ep * etp)
        elif tensor.split == "replicated":
            dense += tensor.elements
        else:
            dense += tensor.elements / tp
    return Parameters(dense, expert)


@lru_cache(maxsize=64)
def _shell(hidden: int) -> Architecture:
    """A model of this width without layers, for the sizes of those of another."""
    return Architecture("", hidden, 0, (), False, 0, Precisions())


def embedding_parameters(config: TrainingConfig) -> Parameters:
    """The input matrix and learned positions on one tensor-parallel rank."""
    arch = config.arch
    return Parameters(arch.vocab_size * (arch.embedding_size or arch.hidden_size) / config.tp)


def output_parameters(config: TrainingConfig) -> Parameters:
    """The output matrix and the final norm; a tied matrix is resident again where another stage has the embedding."""
    arch = config.arch
    tied = arch.tied_embeddings or config.framework.embeddings_tied
    shared = tied and config.pp == 1
    matrix = 0.0 if shared else arch.vocab_size * (arch.embedding_size or arch.hidden_size) / config.tp
    return Parameters(matrix + arch.hidden_size)


def total_parameters(arch: Architecture) -> float:
    """All elements of the decoder."""
    edges = sum(tensor.elements for tensor in edge_tensors(arch))
    layers = sum(
        count * layer_parameters(layer, arch.hidden_size, 1, 1, 1).total for layer, count in arch.layer_groups()
    )
    return float(edges + layers)


def rank_parameters(config: TrainingConfig, rank: int) -> Parameters:
    """Elements on a rank of pipeline rank `rank`: its vpp stages, with embedding and output matrix at the ends."""
    return parameters_of_ranks(config)[rank]


def parameters_of_ranks(config: TrainingConfig) -> tuple[Parameters, ...]:
    """Elements on a rank of each of the pp pipeline ranks."""
    elements = stage_parameters(config)
    return tuple(sum((elements[stage] for stage in stages), Parameters()) for stages in stages_of_rank(config))


def stage_parameters(config: TrainingConfig) -> tuple[Parameters, ...]:
    """Elements on a rank of each of the pp x vpp stages, embedding and output matrix with the first and the last."""
    stages = []
    for runs in layer_runs(config.arch.layers, stage_layers(config)):
        total = Parameters()
        for layer, count in runs:
            total += layer_parameters(layer, config.arch.hidden_size, config.tp, config.ep, config.etp).times(count)
        stages.append(total)
    stages[0] += embedding_parameters(config)
    stages[-1] += output_parameters(config) + mtp_parameters(config)
    return tuple(stages)


def mtp_parameters(config: TrainingConfig) -> Parameters:
    """Multi-token-prediction layers with the matrix that joins hidden state and embedding."""
    total = Parameters()
    hidden = config.arch.hidden_size
    for layer in config.arch.mtp_layers:
        total += layer_parameters(layer, hidden, config.tp, config.ep, config.etp)
        total += Parameters(2.0 * hidden * hidden)
    return total


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes of one rank between two steps."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float

    @property
    def total_bytes(self) -> float:
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    def __add__(self, other: "StateBytes") -> "StateBytes":
        return StateBytes(
            self.weights_bytes + other.weights_bytes,
            self.gradients_bytes + other.gradients_bytes,
            self.optimizer_bytes + other.optimizer_bytes,
        )


def replicas(config: TrainingConfig) -> Parameters:
    """Ranks that hold the same dense parameters, and the same experts."""
    alike = float(config.dp * config.cp)
    return Parameters(alike, max(alike * config.tp / (config.ep * config.etp), 1.0))


def sharing_ranks(config: TrainingConfig) -> Parameters:
    """Ranks that share out the sharded states: all replicas, or under hybrid sharding those of one of its copies.

    Experts come in as many copies as all else does (Megatron-LM's instances of the distributed optimizer).
    """
    alike = replicas(config)
    if not config.zero_ranks:
        return alike
    copies = max(alike.dense / config.zero_ranks, 1.0)
    return Parameters(alike.dense / copies, max(alike.expert / copies, 1.0))


def state_bytes(config: TrainingConfig, parameters: Parameters) -> StateBytes:
    """What one rank keeps of its parameters by ZeRO stage (arXiv:1910.02054, section 3; 2 + 4 + 12 bytes in Megatron).

    Stage 1 shards the optimizer over the ranks that hold the same parameters, 2 the gradients too, 3 the weights too.
    """
    ranks = sharing_ranks(config)

    def share(from_stage: int) -> float:
        if config.zero_stage < from_stage:
            return parameters.total
        return parameters.dense / ranks.dense + parameters.expert / ranks.expert

    framework = config.framework
    if lie_on_host(config):  # what stays gathered until the step ends is left
        return StateBytes(0.0 if config.zero_stage == 3 else parameters.total * WORKING_BYTES, 0.0, 0.0)
    if config.task == "lora":  # frozen weights stay in the format that products read
        frozen = framework.parameter_bytes if config.precision == "bf16" else 1.0
        return StateBytes(share(3) * frozen, 0.0, 0.0)
    master = 0.0 if "optimizer" in config.offload else MASTER_BYTES
    if config.optimizer == "muon":
        return _muon_bytes(config, parameters)
    if framework.parameter_bytes >= 4.0:
        master = max(master - 4.0, 0.0)  # the weights are the master copy
    return StateBytes(share(3) * framework.parameter_bytes, share(2) * framework.gradient_bytes, share(1) * master)


def updated_elements(config: TrainingConfig, trained: Parameters) -> Parameters:
    """What one rank updates of the elements that it trains."""
    if config.zero_stage == 0:
        return trained
    ranks = sharing_ranks(config)
    return Parameters(trained.dense / ranks.dense, trained.expert / ranks.expert)


def host_state_bytes(config: TrainingConfig, parameters: Parameters) -> float:
    """What one rank keeps of its parameters in host memory between two steps."""
    if "optimizer" not in config.offload:
        return 0.0
    trained = parameters if config.task != "lora" else lora_parameters(config, parameters)
    if not lie_on_host(config):
        return updated_elements(config, trained).total * STATE_BYTES
    gathered, framework = updated_elements(config, parameters).total, config.framework
    learnt_bytes = updated_elements(config, trained).total * (framework.gradient_bytes + MOMENTS_BYTES)
    return gathered * framework.parameter_bytes + learnt_bytes


def _muon_bytes(config: TrainingConfig, parameters: Parameters) -> StateBytes:
    """Weights and gradients of all elements; masters, momentum and moments by whole layers on ZeRO 1's ranks."""
    ranks, share, framework = sharing_ranks(config), muon_share(config.arch), config.framework
    if config.zero_stage == 0:
        ranks = Parameters(1.0, 1.0)
    mean = MASTER_BYTES - (MASTER_BYTES - muon.MASTER_BYTES) * share
    optimizer = parameters.dense / ranks.dense * mean + parameters.expert / ranks.expert * muon.MASTER_BYTES
    total = parameters.total
    return StateBytes(total * framework.parameter_bytes, total * framework.gradient_bytes, optimizer)


def lora_parameters(config: TrainingConfig, parameters: Parameters) -> Parameters:
    """Elements of the adapters beside these parameters, spread over them as over the whole model."""
    return Parameters(parameters.dense * config.lora_rank * adapted_per_rank(config.arch))


@lru_cache(maxsize=256)
def adapted_per_rank(arch: Architecture) -> float:
    """Elements of adapters of rank 1 for an element outside experts: depth and columns of each product with one."""
    hidden, adapted = arch.hidden_size, 0.0
    dense = float(sum(tensor.elements for tensor in edge_tensors(arch)))
    for layer, count in arch.layer_groups():
        dense += count * layer_parameters(layer, hidden, 1, 1, 1).dense
        products = mixer_products(layer.mixer, hidden, 1) if layer.mixer is not None else ()
        adapted += count * sum(float(each.depth) + float(each.columns) for each in products if each.adapted)
    return adapted / dense


def lora_state_bytes(config: TrainingConfig, parameters: Parameters) -> StateBytes:
    """Weights, gradients and optimizer state of the adapters that the device holds; none without LoRA."""
    if config.task != "lora":
        return StateBytes(0.0, 0.0, 0.0)
    count, framework = lora_parameters(config, parameters).total, config.framework
    if lie_on_host(config):
        return StateBytes(0.0 if config.zero_stage == 3 else count * WORKING_BYTES, 0.0, 0.0)
    master = 0.0 if "optimizer" in config.offload else MASTER_BYTES
    return StateBytes(count * framework.parameter_bytes, count * framework.gradient_bytes, count * master)
