"""Operation of a fleet: scaling events, failures, autoscaling, prefill-decode role flips, links between pools."""

import math
from dataclasses import dataclass
from typing import Final

from planner.errors import PlannerError, require_known
from planner.simulate.loop import fields

ACTIONS: Final = {
    "start": fields.TO_START,
    "drain": fields.TO_DRAIN,
    "fail": fields.TO_FAIL,
    "to-prefill": fields.TO_PREFILL,
    "to-decode": fields.TO_DECODE,
}


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to an instance, and to those that step with it, at a time.

    start: opens; drain: takes no more requests, off when it has none left; fail: off at once, its requests computed
    again elsewhere; to-prefill, to-decode: drains, then takes the role on.
    """

    time_s: float
    instance: int
    action: str

    def __post_init__(self) -> None:
        require_known("action", self.action, ACTIONS)
        if not 0.0 <= self.time_s < math.inf:
            raise PlannerError(f"a change at {self.time_s:g} s", hint="times start at 0 and are finite")


@dataclass(frozen=True, slots=True)
class Control:
    """What an autoscaler does every `period_s`, for each model and side: one group of instances at a time.

    A group is started, open after `start_s`, where there are more than `crowded_above` requests for each that is up;
    the emptiest drains where there are fewer than `idle_below` for each and more than `least` are up. Where more than
    `flip_above` requests for each group wait for prefill and more than for decode, or the other way round, the emptiest
    group of the other side changes role.
    """

    period_s: float
    crowded_above: float = math.inf
    idle_below: float = 0.0
    least: int = 1
    start_s: float = 0.0
    flip_above: float = math.inf

    def __post_init__(self) -> None:
        if not self.period_s > 0.0:
            raise PlannerError(f"`period_s` must be above 0, found {self.period_s:g}", where="control")
        if self.least < 1 or self.start_s < 0.0 or not self.idle_below <= self.crowded_above:
            what = f"least {self.least}, start_s {self.start_s:g}, idle_below {self.idle_below:g}"
            raise PlannerError(
                f"{what}, crowded_above {self.crowded_above:g}",
                where="control",
                hint="keep at least 1 instance, and `idle_below` below `crowded_above`",
            )


@dataclass(frozen=True, slots=True)
class ElasticEngines:
    """Equal instances that keep one KV cache together, join for a prefill and part for decoding (elastic.py says how).

    `scale_up_above`: decoding sequences of an instance above which those that decode together take idle instances in;
    as many as an instance runs where absent.
    """

    ring_tokens_per_s: float = math.inf  # keys and values from one instance to the next
    exchange_s: float = 0.0  # of a decode step that several instances share
    borrows: bool = True  # instances that decode, where others are idle
    scale_up_above: int | None = None

    def __post_init__(self) -> None:
        if not self.ring_tokens_per_s > 0.0 or not 0.0 <= self.exchange_s < math.inf:
            raise PlannerError(
                f"a ring of {self.ring_tokens_per_s:g} tokens/s, exchanges of {self.exchange_s:g} s",
                where="elastic",
                hint="give a rate above 0 and a finite time",
            )
        if self.scale_up_above is not None and self.scale_up_above < 1:
            raise PlannerError(f"`scale_up_above` must be at least 1, found {self.scale_up_above}", where="elastic")


@dataclass(frozen=True, slots=True)
class PoolLink:
    """What all caches that move from one pool to another share."""

    source: int
    goal: int
    tokens_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if self.tokens_per_s <= 0.0 or not 0.0 <= self.latency_s < math.inf:
            raise PlannerError(
                f"{self.tokens_per_s:g} tokens/s, {self.latency_s:g} s",
                where="link between pools",
                hint="give a rate above 0 and a finite latency",
            )
