"""Time to first token of engines that prefill and decode in the same steps, over arrays [N]; prompts in mean ones.

A step without prompts takes t seconds, a prompt w more, and a step has room for R of them: full, it takes F = t + w R.
With pp stages a step is a pass of one batch, t and w those of all its stages, and at most pp batches are in flight; a
long batch holds back those behind it. s is the mean step (pass) that a decoding sequence meets, q requests come a
second, n of them decode, L is a prompt's length, C and C2 the first moments of min(L, R), and v = ca^2 + cl^2 the
variance over the mean of what comes, in prompts.

Waiting for a step. A request comes during a step as long as steps are, E S^2 / s, where variance is
w^2 min(q s v, x (R - x)), x = q s, of one stage; of several w^2 (s - t) / (w C) C2, prompts of one pass being held as
one. Of one stage half of it remains. In stages a batch can leave as soon as one ends, which is at once where few
decode: b = n / (n + 2 pp) of the time all are in flight, and `WAITS` of one stage's wait is left.

Passes. Before a prompt go W, left over by full steps (`work_left`, at utilisation u = q F / (R pp)), and half of what
came in its step; they and its own length are Z, which takes k = ceil(Z / R) steps, all but the last full. The last one
also has what comes behind it, as far as there is room. k steps in stages follow each other: they take 1 / pp of the sum
of their passes and the rest of the longest. Z counts as lognormal.

Held back. In stages a shorter batch waits for a longer one ahead, whose prompts differ by `HELD` of the deviation of
min(L, R), where one is ahead: for a share 1 - (1 - h) t / s of time, h = 1 - exp(-(s - t) / (w C)).

Waiting for a place. D places hold sequences from their first step to their last token. N, those present, spreads as a
random walk that each arrival moves: by itself and by the prompt that slows all, a = s / t - 1 of a departure, so that
    var N = N (ca^2 (1 + a)^2 + a^2 e + 1) / 2 / (1 - n t' / t),
e the squared variation of what a prompt holds. Requests wait where N, a lognormal number, reaches D, and at least as
often as in M/M/D, as before one server at heavy load (Kingman), of the capacity at the full batch.

A quantile is that of t and a lognormal rest with the mean and variance of all parts. `WAITS` and `HELD` are fitted to
the cells of `benchmarks/pipelines.py` that are not held out; nothing else is.
"""

from dataclasses import dataclass, fields

import numpy as np

from planner.arrays import Floats, Indices
from planner.kinds.serve.steady.steps.pipelines import in_flight_share
from planner.solvers.stochastic.capped_lognormal import (
    capped_means,
    capped_squares,
    chance_above,
    compound_capped_means,
    unit_quantiles,
)
from planner.solvers.stochastic.queueing import erlang_c, mean_wait_s
from planner.solvers.stochastic.slotted_work import MOST_USED, work_left

WAITS = 0.67  # of the wait for a step of one stage, in stages
HELD = 0.36  # of the deviation of prompts in a batch, that batches ahead are longer by
MOST_STEPS = 12  # of a prompt that are counted one by one
LEAST_PACE = 0.2  # of 1 - n t' / t
FULLEST = 1.0 - 1e-6


@dataclass(frozen=True, slots=True)
class Engines:
    """Attention ranks that prefill and decode, at their full batches [N]."""

    stages: Floats
    places: Floats  # sequences that may be there
    room: Floats  # prompts of a full step, with all of them decoding
    pace_s: Floats  # of a step without prompts
    step_s: Floats  # of the mean step
    prompt_s: Floats  # that a prompt adds to its steps, of all stages
    steps: Floats  # of an answer
    pace_slope_s: Floats  # by a sequence more
    step_slope_s: Floats
    sequence_room: Floats  # prompts that a sequence takes from the room of a step
    later_s: Floats  # from the end of the prompt's last step to its token at the client
    front_s: Floats  # that its front end is busy with a request
    front_ranks: Floats  # that share a front end

    def take(self, rows: Indices) -> "Engines":
        """Those of some points."""
        return Engines(*(getattr(self, field.name)[rows] for field in fields(self)))

    def capacity_per_s(self, length_cv2: float) -> Floats:
        """Requests of a rank whose places are all taken: for the steps of a prompt and of its answer."""
        return self.places / (self.steps * self.step_s + self._passes_s(self.pace_s, length_cv2))

    def front_busy(self, rate_per_s: Floats) -> Floats:
        """The share of time that front ends are busy where each rank gets so many requests."""
        return rate_per_s * self.front_ranks * self.front_s

    def front_wait_s(self, rate_per_s: Floats, varied: "Variability") -> Floats:
        """The mean wait for a front end, one server."""
        busy = np.minimum(self.front_busy(rate_per_s), FULLEST)
        return mean_wait_s(busy, 1.0, self.front_s, cv2_arrival=varied.arrivals, cv2_service=varied.prompts)

    def own_s(self, length_cv2: float) -> Floats:
        """Time to first token of a prompt that is alone in its steps, between the sequences of the full batch."""
        return self._passes_s(self.pace_s, length_cv2) + self.later_s

    def _passes_s(self, pace_s: Floats, length_cv2: float) -> Floats:
        inside, more = capped_means(self.room, length_cv2), _ceilings(np.ones_like(self.room), length_cv2, self.room)[0]
        return pace_s * (1.0 + (more - 1.0) / self.stages) + self.prompt_s * (inside + (1.0 - inside) / self.stages)


@dataclass(frozen=True, slots=True)
class Variability:
    """Squared coefficients of variation of a workload."""

    arrivals: float
    prompts: float
    answers: float


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """The time to first token at a load [N]: a least part, and a rest of this mean and variance."""

    least_s: Floats
    mean_s: Floats
    variance_s2: Floats

    def quantile_s(self, quantile: float | None) -> Floats:
        """What this share of requests does not exceed; the mean without a share."""
        if quantile is None:
            return self.mean_s
        rest_s = np.maximum(self.mean_s - self.least_s, 1e-12)
        return self.least_s + rest_s * unit_quantiles(quantile, self.variance_s2 / rest_s**2)

    def share_within(self, limit_s: Floats) -> Floats:
        """The share of requests [N, K] whose first token comes within these times [N, K]."""
        rest_s = np.maximum(self.mean_s - self.least_s, 1e-12)
        left_s = limit_s - self.least_s[:, None]
        beyond = chance_above(left_s / rest_s[:, None], (self.variance_s2 / rest_s**2)[:, None])
        return np.where(left_s > 0.0, 1.0 - beyond, 0.0)


def first_tokens(
    engines: Engines, filled: Floats, varied: Variability, *, waits_for_places: bool = True
) -> FirstTokens:
    """Times at a share `filled` of the capacity [N]; without waits for places where there is one for every client."""
    filled = np.clip(filled, 1e-9, FULLEST)
    rate = filled * engines.capacity_per_s(varied.prompts)
    growth = np.clip(engines.places * engines.step_slope_s / engines.step_s, 0.0, 1.0 - 1e-6)
    decoding = filled * engines.places * (1.0 - growth) / (1.0 - filled * growth)
    fewer = engines.places - decoding
    pace_s = np.maximum(engines.pace_s - fewer * engines.pace_slope_s, 1e-12)
    step_s = np.maximum(engines.step_s - fewer * engines.step_slope_s, pace_s)
    room = engines.room + fewer * engines.sequence_room
    alone = _joining(engines, rate, decoding, room, pace_s, step_s, varied)
    least_s, front_s = pace_s + engines.later_s, engines.front_wait_s(rate, varied)
    later_s, later_s2 = engines.later_s + front_s, front_s**2
    if not waits_for_places:
        return FirstTokens(least_s, alone[0] + later_s, alone[1] + later_s2)
    present = decoding + rate * alone[0]
    wait_s, wait_s2 = _place_wait(engines, filled, rate, decoding, present, pace_s, step_s, varied)
    return FirstTokens(least_s, alone[0] + wait_s + later_s, alone[1] + wait_s2 + later_s2)


def _joining(
    engines: Engines,
    rate: Floats,
    decoding: Floats,
    room: Floats,
    pace_s: Floats,
    step_s: Floats,
    varied: Variability,
) -> tuple[Floats, Floats]:
    """Mean and variance of the time until a prompt's last step ends, where places are free."""
    pp, prompt_s, cv2 = engines.stages, engines.prompt_s, varied.prompts
    staged, come2 = pp > 1.0, varied.arrivals + varied.prompts
    inside, inside2 = capped_means(room, cv2), capped_squares(room, cv2)
    full_s = pace_s + prompt_s * room
    passed_s = prompt_s * inside  # of a pass; nothing where engines are fed none
    holding = np.divide(np.maximum(step_s - pace_s, 0.0), passed_s, out=np.zeros_like(passed_s), where=passed_s > 0.0)
    some = np.minimum(rate * step_s, room)
    spread = np.where(staged, holding * inside2, np.minimum(rate * step_s * come2, some * np.maximum(room - some, 0.0)))
    met_s = step_s + prompt_s**2 * spread / step_s
    busy = in_flight_share(decoding, pp)
    half_s = busy * met_s / 2.0
    wait_s = np.where(staged, WAITS, 1.0) * half_s

    used = np.minimum(rate * full_s / (room * pp), MOST_USED)
    left = come2 * work_left(used, room / come2)
    damped = left / (come2 * used / (2.0 * (1.0 - used)))
    left2 = left**2 + damped * used * (1.0 + cv2) ** 3 / (3.0 * (1.0 - used))
    ahead = rate * half_s
    whole, whole2 = left + ahead + 1.0, left2 + ahead * come2 + cv2
    whole_cv2 = whole2 / whole**2
    steps, several = (
        np.maximum(*both)
        for both in zip(_ceilings(whole, whole_cv2, room), _ceilings(np.ones_like(room), cv2, room), strict=True)
    )
    last = np.maximum(whole - (steps - 1.0) * room, 0.0)
    behind = compound_capped_means(ahead, cv2, np.maximum(room - last, 0.0))
    last_s = pace_s + prompt_s * (last + behind)
    longest_s = several * full_s + (1.0 - several) * np.minimum(last_s, full_s)
    passes_s = ((steps - 1.0) * full_s + last_s) / pp + (pp - 1.0) / pp * longest_s

    any_prompt = np.maximum(-np.expm1(-holding), 1e-12)
    ahead_share = np.clip(1.0 - (1.0 - any_prompt) * pace_s / step_s, 0.0, 1.0)
    differ_s = HELD * prompt_s * np.sqrt(np.maximum(inside2 - inside**2, 0.0))
    held_s = np.where(staged, ahead_share * differ_s, 0.0)

    prompts_s = np.maximum(step_s - (1.0 - any_prompt) * pace_s, 0.0) / any_prompt  # a step with prompts
    prompts_s2 = np.maximum((step_s * met_s - (1.0 - any_prompt) * pace_s**2) / any_prompt - prompts_s**2, 0.0)
    cubes = (1.0 - any_prompt) * pace_s**3 + any_prompt * (prompts_s**3 + 3.0 * prompts_s * prompts_s2)
    variance = np.maximum(np.where(staged, WAITS, 1.0) * busy * cubes / (3.0 * step_s) - wait_s**2, 0.0)
    in_step2 = np.maximum(
        whole**2 * (capped_squares(room / whole, whole_cv2) - capped_means(room / whole, whole_cv2) ** 2), 0.0
    )
    token_s = (pace_s / room + prompt_s) / pp
    variance = variance + prompt_s**2 * in_step2 + token_s**2 * np.maximum(whole2 - in_step2, 0.0)
    variance = variance + prompt_s**2 * (1.0 + cv2) * behind + np.where(staged, 1.5 * ahead_share * differ_s**2, 0.0)
    return wait_s + passes_s + held_s, variance


def _place_wait(
    engines: Engines,
    filled: Floats,
    rate: Floats,
    decoding: Floats,
    present: Floats,
    pace_s: Floats,
    step_s: Floats,
    varied: Variability,
) -> tuple[Floats, Floats]:
    """Mean and variance of the wait for a place."""
    inside, inside2 = capped_means(engines.room, varied.prompts), capped_squares(engines.room, varied.prompts)
    uneven = np.where(engines.stages > 1.0, inside2 / inside**2 - 1.0, varied.prompts)
    slowed = step_s / pace_s - 1.0
    steady = np.maximum(1.0 - decoding * engines.pace_slope_s / pace_s, LEAST_PACE)
    moved = varied.arrivals * (1.0 + slowed) ** 2 + slowed**2 * uneven + 1.0
    chance = chance_above(engines.places / present, moved / 2.0 / steady / present)
    chance = np.maximum(chance, erlang_c(np.minimum(present / engines.places, FULLEST), engines.places))
    prompts = 1.0 - engines.pace_s / engines.step_s  # of the time of a full batch
    work2 = varied.arrivals + prompts**2 * uneven + (1.0 - prompts) ** 2 * varied.answers
    waiting = work2 * filled / (2.0 * (1.0 - filled))
    wait_s = chance * waiting / rate
    return wait_s, np.where(chance > 0.0, (2.0 / np.maximum(chance, 1e-12) - 1.0) * wait_s**2, 0.0)


def _ceilings(mean: Floats, cv2: Floats | float, room: Floats) -> tuple[Floats, Floats]:
    """E ceil(X / room) of a lognormal X, and the chance that it is above 1 [N]."""
    steps = np.arange(1.0, MOST_STEPS)
    above = chance_above(steps * room[:, None] / mean[:, None], np.broadcast_to(cv2, mean.shape)[:, None])
    beyond = mean * (1.0 - capped_means(MOST_STEPS * room / mean, cv2)) / room
    return 1.0 + above.sum(axis=1) + beyond, above[:, 0]
