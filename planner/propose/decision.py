"""A serving decision under uncertainty: alternatives with Student-t beliefs, updated by measured results."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.costs.rates.likeness import RERUN, TPOT, TTFT, ErrorBelief, Likeness
from planner.errors import PlannerError, did_you_mean
from planner.estimate.places import layouts, loads
from planner.propose.alternative import Alternative, Result
from planner.solvers.stochastic.sequential_choice import (
    Belief,
    BeliefState,
    best,
    best_known,
    chances,
    expected_rewards,
    gains,
)

NOISE = (RERUN, 0.036)  # log deviations of TPOT and TTFT between reruns; those of TTFT change by 2.4 % in the median


@dataclass(frozen=True, slots=True)
class Slo:
    """The longest times that count; None where there is no limit."""

    tpot_s: float | None
    ttft_s: float | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """What is believed of one alternative."""

    alternative: Alternative
    expected: float  # output tokens/s/GPU, 0 counted where a limit breaks
    chance: float  # of keeping the limits
    tpot_s: float  # medians
    ttft_s: float
    tpot_s_interval: tuple[float, float]  # 80 % of what is believed
    gain: float  # expected rise of the best alternative's expected reward by a run of this one
    measured: bool


def make_choice(
    alternatives: Sequence[Alternative],
    limits: Slo,
    *,
    tpot: Likeness = TPOT,
    ttft: Likeness = TTFT,
    noise: tuple[float, float] = NOISE,
) -> BeliefState:
    """The choice before any run: beliefs about log TPOT (x) and log TTFT (y), reward in output tokens/s/GPU."""
    cases = [alternative.case for alternative in alternatives]
    osl_M = np.array([case.osl for case in cases])
    clients_M = np.array([float(case.clients) for case in cases])
    gpus_M = np.array([alternative.case.gpus * alternative.price for alternative in alternatives])
    place = (loads(cases), layouts(cases))
    x = _belief([alternative.tpot_s for alternative in alternatives], tpot, *place)
    y = _belief([alternative.ttft_s for alternative in alternatives], ttft, *place)
    return BeliefState(
        x=Belief(*x, noise[0] ** 2, tpot.freedom, tpot.held),
        y=Belief(*y, noise[1] ** 2, ttft.freedom, ttft.held),
        a_M=clients_M * osl_M / gpus_M,
        b_M=np.maximum(osl_M - 1.0, 1e-9),
        limit_x=math.log(limits.tpot_s) if limits.tpot_s is not None else math.inf,
        limit_y=math.log(limits.ttft_s) if limits.ttft_s is not None else None,
    )


def _belief(
    times_s: Sequence[float],
    likeness: Likeness,
    load_M: Floats,
    layout_MF: Floats,
) -> tuple[Floats, Floats]:
    """Mean and covariance of log times."""
    return np.log(np.array(times_s, dtype=np.float64)), likeness.covariance(load_M, layout_MF)


def with_results(choice: BeliefState, alternatives: Sequence[Alternative], results: Sequence[Result]) -> BeliefState:
    """The choice after `results`; raises PlannerError for one of no alternative."""
    index = {alternative.name: m for m, alternative in enumerate(alternatives)}
    for result in results:
        if result.name not in index:
            raise PlannerError(
                f"no alternative is called `{result.name}`",
                where="--results",
                hint=did_you_mean(result.name, list(index), otherwise="see which runs were proposed"),
            )
        choice = choice.after(index[result.name], math.log(result.tpot_s), math.log(result.ttft_s))
    return choice


def middle_of(belief: Belief) -> tuple[Floats, Floats]:
    """Both ends [M] of the 80 % of what is believed of each alternative, seconds."""
    alone = belief.marginal
    half_M = ErrorBelief(alone.mean, alone.scale, alone.freedom).half
    return np.exp(belief.mean_M - half_M), np.exp(belief.mean_M + half_M)


def standings(choice: BeliefState, alternatives: Sequence[Alternative]) -> list[Standing]:
    """What is believed of every alternative, best first."""
    rewards_M, chances_M, gains_M = expected_rewards(choice), chances(choice), gains(choice)
    tpot_M, ttft_M = np.exp(choice.x.mean_M), np.exp(choice.y.mean_M)
    low_M, high_M = middle_of(choice.x)
    first = best(choice)
    order = sorted(range(len(alternatives)), key=lambda m: (m != first, -rewards_M[m], m))
    return [
        Standing(
            alternative=alternatives[m],
            expected=float(rewards_M[m]),
            chance=float(chances_M[m]),
            tpot_s=float(tpot_M[m]),
            ttft_s=float(ttft_M[m]),
            tpot_s_interval=(float(low_M[m]), float(high_M[m])),
            gain=float(gains_M[m]),
            measured=m in choice.seen,
        )
        for m in order
    ]


def loss_left(choice: BeliefState) -> float:
    """The share of what could be had, were all known, that deciding now is expected to lose."""
    known = best_known(choice)
    now = float(expected_rewards(choice).max())
    return max(1.0 - now / known, 0.0) if known > 0.0 else 0.0
