"""Rings that leave a domain: all-gathers and reduce-scatters as NCCL runs them (its src/graph/tuning.cc).

A ring of g ranks in n domains passes a part on g - 1 times: n - 1 of these steps cross the network one after the other,
g - n stay inside. All links carry at once, so the slowest decides; what enters a domain is shared by the adapters of
the ranks there. Of three protocols the fastest runs: LL (half the bytes are flags), LL128 (a sixteenth) and Simple.
NCCL has trees for all-reduces alone.

NCCL's latencies count as multiples: its base latencies, 6.6 us for LL, of the start of a collective; what steps inside
take, 1 us for LL (posting to the network), of a hop; crossings of the network's latency, 5 us where LL waits for all of
it. Rings inside one domain, as measured with 2 to 8 GPUs, take 4.3 us and .9 us a step on H100 and H200, 7.6 and 1.2 on
B200.
"""

from typing import NamedTuple

import numpy as np

from planner.arrays import Floats


class Protocol(NamedTuple):
    """One of NCCL's: multiples of start, hop and network latency, and the share of what it moves that is payload."""

    start: float
    step: float  # inside a domain
    crossing: float  # between domains that hold several of the ranks,
    exposed: float  # or one each
    payload: float


LL = Protocol(1.0, 1.0, 2.7 / 5.0, 1.0, 0.5)
LL128 = Protocol(14.0 / 6.6, 1.9, 4.0 / 5.0, 8.5 / 5.0, 0.92)
SIMPLE = Protocol(8.4 / 6.6, 3.4, 14.0 / 5.0, 14.0 / 5.0, 1.0)


def ring_s(
    moved_s: Floats, flagged_s: Floats, ranks: Floats, domains: Floats, latency_s: Floats, start_s: float, hop_s: float
) -> Floats:
    """Seconds [N] of the fastest protocol.

    `moved_s`: of the bytes, in Simple; `flagged_s`: their least in LL; `latency_s`: of the network.
    """
    times: list[Floats] = []
    for protocol in (LL, LL128, SIMPLE):
        crossing = np.where(ranks > domains, protocol.crossing, protocol.exposed) * latency_s
        steps = (ranks - domains) * protocol.step * hop_s + (domains - 1.0) * crossing
        moving = moved_s / protocol.payload
        moving = np.maximum(moving, flagged_s) if protocol is LL else moving
        times.append(protocol.start * start_s + steps + moving)
    return np.asarray(np.minimum.reduce(times))


def ring_ll_bytes_per_s(domains: Floats) -> Floats:
    """The most [N] that rings over so many domains move in LL (Intel's hosts: 39 GB/s over two, 20.4 over more)."""
    return np.where(domains > 2, 20.4e9, 39e9)
