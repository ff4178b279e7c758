"""What layers on unequal nodes are placed with: tokens a second of every node by the layers that it holds, and links.

A node computes its layers with all its GPUs (tensor parallel). With H stages, H micro-batches of b sequences are in
flight, and a node keeps the caches of all of them for its layers, so that with k of L layers
    b(k) = the most sequences, up to `max_batch`, with  w k / L + b H c k / L <= room
    T(k) = osl / (prefill_s k / L + osl (decode_s(b) k / L + host_s) / b)      output tokens a second
with w the bytes of all weights on a device, c those of the cache of a sequence, and times of the whole model on one
node. A link carries the activations of all prompt and output tokens. Suffixes: N node.
"""

import math
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import Calibration, load_calibration
from planner.costs.rates.pricer import make_pricer
from planner.costs.rates.step import step_time
from planner.costs.serving.memory import activation_bytes, kv_cache_bytes, weight_bytes
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.place.decision import LayersOptions, PlaceOptions
from planner.kinds.place.left_out import pools_without
from planner.models.architecture import Architecture
from planner.problem.resolve import Resolved, Workload
from planner.solvers.placement.layers.problem import LayerProblem, Node

ACTIVATION_BYTES = 2.0  # of an element that goes from node to node
UNLIMITED = 1e12  # tokens a second between clients and nodes: token ids alone
PREFILL_TOKENS = 2048.0  # of a step that prefills


@dataclass(frozen=True, slots=True, eq=False)
class NodeCosts:
    """A node of a pool with the whole model on it; times [s] and bytes of a device."""

    pool: Pool
    tp: int
    decode_s_B: Floats  # of a step, by sequences from 1 on, on the device
    host_s: float  # of a step
    prefill_s: float  # of a prompt
    weights_bytes: float
    cache_bytes: float  # of a sequence
    beside_bytes: float  # activations and workspace
    room_bytes: float

    def batch(self, share: float, stages: int) -> int:
        """Sequences of a micro-batch where the node holds this share of the layers."""
        free = self.room_bytes - self.beside_bytes - self.weights_bytes * share
        most = free / (stages * self.cache_bytes * share) if free > 0.0 else 0.0
        return int(min(most, len(self.decode_s_B)))

    def tokens_per_s(self, share: float, stages: int, output_tokens: float) -> float:
        """0 where the node has no room for its layers and the caches of a sequence a stage."""
        batch = self.batch(share, stages)
        if batch < 1:
            return 0.0
        token_s = (float(self.decode_s_B[batch - 1]) * share + self.host_s) / batch
        return output_tokens / (self.prefill_s * share + output_tokens * token_s)


@dataclass(frozen=True, slots=True, eq=False)
class LayersSetting:
    """A resolved problem with its nodes [N], those of the first pool first."""

    resolved: Resolved
    options: LayersOptions
    calibration: Calibration
    nodes: tuple[NodeCosts, ...]
    link_tokens_per_s: Floats  # [N, N]

    @property
    def workload(self) -> Workload:
        """The only one."""
        return self.resolved.workloads[0]

    @property
    def arch(self) -> Architecture:
        """The only model."""
        return self.resolved.models[self.workload.model]

    @property
    def gpus(self) -> int:
        """At hand, in use or not."""
        return sum(pool.num_gpus for pool in self.resolved.pools)

    def problem(self, stages: int) -> LayerProblem:
        """The placement over so many stages at most, with the caches of as many micro-batches."""
        layers, osl = self.arch.num_layers, self.workload.output.mean_tokens
        nodes = tuple(
            Node(
                node.pool.name,
                tuple(node.tokens_per_s(k / layers, stages, osl) for k in range(1, layers + 1)),
                region=node.pool.name,
            )
            for node in self.nodes
        )
        ends = np.full(len(nodes), UNLIMITED)
        return LayerProblem(layers, nodes, self.link_tokens_per_s, ends, ends, 1.0, float(stages))


def read_setting(resolved: Resolved) -> LayersSetting:
    """Raises PlannerError for problems of several models or workloads, and for pools that cannot run the model."""
    options = PlaceOptions.model_validate(resolved.problem.options).layers
    assert options is not None
    where = resolved.where
    if len(resolved.workloads) != 1 or len(resolved.models) != 1:
        what = f"{len(resolved.models)} models and {len(resolved.workloads)} workloads"
        raise PlannerError(what, where=where(("workloads",)), hint="place the layers of one model for one workload")
    (workload,) = resolved.workloads
    resolved.require_priceable(workload.model)
    if workload.spec.load is not None or list(workload.spec.slo.limits()) or workload.spec.slo.attainment is not None:
        raise PlannerError(
            "layers are placed for the most tokens a second, whatever the load and its limits",
            where=where(("workloads", 0)),
            hint="remove `load` and `slo`; `options.layers.max_stages` and `max_batch` keep requests fast",
        )
    if resolved.problem.objective.maximize != "tokens_per_s_per_gpu":
        hint = "write `maximize: tokens_per_s_per_gpu`"
        raise PlannerError("layers are placed for tokens a second", where=where(("objective",)), hint=hint)
    for index, spec in enumerate(resolved.problem.cluster.pools):
        if spec.usd_per_gpu_hour is not None:
            what = "layers are placed for tokens a second on all nodes, whatever their prices"
            raise PlannerError(what, where=where(("cluster", "pools", index, "price")), hint="remove it")
    calibration = load_calibration(resolved.problem.costs.calibration)
    kinds = [_costs(resolved, options, calibration, pool) for pool in resolved.pools]
    without = pools_without(resolved)
    nodes = tuple(kind for kind in kinds if kind.pool.name not in without for _ in kind.pool.healthy_nodes)
    return LayersSetting(resolved, options, calibration, nodes, _links(resolved, nodes))


def _costs(resolved: Resolved, options: LayersOptions, calibration: Calibration, pool: Pool) -> NodeCosts:
    (workload,), engine = resolved.workloads, resolved.problem.engine
    arch = resolved.models[workload.model]
    pricer = make_pricer(pool, arch, engine=engine.name, version=engine.version, calibration=calibration, store=None)
    overheads = calibration.engine(engine.name, engine.version, arch.name)
    tp = pool.node.num_gpus
    shards = Shards.of(float(tp))
    isl, tokens = workload.input.mean_tokens, workload.input.mean_tokens + workload.output.mean_tokens
    batches = np.arange(1, options.max_batch + 1, dtype=np.float64)
    alike = Shards.of(np.full(len(batches), float(tp)))
    decode = step_time(arch, pricer, alike, Work.decode(batches, tokens), overheads)
    prompts = max(PREFILL_TOKENS / isl, 1.0)
    prefill = step_time(arch, pricer, shards, Work.prefill(isl * prompts, 0.0, prompts), overheads)
    beside = activation_bytes(arch, shards, max(PREFILL_TOKENS, isl), float(options.max_batch))[0]
    return NodeCosts(
        pool,
        tp,
        decode.device_s,
        float(decode.host_s[-1]),
        float(prefill.device_s[0] / prompts),
        float(weight_bytes(arch, shards)[0]),
        float(kv_cache_bytes(arch, shards, tokens)[0]),
        float(beside) + overheads.workspace_bytes,
        pool.node.accelerator.usable_bytes(engine.memory_utilisation),
    )


def _links(resolved: Resolved, nodes: tuple[NodeCosts, ...]) -> Floats:
    """Output tokens a second over every pair of nodes: their own links, or an even part of what joins their pools."""
    (workload,) = resolved.workloads
    isl, osl = workload.input.mean_tokens, workload.output.mean_tokens
    token_bytes = resolved.models[workload.model].hidden_size * ACTIVATION_BYTES * (isl + osl) / osl
    for index, link in enumerate(resolved.problem.cluster.links):
        if link.latency_s:
            what = "layers are placed for tokens a second, and the latency of a link changes none"
            raise PlannerError(what, where=resolved.where(("cluster", "links", index, "latency")), hint="remove it")
    stated = {frozenset(link.pools): link.bandwidth_bytes_per_s for link in resolved.problem.cluster.links}
    count = {pool.name: len(pool.healthy_nodes) for pool in resolved.pools}
    rates = np.zeros((len(nodes), len(nodes)))
    for i, near in enumerate(nodes):
        for j, other in enumerate(nodes):
            own = min(_reach_bytes_per_s(node.pool) * node.tp for node in (near, other))
            a, b = near.pool.name, other.pool.name
            shared = stated.get(frozenset((a, b)), math.inf) / (count[a] * count[b])
            rates[i, j] = min(own, shared) / token_bytes if i != j else 0.0
    return rates


def _reach_bytes_per_s(pool: Pool) -> float:
    """Of a GPU to another node, wherever it stands: its adapter, or its part of rails and of the uplink of its rack."""
    return min(pool.node.nic_bandwidth_bytes_per_s, pool.topology().levels[-1].bandwidth_bytes_per_s)
