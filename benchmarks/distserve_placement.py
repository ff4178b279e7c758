"""DistServe's two ways to place prefill and decode: each by itself, or paired inside nodes.

Source: Zhong et al., DistServe, OSDI 2024 (arXiv:2401.09670), section 4, algorithms 1 and 2. Where nodes are joined
by a fast network (high affinity) caches may move anywhere, so that each phase gets the instance of most goodput per
GPU, and as many of them as the rate asks for. Where they are not (low affinity), a pair of segments with the same
stages stands in each node, so that a stage's cache stays there; a unit of such pairs is searched as a whole.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.problem.slo import SloSpec
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.goodput.rate import goodput
from planner.simulate.goodput.rate_bound import RateBound
from planner.simulate.run.attainment import Draws, required

STAYS = 3.0  # mean stays at the limit that the draws must last for at least, so that decoding gets to its steady state


@dataclass(frozen=True, slots=True)
class Segment:
    """Degrees of one phase inside a node."""

    tp: int
    pp: int

    @property
    def gpus(self) -> int:
        return self.tp * self.pp


@dataclass(frozen=True, slots=True)
class Unit:
    """A prefill and a decode instance; each has `cross` times the stages of its segment, one segment a node."""

    prefill: Segment
    decode: Segment
    cross: int = 1

    @property
    def gpus(self) -> int:
        return self.cross * (self.prefill.gpus + self.decode.gpus)


@dataclass(frozen=True, slots=True)
class Phase:
    """An instance that could serve one phase, as engines, and what it takes."""

    name: str
    gpus: int
    engines: tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class Apart:
    """The choice of algorithm 1: an instance for each phase, with the goodput of one, and how many a rate needs."""

    prefill: Phase
    decode: Phase
    prefill_per_s: float
    decode_per_s: float

    def counts(self, rate_per_s: float) -> tuple[int, int]:
        """Instances of both phases for a rate."""
        return math.ceil(rate_per_s / self.prefill_per_s), math.ceil(rate_per_s / self.decode_per_s)


def low_affinity_units(segments: Sequence[Segment], *, nodes: int, gpus_per_node: int) -> Iterator[Unit]:
    """The space of algorithm 2: pairs of segments that fit a node together, over as many nodes as stages cross."""
    for cross in range(1, nodes + 1):
        for prefill in segments:
            for decode in segments:
                if prefill.gpus + decode.gpus <= gpus_per_node:
                    yield Unit(prefill, decode, cross)


def high_affinity(prefill: Sequence[Phase], decode: Sequence[Phase], draws: Draws, slo: SloSpec) -> Apart | None:
    """Algorithm 1: of each phase the instance of most goodput per GPU, simulated alone; None where one has none."""
    first = [(_prefill_alone(instance, draws, slo), instance) for instance in prefill]
    second = [(_decode_alone(instance, draws, slo), instance) for instance in decode]
    rate_p, best_p = max(first, key=lambda pair: pair[0] / pair[1].gpus)
    rate_d, best_d = max(second, key=lambda pair: pair[0] / pair[1].gpus)
    return Apart(best_p, best_d, rate_p, rate_d) if rate_p > 0.0 and rate_d > 0.0 else None


def _prefill_alone(phase: Phase, draws: Draws, slo: SloSpec) -> float:
    """Goodput of prompts alone: each request is over with its first token."""
    engines = tuple(replace(engine, role="colocated") for engine in phase.engines)
    alone = replace(draws, output_tokens=np.ones_like(draws.output_tokens))
    limits = slo.model_copy(update={"tpot": None, "latency": None})
    return _goodput(Fleet(engines, first_token_from="prefill"), alone, limits, math.inf)


def _decode_alone(phase: Phase, draws: Draws, slo: SloSpec) -> float:
    """Goodput of decoding alone, behind a prefill that takes no time."""
    longest = float((draws.input_tokens + draws.output_tokens).max())
    grid = StepGrid.affine(1e-9, most_sequences=len(draws))
    tokens = int(longest) * len(draws)
    source = Instance(
        grid, tokens, role="prefill", token_budget=int(draws.input_tokens.max()), most_sequences=len(draws)
    )
    limits = slo.model_copy(update={"ttft": None, "latency": None})
    slowest_s = min(slo.tpot.statistics().values()) if slo.tpot is not None else 1.0
    most = len(draws) / (STAYS * slowest_s * float(draws.output_tokens.mean()))
    return _goodput(Fleet((source, *phase.engines), first_token_from="prefill"), draws, limits, most)


def _goodput(fleet: Fleet, draws: Draws, slo: SloSpec, most_per_s: float) -> float:
    most = min(RateBound(draws, required(slo)).most_rate(fleet), most_per_s)
    return goodput(fleet, draws, slo, most_per_s=most).rate_per_s
