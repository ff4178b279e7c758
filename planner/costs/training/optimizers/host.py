"""Adam computed by the host: gradients go there, updated weights come back, and its memory moves the states.

ZeRO-Offload (arXiv:2101.06840, section 4.1) keeps weights, moments and gradients of 4 bytes each in host memory: an
update reads 16 bytes of an element and writes 12, and 2 of what the device computes with. Processors reach about half
of their memory's bandwidth in such a pass: an assumption, for no published run here states its update apart.
"""

from planner.hardware.cluster import NodeType

MOVED_BYTES = 30.0  # of host memory, an element and update
REACHED = 0.5  # of the bandwidth of host memory
SENT_BYTES, RETURNED_BYTES = 4.0, 2.0  # gradient to the host, weight back

_HOST_BYTES_PER_S = {"volta": 256e9, "ampere": 410e9, "hopper": 614e9, "blackwell": 717e9, "cdna": 614e9}
"""Of a node of eight, two sockets: 12 channels of DDR4-2666 in all (DGX-2), 16 of DDR4-3200 (DGX A100), of DDR5-4800
(DGX H100, MI300X servers), of DDR5-5600 (DGX B200)."""
_RACK_HOST_BYTES_PER_S = 512e9 / 2.0
"""Of a GPU in racks of 72: LPDDR5X of a Grace processor, which two GPUs share."""
_NODE_GPUS = 8


def host_rate(node: NodeType, generation: str) -> float:
    """Bytes of host memory that processors move for one GPU in a second."""
    rack = node.scale_up_size > _NODE_GPUS
    return REACHED * (_RACK_HOST_BYTES_PER_S if rack else _HOST_BYTES_PER_S[generation] / _NODE_GPUS)


def host_update_s(node: NodeType, generation: str, elements: float, link_bytes_per_s: float) -> float:
    """Seconds in which the host updates the elements of one GPU, transfers before and behind it."""
    moved_s = elements * MOVED_BYTES / host_rate(node, generation)
    return moved_s + elements * (SENT_BYTES + RETURNED_BYTES) / link_bytes_per_s
