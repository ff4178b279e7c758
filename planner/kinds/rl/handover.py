"""Seconds until new weights are with the generators, sent over a network or cut anew on GPUs that take turns.

Launchers hand weights over under the names of their checkpoint. One training rank sends them, through its adapter, to
all generators that have GPUs of their own (NeMo-RL, OpenRLHF and verl broadcast from rank 0); where roles take turns,
the adapters of a node take all of them in, and its GPUs share them. Hosts gather, convert and load every tensor by
itself, of which a mixture of experts has three for each expert of each layer; they do while the bytes of those before
are on the network (buckets in two buffers and streams: NVIDIA-NeMo/RL, nemo_rl/utils/packed_tensor.py; asynchronous
broadcasts of buckets in verl and slime), so that the longer of both decides.
"""

from planner.hardware.cluster import Pool
from planner.hardware.topology import CircuitSwitch
from planner.kinds.rl.setting import RlSetting
from planner.models.architecture import Architecture
from planner.models.parameters import edge_tensors, layer_tensors

START_S = 1.0  # of a synchronisation: engines drained, caches dropped (verl and slime report 1 to 2 s beyond transfer)
TENSOR_S = (16.0 - 1.0) / 18_867
"""Of hosts for one tensor: slime needs 16 s for the 18 867 tensors of Qwen3-30B-A3B, of which its developers count 1 s
for the bytes (zhaochenyang20/Awesome-ML-SYS-Tutorial, issue 169, July 2025; buckets of 512 MB)."""

UNPINNED_BYTES_PER_S = (2 * 11.4e9 + 2 * 22.0e9) / (12.0 + 9.0)
"""Of a GPU over PCIe to host memory that is not pinned, or back, which the host copies once more. NeMo-RL's optimizer
states, 12 bytes a parameter, took 12 s for Qwen3-30B-A3B and 9 s for Qwen3-235B-A22B to leave and to come back
(NVIDIA-NeMo/RL, pull request 1404, October 2025), on 32 and 128 H100 by its recipes: 11.4 and 22.0 GB of a GPU."""
PCIE_BYTES_PER_S = 128e9
"""Of 16 lanes of PCIe 6.0. Faster links are NVLink-C2C, which are coherent: GPUs reach memory that the system allocated
as it is, without a copy of the host or a migration, at 375 GB/s to the GPU and 297 back of 450 (Schieffer et al.,
arXiv:2407.07850, on GH200)."""


def weight_sync_s(setting: RlSetting) -> dict[tuple[str, str], float]:
    """By (generating pool, training pool), where a network joins the two; as stated by the problem where it does."""
    stated_s, size = setting.options.weight_sync_s, actor_bytes(setting)
    link_of = {frozenset(link.pools): link for link in reversed(setting.resolved.problem.cluster.links)}
    seconds = {}
    for generating in setting.pools:
        for training in setting.pools:
            link = link_of.get(frozenset((generating.name, training.name)))
            if generating.name == training.name:
                rate, latency_s = _sender_bytes_per_s(training), _switching_s(training)
            elif link is not None:
                rate, latency_s = min(link.bandwidth_bytes_per_s, _adapter_bytes_per_s(training)), link.latency_s
            else:
                continue
            transfer_s = START_S + latency_s + max(size / rate, hosts_s(setting.actor))
            seconds[generating.name, training.name] = transfer_s if stated_s is None else stated_s
    return seconds


def switch_s(setting: RlSetting) -> float:
    """Taking turns beyond moving state to the host and back: all weights reach every node, and are loaded there."""
    node = setting.pools[0].node
    adapters = node.num_gpus * min(_adapter_bytes_per_s(pool) for pool in setting.pools)
    return START_S + max(actor_bytes(setting) / adapters, hosts_s(setting.actor))


def host_bytes_per_s(setting: RlSetting, pool: Pool) -> float:
    """Of one GPU to host memory and back: of its own link, or its share of what the memory of its node takes."""
    shared, link = setting.options.host_bandwidth_bytes_per_s, pool.node.pcie_bandwidth_bytes_per_s
    return link if shared is None else min(link, shared / pool.node.num_gpus)


def unpinned_bytes_per_s(setting: RlSetting, pool: Pool) -> float:
    """Of one GPU to host memory and back for what training keeps: launchers allocate that memory as it comes.

    So are optimizer states and models that score (`Tensor.to("cpu")` in NeMo-RL's Megatron worker, and in verl's for
    models without gradients). What engines put to sleep lies in pinned memory, and moves as `host_bytes_per_s`.
    """
    rate = host_bytes_per_s(setting, pool)
    coherent = pool.node.pcie_bandwidth_bytes_per_s > PCIE_BYTES_PER_S
    return rate if coherent else min(rate, UNPINNED_BYTES_PER_S)


def hosts_s(arch: Architecture) -> float:
    """What hosts take for the tensors of a model, one after the other."""
    return TENSOR_S * num_tensors(arch)


def num_tensors(arch: Architecture) -> int:
    """Tensors of a checkpoint without heads of multi-token prediction, each expert's by itself."""
    layers = sum(sum(t.copies for t in layer_tensors(layer, arch)) * times for layer, times in arch.layer_groups())
    return layers + len(edge_tensors(arch))


def actor_bytes(setting: RlSetting) -> float:
    """Of all weights that generators hold."""
    from planner.costs.operators.work import Shards
    from planner.costs.serving.memory import weight_bytes

    return float(weight_bytes(setting.actor, Shards.of(1))[0])


def _sender_bytes_per_s(pool: Pool) -> float:
    """Of one GPU to others of its pool; out of its rack over the uplink, and all links of circuits, at most."""
    if pool.num_nodes == 1:
        return pool.node.scale_up_bandwidth_bytes_per_s
    limits, circuits = [_adapter_bytes_per_s(pool)], _circuits(pool)
    if circuits is not None:
        limits.append(circuits.ports * circuits.link_bytes_per_s)
    uplink = pool.wiring.uplink_bytes_per_s
    if uplink is not None and len(pool.wiring.racks) > 1:
        limits.append(uplink)
    return min(limits)


def _switching_s(pool: Pool) -> float:
    """Of circuits that change to the synchronisation and back."""
    circuits = _circuits(pool)
    return 0.0 if circuits is None else 2.0 * circuits.switching_s


def _circuits(pool: Pool) -> CircuitSwitch | None:
    return pool.wiring.circuits if len(pool.wiring.racks) > 1 else None


def _adapter_bytes_per_s(pool: Pool) -> float:
    return pool.node.nic_bandwidth_bytes_per_s
