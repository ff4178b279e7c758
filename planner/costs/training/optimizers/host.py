"""Adam computed by the host: gradients go there, updated weights come back, and its memory moves the states.

ZeRO-Offload (arXiv:2101.06840, section 4.1) keeps weights, moments and gradients of 4 bytes each in host memory: an
update reads 16 bytes of an element and writes 12, and 2 of what the device computes with. Processors reach about half
of their memory's bandwidth in such a pass: an assumption, for no published run here states its update apart.
"""

from math import inf

from planner.hardware.cluster import NodeType

MOVED_BYTES = 30.0  # of host memory, an element and update
REACHED = 0.5  # of the bandwidth of host memory
SENT_BYTES, RETURNED_BYTES = 4.0, 2.0  # gradient to the host, weight back

STATE_BYTES = 16.0
"""Of host memory for an element that the host updates, each of 4: the weight, both moments, and the gradient.

Megatron-Core's `HybridDeviceOptimizer` makes its copy of a shard there in 32 bits, and a pinned buffer of that format
for its gradient (`_get_sub_optimizer_param_groups` and `_set_sub_optimizer_grads` of megatron/core/optimizer/
cpu_offloading/hybrid_optimizer.py). FSDP2's `CPUOffloadPolicy` pins the shards themselves, and what a reduction brings
there (`foreach_reduce` of torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py). DeepSpeed counts 16 too
(`estimate_zero2_model_states_mem_needs` of deepspeed/runtime/zero/stage_1_and_2.py).
"""
MOMENTS_BYTES = 8.0
HELD_SHARE = 1.0 / 1.5
"""Of host memory, that training may plan to hold: DeepSpeed's estimator multiplies what states take by 1.5
(`additional_buffer_factor`) for buffers beside them. PyTorch rounds each pinned buffer up to a power of two, and data
loaders, caches of files and the system want the rest. NVIDIA's runs of Llama 3 70B on GB200 with 40 layers' activations
there (`planner/estimate/bridge_recipes.csv`) hold 0.66 of it by these costs."""

_HOST_BYTES_PER_S = {"volta": 256e9, "ampere": 410e9, "hopper": 614e9, "blackwell": 717e9, "cdna": 614e9}
"""Of a node of eight, two sockets: 12 channels of DDR4-2666 in all (DGX-2), 16 of DDR4-3200 (DGX A100), of DDR5-4800
(DGX H100, MI300X servers), of DDR5-5600 (DGX B200)."""
_RACK_HOST_BYTES_PER_S = 512e9 / 2.0
"""Of a GPU in racks of 72: LPDDR5X of a Grace processor, which two GPUs share."""
_NODE_GPUS = 8


def host_room_bytes(node: NodeType) -> float:
    """Bytes of host memory that the ranks of one GPU may hold; infinite where nobody says what a node has."""
    return node.host_memory_bytes / node.num_gpus * HELD_SHARE if node.host_memory_bytes else inf


def host_rate(node: NodeType, generation: str) -> float:
    """Bytes of host memory that processors move for one GPU in a second."""
    rack = node.scale_up_size > _NODE_GPUS
    return REACHED * (_RACK_HOST_BYTES_PER_S if rack else _HOST_BYTES_PER_S[generation] / _NODE_GPUS)


def host_update_s(node: NodeType, generation: str, elements: float, link_bytes_per_s: float) -> float:
    """Seconds in which the host updates the elements of one GPU, transfers before and behind it."""
    moved_s = elements * MOVED_BYTES / host_rate(node, generation)
    return moved_s + elements * (SENT_BYTES + RETURNED_BYTES) / link_bytes_per_s
