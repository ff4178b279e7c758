"""ZeRO overlap: time of weight gathers and gradient reductions that computing does not hide (arXiv:1910.02054).

Exchanged every micro-batch (ZeRO-3, and ZeRO-2 with several micro-batches), gathers run beside the forward pass, and
gathers and reductions beside the backward pass: the shorter of both is hidden, but for the share of it that is lost as
both use the device. Exchanged once a step, an overlapping exchange shows its last bucket, and what is more than its
pass has room for. Array suffixes: X any rows, 3 forward pass, gradients of inputs and of weights.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.costs.training.rates import Rates


def each_micro_batch(zero_stage: int, num_micro_batches: int) -> bool:
    """Whether gradients are scattered behind every micro-batch, not once a step."""
    return zero_stage == 3 or (zero_stage == 2 and num_micro_batches > 1)


def lost_share(rates: Rates, overlap: Collection[str], zero_stage: int) -> float:
    """The share of the shorter of pass and exchange that is not hidden; all of it where they do not overlap."""
    hidden = "grad_reduce" in overlap and ("param_gather" in overlap or zero_stage == 2)
    return rates.get("contention.zero3") if hidden else 1.0


def overlapped(pass_X: Floats | float, exchange_X: Floats | float, lost: Floats | float) -> Floats:
    """A pass and the exchange beside it: the longer of both, and what is lost of the shorter."""
    return np.asarray(np.maximum(pass_X, exchange_X) + lost * np.minimum(pass_X, exchange_X))


def beside(pass_X3: Floats, gather_X: Floats, reduce_X: Floats, lost: float | Floats) -> Floats:
    """Passes with gathers beside forward and backward, and reductions beside the backward pass [..., 3]."""
    forward, weight = pass_X3[..., 0], pass_X3[..., 2]
    backward = overlapped(pass_X3[..., 1] + weight, gather_X + reduce_X, lost)
    return np.stack([overlapped(forward, gather_X, lost), backward - weight, weight], axis=-1)


def exposed_s(moved_X: Floats | float, pass_X: Floats, rates: Rates) -> Floats:
    """What shows of an exchange once a step that runs beside a pass."""
    tail, room = rates.get("dp.tail"), rates.get("dp.room")
    return np.asarray(tail * moved_X + np.maximum((1.0 - tail) * moved_X - room * pass_X, 0.0))


@dataclass(frozen=True, slots=True)
class ExchangeSwitches:
    """What decides when data-parallel ranks exchange, and beside what."""

    overlap: Collection[str]
    zero_stage: int
    num_micro_batches: int
    rates: Rates


def with_exchange(switches: ExchangeSwitches, pass_X3: Floats, gather_X: Floats, reduce_X: Floats) -> Floats:
    """Passes with what is exchanged every micro-batch beside them: reductions with ZeRO-2 and 3, gathers with 3."""
    if not each_micro_batch(switches.zero_stage, switches.num_micro_batches):
        return pass_X3
    gathered_X = gather_X if switches.zero_stage == 3 else np.zeros_like(reduce_X)
    lost = lost_share(switches.rates, switches.overlap, switches.zero_stage)
    return beside(pass_X3, gathered_X, reduce_X, lost)


def shown(switches: ExchangeSwitches, gather_X: Floats | float, reduce_X: Floats | float, pass_X3: Floats) -> Floats:
    """What shows of gathers and reductions once a step, each beside its passes [X]."""
    overlap, rates, shown_X = switches.overlap, switches.rates, np.zeros(len(pass_X3))
    if switches.zero_stage != 3:
        shown_X += exposed_s(gather_X, pass_X3[:, 0], rates) if "param_gather" in overlap else gather_X
    if not each_micro_batch(switches.zero_stage, switches.num_micro_batches):
        backward_X = pass_X3[:, 1] + pass_X3[:, 2]
        shown_X += exposed_s(reduce_X, backward_X, rates) if "grad_reduce" in overlap else reduce_X
    return shown_X
