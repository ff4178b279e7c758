"""What a few own runs of a group are worth: times, widths and decisions on the rows that were not run.

    python benchmarks/own_runs.py ../shared/data/serving            # 1 to 3 runs, 5 draws of random ones
    python benchmarks/own_runs.py ../shared/data/serving --quick    # one draw, with the costs before any fit
    python benchmarks/own_runs.py ../shared/data/serving --fit      # the constants of planner/costs/rates/likeness.py

Rows are measured.csv and the open groups of measured_more.csv. Costs are four fits, each of three groups in four
(`serving_picks.py`), so that every group is unseen, and all that is believed is what the others tell: of a deployment
as `planner estimate` does with what `planner calibrate -o` wrote (`planner.estimate.own_runs`), of a decision as
`planner calibrate --propose` does (`planner.propose.decision`). With `--quick` the times are those of the costs before
any fit.

Times: mean error of TPOT, groups of ten rows or more weighing the same; intervals of 80 %: how many hold, and their
mean width (of logarithms) against that before any run, by what is believed near the runs (`near`; `layout` of any
load, as where none is stated), by where they say that the group lies (`group`), and by the mean
error of the runs in its place (`scaled`). Decisions:
rows of a group with equal mode and lengths, five or more, to take the one of most predicted output tokens/s/GPU whose
predicted TPOT keeps a limit at the quartiles of what was measured. Captured is the output of the choice over that of
the best, among rows that were not run, 0 where the limit breaks. Runs are those that raise the expected output of the
choice most, one after another, or drawn from all.
Rules: `estimate`, the most output of rows whose median keeps the limit; `as proposed`, the most expected output, which
`--propose` names; `expected`, the most output times the confidence that the limit keeps, of 60, 65, ... and 95 %, as
`solve` picks by default after own runs, and `expected any`, the same of any load, as where none is stated; `other
folds`, of these four the one that captures most in the groups of the other folds; `scaled`, the estimate, longer by the
mean error of the runs in place of the belief; `group`, by where they say that the group lies; `layout`, by those near
it in layout, of any load. The trivial answer is no run at all. Last, error, share held and width of what is believed of
a decision's rows that were not run, groups weighing the same.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from inputs import required
from likeness_fit import Errors, fit
from sealed_serving import LIKELY
from serving import Data
from serving_picks import Predicted, left_out

from planner.arrays import Bools, Floats, Indices
from planner.costs.rates.likeness import TPOT, TTFT, ErrorBelief, Likeness
from planner.costs.rates.spread import NORMAL_80, ErrorSpread, GroupBias, chance_within
from planner.estimate.case import Case
from planner.estimate.own_runs import lengths, places, seen_runs
from planner.estimate.places import layouts, loads
from planner.kinds.serve.expected import CONFIDENCES
from planner.propose.alternative import Alternative
from planner.propose.decision import Slo, make_choice, middle_of
from planner.solvers.stochastic.sequential_choice import BeliefState, expected_rewards, next_measurements

RUNS = (0, 1, 3)
SEEDS = 5
LEAST_ROWS = 5
MOST_ROWS = 40  # of a group that tell how errors go together
QUANTILES = (0.25, 0.5, 0.75)
TOLERANCE = 1.0001
EXACT = (1e-6, 1e-6)  # deviations of what a run tells of its own row
PICKS = ("estimate", "as proposed", "expected", "expected any")
SHIFTED = ("scaled", "group", "layout")
RULES = (*PICKS, *SHIFTED)
NESTED = "other folds"


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


def large(data: Data) -> list[Indices]:
    """The rows of each group that has LIKELY or more."""
    each = (np.flatnonzero(data.group == group) for group in range(len(data.names)))
    return [members for members in each if len(members) >= LIKELY]


def times(
    data: Data, told: Predicted, known: Known, likeness: dict[int, dict[str, Likeness]], seeds: int
) -> Iterator[tuple[int, str, Floats]]:
    """Runs, what makes the estimate, and error of TPOT, share that intervals hold, width: means of groups [3]."""
    groups = large(data)
    for count in RUNS:
        for name in ("near", "layout", "group", "scaled") if count else ("estimate",):
            table = []
            for number, members in enumerate(groups):
                own = likeness[int(told.fold[members[0]])]["tpot"]
                for seed in range(seeds if count else 1):
                    runs = np.random.default_rng((seed, number)).permutation(members)[:count]
                    if name in ("near", "layout"):
                        table.append(_near(data, own, known, members, runs, placed=name == "near"))
                    else:
                        table.append(_row(known, members, runs, name))
            yield count, name, np.mean(table, axis=0)


def _near(
    data: Data, likeness: Likeness, known: Known, members: Indices, runs: Indices, *, placed: bool
) -> tuple[float, float, float]:
    """Of one group after these runs, on its other rows: each takes what those near it tell, by its load if `placed`."""
    rest = np.setdiff1d(members, runs)
    told = _told(data.cases, known, likeness, runs, rest, placed=placed)
    off = known.error[rest] - told.mean
    return float(np.abs(np.expm1(-off)).mean()), float((np.abs(off) <= told.half).mean()), float(2.0 * told.half.mean())


def _told(
    cases: Sequence[Case], known: Known, likeness: Likeness, runs: Indices, rows: Indices, *, placed: bool
) -> ErrorBelief:
    """What runs tell of rows."""
    seen = seen_runs([cases[run] for run in runs], known.error[runs].tolist())
    of = [cases[row] for row in rows]
    load, layout = places(of, [case.decode for case in of])
    return likeness.told(seen, load if placed else np.full_like(load, np.nan), layout, lengths(of))


def _row(known: Known, members: Indices, runs: Indices, name: str) -> tuple[float, float, float]:
    """Of one group after these runs, on its other rows."""
    rest = np.setdiff1d(members, runs)
    error, low, high = known.error[rest], -known.low[rest], known.high[rest]
    if len(runs) == 0:
        shift, (below, above) = 0.0, known.spreads[members[0]].between
    else:
        bias = known.after(members, runs)
        shift = bias.mean if name == "group" else float(known.error[runs].mean())
        below = above = NORMAL_80 * bias.deviation
    down, up = np.hypot(low, below), np.hypot(high, above)
    held = (error - shift >= -down) & (error - shift <= up)
    wrong = np.abs(np.expm1(shift - error))
    return float(wrong.mean()), float(held.mean()), float((down + up).mean())


@dataclass(frozen=True, slots=True)
class Decision:
    """Rows of a group to choose from [M], and the limit on TPOT."""

    group: int
    fold: int
    members: Indices
    limit_s: float
    error: Floats  # of TPOT
    tpot_s: Floats  # measured
    ttft_s: Floats
    before: BeliefState
    likeness: Likeness  # of TPOT
    output: Floats
    cases: Sequence[Case]  # of all rows
    known: Known

    def choice(self, seen: list[int], rule: str) -> int:
        """The row to take of those not run by one of RULES; where none keeps the limit, the least predicted TPOT."""
        if rule.startswith("expected"):
            value = self.expected(seen, placed=rule == "expected")
        else:
            state = self.shifted(seen, rule) if rule in SHIFTED else self.after(seen)
            value = expected_rewards(state) if rule == "as proposed" else self.kept(state.x.mean_M)
        value[seen] = -np.inf
        return int(np.argmax(value))

    def kept(self, log_tpot: Floats) -> Floats:
        """Predicted output of rows that keep the limit by these times [M]; the faster the better of others."""
        tpot_s = np.exp(log_tpot)
        output = self.before.a_M / (np.exp(self.before.y.mean_M) + self.before.b_M * tpot_s)
        return np.where(tpot_s <= self.limit_s * TOLERANCE, output, -tpot_s)

    def expected(self, seen: list[int], *, placed: bool) -> Floats:
        """Predicted output times the confidence at which each row not run keeps the limit; of the estimate without."""
        x, runs = self.before.x, self.members[seen]
        told = self.likeness.belief(np.zeros_like(x.mean_M), x.variance_M, x.freedom)
        if seen:
            told = _told(self.cases, self.known, self.likeness, runs, self.members, placed=placed)
        rooms = zip(np.exp(self.before.limit_x - x.mean_M - told.mean).tolist(), told.half.tolist(), strict=True)
        chances = [chance_within(room, half, half, told.freedom) for room, half in rooms]
        sure = np.array([max((c for c in CONFIDENCES if c <= own), default=0.0) for own in chances])
        sure[seen] = 0.0
        output = self.kept(x.mean_M + told.mean)
        return output * sure if sure.any() else output

    def after(self, seen: list[int]) -> BeliefState:
        """What is believed after runs of these rows."""
        state = self.before
        for run in seen:
            state = state.after(run, float(np.log(self.tpot_s[run])), float(np.log(self.ttft_s[run])))
        return state

    def shifted(self, seen: list[int], rule: str) -> BeliefState:
        """What was believed before, times as much longer as runs tell by one of SHIFTED."""
        x, runs, shift = self.before.x, self.members[seen], np.zeros(len(self.members))
        if seen and rule == "scaled":
            shift += self.error[seen].mean()
        elif seen and rule == "group":
            shift += self.known.after(self.members, runs).mean
        elif seen:
            shift = _told(self.cases, self.known, self.likeness, runs, self.members, placed=False).mean
        return replace(self.before, x=replace(x, mean_M=x.mean_M + shift))

    def captured(self, chosen: int, seen: list[int]) -> float:
        """Output of the chosen row over that of the best that keeps the limit, of those not run; NaN without any."""
        kept = (self.tpot_s <= self.limit_s * TOLERANCE) & ~np.isin(np.arange(len(self.members)), seen)
        if not kept.any():
            return float("nan")
        return float(self.output[chosen] / self.output[kept].max()) if kept[chosen] else 0.0

    def believed(self, seen: list[int]) -> tuple[float, float, float]:
        """Of the rows not run after these: mean error of TPOT, share that intervals hold, their mean width."""
        state, rest = self.after(seen), np.setdiff1d(np.arange(len(self.members)), seen)
        low, high = (end[rest] for end in middle_of(state.x))
        measured, predicted = self.tpot_s[rest], np.exp(state.x.mean_M[rest])
        wrong, held = np.abs(predicted / measured - 1.0), (measured >= low) & (measured <= high)
        return float(wrong.mean()), float(held.mean()), float(np.log(high / low).mean())


Policy = Callable[[Decision, int], list[int]]
"""The runs of a decision, by a seed."""


def alike(data: Data) -> list[Indices]:
    """Rows of a group of equal mode and lengths, LEAST_ROWS or more."""
    members_of: dict[tuple[object, ...], list[int]] = {}
    for number, case in enumerate(data.cases):
        key = (data.group[number], case.prefill is None, case.isl, case.osl)
        members_of.setdefault(key, []).append(number)
    return [np.array(members) for members in members_of.values() if len(members) >= LEAST_ROWS]


def likeness_of(data: Data, told: Predicted, chosen: Bools) -> dict[str, Likeness]:
    """How errors of both times go together in the groups of the chosen rows [N]."""
    load_M, layout_MF = loads(data.cases), layouts(data.cases)
    rng, groups = np.random.default_rng(0), large(data)
    sets = [rng.permutation(members)[:MOST_ROWS] for members in groups if chosen[members[0]]]
    return {
        name: fit([Errors(error[each], load_M[each], layout_MF[each]) for each in sets], start)
        for name, error, start in (
            ("tpot", np.log(data.measured.tpot_s / told.tpot_s), TPOT),
            ("ttft", np.log(data.measured.ttft_s / told.ttft_s), TTFT),
        )
    }


def decisions(
    data: Data, told: Predicted, known: Known, likeness: dict[int, dict[str, Likeness]]
) -> Iterator[Decision]:
    """Every set of rows alike, with limits at the quartiles of what was measured; beliefs as other folds tell."""
    tpot, ttft = data.measured.tpot_s, data.measured.ttft_s
    for members in alike(data):
        own = likeness[int(told.fold[members[0]])]
        rows = [(data.cases[n], float(told.ttft_s[n]), float(told.tpot_s[n])) for n in members.tolist()]
        alternatives = [Alternative(case.id, case, *times) for case, *times in rows]
        yielded = zip(alternatives, ttft[members].tolist(), tpot[members].tolist(), strict=True)
        output = np.array([each.output_tokens_per_s_per_gpu(*measured) for each, *measured in yielded])
        for share in QUANTILES:
            limit = float(np.quantile(tpot[members], share))
            slo = Slo(limit * TOLERANCE)
            state = make_choice(alternatives, slo, tpot=own["tpot"], ttft=own["ttft"], noise=EXACT)
            yield Decision(
                int(data.group[members[0]]), int(told.fold[members[0]]), members, limit,
                known.error[members], tpot[members], ttft[members], state,
                own["tpot"], output, data.cases, known,
            )  # fmt: skip


def proposed(decision: Decision, seed: int) -> list[int]:
    """The runs that raise the expected output of the choice most, one after another; fewer where none raises it."""
    seen = list[int]()
    for _ in range(max(RUNS)):
        seen += next_measurements(decision.after(seen), 1, seed=0)
    return seen


def at_random(decision: Decision, seed: int) -> list[int]:
    """Rows drawn from all."""
    order: list[int] = np.random.default_rng((seed, len(decision.members))).permutation(len(decision.members)).tolist()
    return order[: max(RUNS)]


def captured(chosen: list[Decision], policy: Policy, seeds: int) -> dict[str, Floats]:
    """By rule, means over decisions after as many runs as RUNS has, and the share that breaks the limit [2, R]."""
    table: dict[str, list[list[float]]] = {rule: [] for rule in RULES}
    for decision, seed in ((decision, seed) for decision in chosen for seed in range(seeds)):
        runs = policy(decision, seed)
        for rule, rows in table.items():
            rows.append([decision.captured(decision.choice(runs[:k], rule), runs[:k]) for k in RUNS])
    every, means = {rule: np.array(rows) for rule, rows in table.items()}, {}
    every[NESTED] = _nested(every, np.repeat([decision.fold for decision in chosen], seeds))
    for rule, values in every.items():
        broken = np.where(np.isnan(values), np.nan, values == 0.0)
        means[rule] = np.stack([np.nanmean(values, axis=0), np.nanmean(broken, axis=0)])
    return means


def _nested(every: dict[str, Floats], fold: Indices) -> Floats:
    """What the rule captures in each fold that captures most of PICKS in the others."""
    values = np.empty_like(every[PICKS[0]])
    for number, runs in itertools.product(np.unique(fold), range(len(RUNS))):
        others = fold != number
        rule = max(PICKS, key=lambda pick: float(np.nanmean(every[pick][others, runs])))
        values[~others, runs] = every[rule][~others, runs]
    return values


def believed(chosen: list[Decision], policy: Policy, seeds: int) -> Floats:
    """Error, share held and width of rows that were not run, after as many runs as RUNS has [R, 3]: means of groups."""
    of_group: dict[int, list[list[tuple[float, float, float]]]] = {}
    for decision, seed in ((decision, seed) for decision in chosen for seed in range(seeds)):
        runs = policy(decision, seed)
        of_group.setdefault(decision.group, []).append([decision.believed(runs[:k]) for k in RUNS])
    return np.asarray(np.mean([np.mean(rows, axis=0) for rows in of_group.values()], axis=0))


def main() -> int:
    """Print the tables, or with --fit the constants of likeness."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=required)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fit", action="store_true")
    given = parser.parse_args()
    seeds = 1 if given.quick else SEEDS
    data = Data.read(given.folder, ("stated",))
    told = left_out(data, unfitted=given.quick)
    if given.fit:
        print(*likeness_of(data, told, np.ones(len(data.rows), dtype=np.bool_)).items(), sep="\n")
        return 0
    known = Known.of(data, told)
    base = 0.0
    print("runs  estimate   TPOT error   80 % intervals hold   width")
    likeness = {int(number): likeness_of(data, told, told.fold != number) for number in np.unique(told.fold)}
    for count, name, (wrong, held, width) in times(data, told, known, likeness, seeds):
        base = base or width
        print(f"{count:4d}  {name:9} {wrong:9.1%}   {held:12.0%}   {width / base:16.2f}")
    every = list(decisions(data, told, known, likeness))
    print(f"{len(every)} decisions; captured (choices that break the limit) after {', '.join(map(str, RUNS))} runs")
    ways: dict[str, tuple[Policy, int]] = {"proposed": (proposed, 1), "random": (at_random, seeds)}
    for title, way in ways.items():
        for rule, (shares, broken) in captured(every, *way).items():
            cells = "  ".join(f"{mean:5.3f} ({share:4.0%})" for mean, share in zip(shares, broken, strict=True))
            print(f"  {title} runs, {rule:12} {cells}", flush=True)
    print("of the rows of decisions that were not run: TPOT error, 80 % intervals hold, width and that over before")
    for title, way in ways.items():
        table = believed(every, *way)
        for count, (wrong, held, width) in zip(RUNS, table, strict=True):
            print(f"{count:4d}  {title:9} {wrong:9.1%}   {held:12.0%}   {width:11.3f} {width / table[0][2]:6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
