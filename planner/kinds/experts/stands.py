"""Where the ranks of an expert layout stand, and the links that join them there."""

from dataclasses import replace

import numpy as np

from planner.arrays import Ints
from planner.hardware.cluster import Pool
from planner.solvers.topology.compact import compact


def devices_of(pool: Pool, ranks: int) -> Ints:
    """The devices of so many ranks, in order: on racks so that the busiest uplink sends least, else the first.

    Where the pool forms groups of nodes, ranks fill one after the other.
    """
    size, devices = pool.node.num_gpus, pool.job_devices
    if pool.wiring.groups or len(pool.wiring.racks) < 2:
        return devices[:ranks]
    nodes = np.array(pool.job_nodes)
    rack_N = pool.rack_of_node[nodes]
    free = np.bincount(rack_N, minlength=len(pool.wiring.racks)).tolist()
    counts = compact(free, -(-ranks // size))
    chosen = np.concatenate([nodes[rack_N == rack][:count] for rack, count in enumerate(counts)])
    return np.asarray((chosen[:, None] * size + np.arange(size)).ravel()[:ranks])


def pool_of(pool: Pool, devices: Ints) -> Pool:
    """The nodes of these devices alone, as their racks and links join them: what exchanges between them are priced on.

    Inside one rack its uplink carries nothing.
    """
    if not pool.wiring.racks:
        return pool
    nodes = np.unique(devices // pool.node.num_gpus)
    counts = np.bincount(pool.rack_of_node[nodes])
    wiring = replace(pool.wiring, racks=tuple(counts[counts > 0].tolist()), groups=())
    return replace(pool, num_nodes=len(nodes), out_of_service=(), wiring=wiring)
