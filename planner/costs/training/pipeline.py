"""Seconds of all micro-batches through a pipeline: its stages as the schedule runs them, pass by pass.

What `planner.solvers.schedules.pipeline` simulates, with hand-overs between ranks: of each a rank spends a calibrated
share on its pass, and the next one waits for the rest. Shape suffixes: S stage, B border between two, R rank.
"""

from collections.abc import Collection

import numpy as np

from planner.arrays import Floats
from planner.costs.training.rates import Rates
from planner.solvers.schedules.pipeline import StageTimes, orders, simulate

VALIDATED_LATER = ("zb_h1", "zb_h2", "zb_v")
"""Schedules whose ranks start the next step before all have ended this one (Qi et al., arXiv:2401.10241, section 4)."""
MOST_PASSES = 1 << 20
"""Micro-batches times stages of one simulation; more are drawn out, every round of micro-batches taking as long."""


def copies_of(schedule: str) -> float:
    """Ranks that share the micro-batches of a stage."""
    return 2.0 if schedule == "dualpipe" else 1.0


def exposed_share(rates: Rates, overlap: Collection[str], vpp: int) -> float:
    """The share of a hand-over that a rank spends on each pass."""
    return rates.get("exposed.p2p.overlapped" if "p2p" in overlap and vpp > 1 else "exposed.p2p")


def pipeline_time(
    schedule: str, vpp: int, batches: int, ranks: tuple[tuple[int, ...], ...],
    pass_S3: Floats, message_B: Floats, exposed: float, joined_S: Floats | None = None,
) -> tuple[float, Floats]:  # fmt: skip
    """Seconds of all micro-batches, and of each rank at work [R].

    ranks: the stages of each rank; pass_S3: forward, gradients of inputs and of weights of one micro-batch; message_B:
    seconds of a hand-over, of which ranks spend the share `exposed` on each pass; joined_S: saved where a forward pass
    runs beside a backward pass.
    """
    pp = len(ranks)
    if pp == 1:
        busy_s = batches * float(pass_S3.sum())
        return busy_s, np.array([busy_s])
    rank_of_stage = {stage: rank for rank, stages in enumerate(ranks) for stage in stages}
    apart_B = np.array([float(rank_of_stage[s] != rank_of_stage[s + 1]) for s in range(len(message_B))])
    if schedule == "dualpipe":
        apart_B = np.ones(len(message_B))
    more_S = exposed * np.maximum(np.append(message_B, 0.0), np.insert(message_B, 0, 0.0))
    times = StageTimes(
        pass_S3[:, 0] + more_S, pass_S3[:, 1] + more_S, pass_S3[:, 2], (1.0 - exposed) * message_B * apart_B, joined_S
    )
    most = max(MOST_PASSES // (pp * vpp), 4 * pp)
    if batches <= most:
        return _simulated(schedule, pp, vpp, batches, times)
    many = batches - (batches - most) // (2 * pp) * 2 * pp
    few = many - many // (4 * pp) * 2 * pp
    (many_s, many_R), (few_s, few_R) = (_simulated(schedule, pp, vpp, number, times) for number in (many, few))
    rounds = (batches - many) / (many - few)
    return many_s + rounds * (many_s - few_s), many_R + rounds * (many_R - few_R)


def _simulated(schedule: str, pp: int, vpp: int, batches: int, times: StageTimes) -> tuple[float, Floats]:
    timeline = simulate(orders(schedule, pp, vpp, batches), times)
    if schedule in VALIDATED_LATER:
        return float((timeline.end_s_R - timeline.first_s_R).max()), timeline.busy_s_R
    return timeline.makespan_s, timeline.busy_s_R
