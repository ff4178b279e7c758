"""What a few own runs of a group are worth: times, widths and decisions on the rows that were not run.

    python benchmarks/own_runs.py ../shared/data/serving            # 1 to 3 runs, 5 draws of random ones
    python benchmarks/own_runs.py ../shared/data/serving --quick    # one draw, with the costs before any fit

Rows are measured.csv and the open groups of measured_more.csv. Costs are four fits, each of three groups in four
(`serving_picks.py`), so that every group is unseen: what lies between groups and within them is what the others tell.
With `--quick` the times are those of the costs before any fit, the widths those of the others. A run of a row tells its
measured TPOT, and `planner.costs.rates.spread.GroupBias` what that tells of the others.

Times: mean error of TPOT, groups of ten rows or more weighing the same; intervals of 80 %: how many hold, and their
mean width (of logarithms) against that before. Decisions: rows of a group with equal mode and lengths, five or more,
to take the one of most predicted output tokens/s/GPU whose predicted TPOT keeps a limit at the quartiles of what was
measured; runs within a group differ as in steady state. Captured is the output of the choice over that of the best,
among rows that were not run, 0 where the limit breaks. `proposed`: the runs that raise the expected output of the
choice most; `random`: drawn from all, the same beliefs; `scaled`: random, and the mean error of the runs in place of
the belief; `expected`: the row of most predicted output times the chance that it keeps the limit, of those with 60 % at
least, as `objective.expected` picks (`planner.kinds.serve.expected`). The trivial answer is no run at all.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from inputs import required
from sealed_serving import LIKELY
from serving import Data
from serving_picks import Predicted, left_out

from planner.arrays import Floats, Indices
from planner.costs.rates.spread import NORMAL_80, ErrorSpread, GroupBias
from planner.kinds.serve.expected import CONFIDENCES
from planner.solvers.stochastic.sequential_choice import Belief, BeliefState, chances, next_measurements

RUNS = (0, 1, 3)
SEEDS = 5
LEAST_ROWS = 5
QUANTILES = (0.25, 0.5, 0.75)
TOLERANCE = 1.0001
FIRST = 0.1  # deviation of the time to first token, which hardly enters outputs
EXACT = 1e-12  # variance of what a run tells of its own row


@dataclass(frozen=True, slots=True)
class Known:
    """What is believed of the TPOT of rows [N] before any run: how far groups lie apart, and runs within one."""

    spreads: list[ErrorSpread]  # of each row
    within: Floats
    low: Floats
    high: Floats
    error: Floats

    @classmethod
    def of(cls, data: Data, told: Predicted) -> "Known":
        within = ErrorSpread().within(-told.low, told.high)
        return cls(told.spreads, within, told.low, told.high, np.log(data.measured.tpot_s / told.tpot_s))

    def after(self, members: Indices, runs: Indices) -> GroupBias:
        """Of the group of these rows after some of them."""
        return GroupBias.unseen(self.spreads[members[0]].between).after(self.error[runs], self.within[runs])


def times(data: Data, known: Known, seeds: int) -> Iterator[tuple[int, str, Floats]]:
    """Runs, what makes the estimate, and error of TPOT, share that intervals hold, width: means of groups [3]."""
    each = [np.flatnonzero(data.group == group) for group in range(len(data.names))]
    groups = [members for members in each if len(members) >= LIKELY]
    for count in RUNS:
        for name in ("belief", "scaled") if count else ("estimate",):
            table = [
                _row(known, members, np.random.default_rng((seed, number)).permutation(members)[:count], name)
                for number, members in enumerate(groups)
                for seed in range(seeds if count else 1)
            ]
            yield count, name, np.mean(table, axis=0)


def _row(known: Known, members: Indices, runs: Indices, name: str) -> tuple[float, float, float]:
    """Of one group after these runs, on its other rows."""
    rest = np.setdiff1d(members, runs)
    error, low, high = known.error[rest], -known.low[rest], known.high[rest]
    if len(runs) == 0:
        shift, (below, above) = 0.0, known.spreads[members[0]].between
    else:
        bias = known.after(members, runs)
        shift = bias.mean if name == "belief" else float(known.error[runs].mean())
        below = above = NORMAL_80 * bias.deviation
    down, up = np.hypot(low, below), np.hypot(high, above)
    held = (error - shift >= -down) & (error - shift <= up)
    wrong = np.abs(np.expm1(shift - error))
    return float(wrong.mean()), float(held.mean()), float((down + up).mean())


@dataclass(frozen=True, slots=True)
class Decision:
    """Rows to choose from [M], and the limit on TPOT."""

    members: Indices
    limit_s: float
    known: Known
    tpot_s: Floats  # measured
    ttft_s: Floats
    before: BeliefState
    output: Floats

    def choice(self, seen: list[int], *, scaled: bool = False, expected: bool = False) -> int:
        """The row to take of those not run, as a solve picks: most predicted output, else the least predicted TPOT."""
        state = self.before
        if scaled and seen:
            shift = float(self.known.error[self.members[seen]].mean())
            state = replace(state, x=replace(state.x, mean_M=state.x.mean_M + shift))
        else:
            for run in seen:
                state = self.after(state, run)
        tpot_s = np.exp(state.x.mean_M)
        output = state.a_M / (np.exp(self.before.y.mean_M) + state.b_M * tpot_s)
        kept = tpot_s <= self.limit_s * TOLERANCE
        if expected:
            chance = chances(state)
            sure = (chance >= CONFIDENCES[0]) & ~np.isin(np.arange(len(tpot_s)), seen)
            kept, output = sure if sure.any() else kept, output * chance
        value = np.where(kept, output, -tpot_s)
        value[seen] = -np.inf
        return int(np.argmax(value))

    def after(self, state: BeliefState, run: int) -> BeliefState:
        """With what a run of a row tells."""
        return state.after(run, float(np.log(self.tpot_s[run])), float(np.log(self.ttft_s[run])))

    def captured(self, chosen: int, seen: list[int]) -> float:
        """Output of the chosen row over that of the best that keeps the limit, of those not run; NaN without any."""
        kept = (self.tpot_s <= self.limit_s * TOLERANCE) & ~np.isin(np.arange(len(self.members)), seen)
        if not kept.any():
            return float("nan")
        return float(self.output[chosen] / self.output[kept].max()) if kept[chosen] else 0.0


Pick = Callable[[Decision, list[int]], int]
"""The row to take of a decision after these runs."""


def decisions(data: Data, told: Predicted, known: Known) -> Iterator[Decision]:
    """Every group of rows of equal mode and lengths, with limits at the quartiles of what was measured."""
    members_of: dict[tuple[object, ...], list[int]] = {}
    for number, case in enumerate(data.cases):
        key = (data.group[number], case.prefill is None, case.isl, case.osl)
        members_of.setdefault(key, []).append(number)
    tpot, ttft = data.measured.tpot_s, data.measured.ttft_s
    for members in (np.array(each) for each in members_of.values() if len(each) >= LEAST_ROWS):
        steady = known.spreads[members[0]]
        within = (steady.high[0] - steady.low[0]) / 2.0 / NORMAL_80
        cases = [data.cases[number] for number in members]
        clients, osl, gpus = (
            np.array([getattr(c, n) for c in cases], dtype=np.float64) for n in ("clients", "osl", "gpus")
        )
        own = GroupBias.unseen(steady.between)
        alone = np.eye(len(members))
        x = Belief(np.log(told.tpot_s[members]), own.deviation**2 + within**2 * alone, EXACT)
        y = Belief(np.log(told.ttft_s[members]), FIRST**2 * alone, EXACT)
        output = clients * osl / gpus / (ttft[members] + (osl - 1.0) * tpot[members])
        for share in QUANTILES:
            limit = float(np.quantile(tpot[members], share))
            state = BeliefState(
                x, y, clients * osl / gpus, np.maximum(osl - 1.0, 1e-9), np.log(limit * TOLERANCE), None
            )
            yield Decision(members, limit, known, tpot[members], ttft[members], state, output)


def proposed(decision: Decision, seed: int) -> list[int]:
    """The runs that raise the expected output of the choice most, one after another; fewer where none raises it."""
    state, seen = decision.before, list[int]()
    for _ in range(max(RUNS)):
        following = next_measurements(state, 1, seed=0)
        if not following:
            break
        seen.append(following[0])
        state = decision.after(state, following[0])
    return seen


def at_random(decision: Decision, seed: int) -> list[int]:
    """Rows drawn from all."""
    order: list[int] = np.random.default_rng((seed, len(decision.members))).permutation(len(decision.members)).tolist()
    return order[: max(RUNS)]


def captured(chosen: list[Decision], policy: Callable[[Decision, int], list[int]], seeds: int, pick: Pick) -> Floats:
    """Means over decisions after as many runs as RUNS has [R], and the share of choices that break the limit [R]."""
    table = []
    for decision in chosen:
        for seed in range(seeds):
            runs = policy(decision, seed)
            table.append([decision.captured(pick(decision, runs[:k]), runs[:k]) for k in RUNS])
    values = np.array(table)
    return np.stack([np.nanmean(values, axis=0), np.nanmean(np.where(np.isnan(values), np.nan, values == 0.0), axis=0)])


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=required)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    seeds = 1 if given.quick else SEEDS
    data = Data.read(given.folder, ("stated",))
    told = left_out(data, unfitted=given.quick)
    known = Known.of(data, told)
    base = 0.0
    print("runs  estimate   TPOT error   80 % intervals hold   width")
    for count, name, (wrong, held, width) in times(data, known, seeds):
        base = base or width
        print(f"{count:4d}  {name:9} {wrong:9.1%}   {held:12.0%}   {width / base:16.2f}")
    every = list(decisions(data, told, known))
    print(f"{len(every)} decisions; captured (choices that break the limit) after {', '.join(map(str, RUNS))} runs")
    for name, policy, pick in (
        ("proposed runs", proposed, Decision.choice),
        ("proposed, expected", proposed, partial(Decision.choice, expected=True)),
        ("random runs", at_random, Decision.choice),
        ("random, scaled", at_random, partial(Decision.choice, scaled=True)),
        ("random, expected", at_random, partial(Decision.choice, expected=True)),
    ):
        means, broken = captured(every, policy, 1 if policy is proposed else seeds, pick)
        cells = "  ".join(f"{mean:5.3f} ({share:4.0%})" for mean, share in zip(means, broken, strict=True))
        print(f"  {name:18} {cells}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
