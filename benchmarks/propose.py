"""How few runs settle a decision: `planner calibrate --propose` replayed on a table of measured deployments.

A decision is one group of rows (mode, model family, system, engine, precision, lengths) with at least five of them: to
choose the deployment and load of most output tokens/s/GPU whose measured TPOT keeps a limit, for limits at the 25, 50
and 75 % quantiles of the group's measured TPOTs. Captured is the measured output of what is chosen over that of the
best, 0 where it breaks the limit. A run of a row tells its measured times. The constants of likeness are fitted on the
other model families.

    python benchmarks/propose.py [TABLE] [--predictions FILE.jsonl] [--only naive,random,...] [--by-family]
"""

import argparse
import csv
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from inputs import SHARED, required
from likeness_fit import Errors, fit
from recipe_columns import filled

from planner.costs.rates.likeness import TPOT, TTFT, Likeness
from planner.costs.rates.pricer import open_store, profile_paths
from planner.estimate.case import Case
from planner.estimate.evaluate import Estimate, evaluate
from planner.estimate.measured import cases_of_rows
from planner.estimate.places import layouts, loads
from planner.propose.alternative import Alternative, Result
from planner.propose.decision import Slo, make_choice, with_results
from planner.solvers.stochastic.sequential_choice import (
    BeliefState,
    best,
    expected_rewards,
    next_measurements,
)

MEASURED = SHARED / "serving" / "measured.csv"
KEY = ("mode", "family", "system", "backend", "precision", "isl", "osl")
TIMES = ("ttft_s", "tpot_s")
QUANTILES = (0.25, 0.5, 0.75)
LEAST_ROWS = 5
RUNS = 3
TOLERANCE = 1.0001  # of the limit, as the table's own score has it
EXACT = (1e-6, 1e-6)  # noise: what a run tells is what the choice is judged by
Row = dict[str, str]
Constants = tuple[Likeness, Likeness]  # of TPOT and TTFT


@dataclass(frozen=True)
class Group:
    """The alternatives of one decision and what was measured of each: seconds, and output tokens/s/GPU."""

    family: str
    alternatives: list[Alternative]
    results: list[Result]
    outputs: list[float]

    def limits_s(self) -> list[float]:
        """The limits on TPOT that are tried."""
        return [float(np.quantile([result.tpot_s for result in self.results], share)) for share in QUANTILES]

    def captured(self, index: int, limit_s: float) -> float:
        """The output of alternative `index` over that of the best that keeps the limit."""
        kept = [result.tpot_s <= limit_s * TOLERANCE for result in self.results]
        most = max(output for output, keeps in zip(self.outputs, kept, strict=True) if keeps)
        return self.outputs[index] / most if kept[index] else 0.0

    def errors(self, metric: str) -> Errors:
        """Log of measured over predicted `tpot` or `ttft`."""
        pairs = zip(self.results, self.alternatives, strict=True)
        error_M = np.array([math.log(getattr(r, f"{metric}_s") / getattr(a, f"{metric}_s")) for r, a in pairs])
        cases = [alternative.case for alternative in self.alternatives]
        return Errors(error_M, loads(cases), layouts(cases))


Policy = Callable[[Group, float, Constants], list[int]]  # what is chosen after 0, 1, ... runs


def read_groups(table: Path, predictions: Path | None) -> list[Group]:
    """The decisions of the table whose rows are predicted."""
    with table.open(newline="") as file:
        rows = {row["id"]: filled(row, inferred=True) for row in csv.DictReader(file)}
    cases = {case.id: case for case in cases_of_rows(rows.values()) if isinstance(case, Case)}
    times = read_predictions(predictions) if predictions is not None else predict(list(cases.values()))
    members: dict[tuple[str, ...], list[str]] = {}
    for name, row in rows.items():
        if name in times and name in cases and all(row[column] for column in KEY):
            members.setdefault(tuple(row[column] for column in KEY), []).append(name)
    return [
        Group(
            family=key[1],
            alternatives=[Alternative(name, cases[name], **times[name]) for name in names],
            results=[
                Result(name, *(float(rows[name][f"{metric}_ms"]) / 1e3 for metric in ("ttft", "tpot")))
                for name in names
            ],
            outputs=[output_tokens_per_s_per_gpu(rows[name]) for name in names],
        )
        for key, names in sorted(members.items())
        if len(names) >= LEAST_ROWS
    ]


def measured(row: Row) -> Result:
    """The times that a run of the row tells."""
    return Result(row["id"], float(row["ttft_ms"]) / 1e3, float(row["tpot_ms"]) / 1e3)


def output_tokens_per_s_per_gpu(row: Row) -> float:
    """Measured output by Little's law, on the table's nominal lengths."""
    clients, osl, ttft, tpot, gpus = (float(row[name]) for name in ("concurrency", "osl", "ttft_ms", "tpot_ms", "gpus"))
    return clients * osl / (ttft + tpot * (osl - 1.0)) * 1e3 / gpus


def read_predictions(path: Path) -> dict[str, dict[str, Any]]:
    """Times by row of what `planner estimate` wrote."""
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return {
        line["id"]: {name: line["prediction"].get(name) for name in TIMES} for line in lines if "prediction" in line
    }


def predict(cases: Sequence[Case]) -> dict[str, dict[str, Any]]:
    """Times by row as `planner estimate` predicts them now."""
    predictions = zip(cases, evaluate(cases, open_store(profile_paths(()))), strict=True)
    return {
        case.id: {name: getattr(estimate, name, None) for name in TIMES}
        for case, estimate in predictions
        if isinstance(estimate, Estimate)
    }


def _next_run(choice: BeliefState) -> int | None:
    chosen = next_measurements(choice, 1, seed=0)
    return chosen[0] if chosen else None


def by_gain(group: Group, limit_s: float, constants: Constants) -> list[int]:
    """Each run is the one that raises the expected output of the choice most."""
    return _settled(group, limit_s, constants, _next_run)


def run_the_best(group: Group, limit_s: float, constants: Constants) -> list[int]:
    """Each run is the alternative that would be chosen, if it was not run yet."""

    def following(choice: BeliefState) -> int | None:
        left = [m for m in range(len(choice.a_M)) if m not in choice.seen]
        return max(left, key=lambda m: expected_rewards(choice)[m]) if left else None

    return _settled(group, limit_s, constants, following)


def at_random(group: Group, limit_s: float, constants: Constants, seed: int = 0) -> list[int]:
    """Runs drawn from all, and the same beliefs."""
    order = np.random.default_rng(seed).permutation(len(group.results)).tolist()
    return _settled(group, limit_s, constants, lambda choice: next((m for m in order if m not in choice.seen), None))


def _before(group: Group, limit_s: float, constants: Constants) -> BeliefState:
    """The choice before any run."""
    slo = Slo(limit_s * TOLERANCE)
    return make_choice(group.alternatives, slo, tpot=constants[0], ttft=constants[1], noise=EXACT)


def _settled(
    group: Group, limit_s: float, constants: Constants, following: Callable[[BeliefState], int | None]
) -> list[int]:
    choice = _before(group, limit_s, constants)
    chosen = [best(choice)]
    for _ in range(RUNS):
        index = following(choice)
        if index is not None:
            choice = with_results(choice, group.alternatives, [group.results[index]])
        chosen.append(best(choice))
    return chosen


def naive(group: Group, limit_s: float, constants: Constants) -> list[int]:
    """Run what is predicted best, rescale all predictions by the mean log error so far, repeat."""
    return _naive(group, limit_s, RUNS)


def _naive(group: Group, limit_s: float, runs: int) -> list[int]:
    seen: list[int] = []
    chosen = []
    for _ in range(runs + 1):
        scale = {name: _scale(group, seen, name) for name in ("ttft_s", "tpot_s")}
        times = [
            (
                result
                if m in seen
                else _Scaled(alternative.ttft_s * scale["ttft_s"], alternative.tpot_s * scale["tpot_s"])
            )
            for m, (alternative, result) in enumerate(zip(group.alternatives, group.results, strict=True))
        ]
        keeping = [m for m, time in enumerate(times) if time.tpot_s <= limit_s]
        outputs = [
            alternative.output_tokens_per_s_per_gpu(time.ttft_s, time.tpot_s)
            for alternative, time in zip(group.alternatives, times, strict=True)
        ]
        fastest = min(range(len(times)), key=lambda m: times[m].tpot_s)
        pick = max(keeping, key=lambda m: outputs[m], default=fastest)
        chosen.append(pick)
        seen += [pick] if pick not in seen else []
    return chosen


@dataclass(frozen=True)
class _Scaled:
    ttft_s: float
    tpot_s: float


def _scale(group: Group, seen: Sequence[int], name: str) -> float:
    errors = [math.log(getattr(group.results[m], name) / getattr(group.alternatives[m], name)) for m in seen]
    return math.exp(statistics.fmean(errors)) if errors else 1.0


def as_predicted(group: Group, limit_s: float, constants: Constants) -> list[int]:
    """What the predictions alone choose, as if they were exact; runs change nothing."""
    return _naive(group, limit_s, 0) * (RUNS + 1)


def all_at_once(group: Group, limit_s: float, constants: Constants) -> list[int]:
    """All runs decided on before any is made, as `--propose 3` does without results."""
    choice = _before(group, limit_s, constants)
    chosen = [best(choice)]
    for index in next_measurements(choice, RUNS, seed=0):
        choice = with_results(choice, group.alternatives, [group.results[index]])
        chosen.append(best(choice))
    return chosen


POLICIES: dict[str, Policy] = {
    "predictions": as_predicted,
    "naive": naive,
    "random": at_random,
    "best": run_the_best,
    "gain": by_gain,
    "together": all_at_once,
}
PUBLISHED = "(predictions of AIConfigurator 0.12: 0.53, rescaled after 3 runs 0.85; 3 random runs 0.73)"
SAYS = {
    "predictions": "predictions as they are",
    "naive": "run the predicted best, rescale, repeat",
    "random": "random runs, our beliefs",
    "best": "run what would be chosen, our beliefs",
    "gain": "--propose 1, after each result again",
    "together": "--propose 3, all at once",
}


def fitted(groups: Sequence[Group]) -> Constants:
    """The constants of likeness of these groups."""
    tpot = fit([group.errors("tpot") for group in groups], TPOT)
    return tpot, fit([group.errors("ttft") for group in groups], TTFT)


def replay(groups: Sequence[Group], policy: Policy, constants: dict[str, Constants]) -> list[list[float]]:
    """Captured after 0, 1, ... runs, one list a decision."""
    return [
        [group.captured(index, limit_s) for index in policy(group, limit_s, constants[group.family])]
        for group in groups
        for limit_s in group.limits_s()
    ]


def line(name: str, captured: Iterable[Sequence[float]]) -> str:
    """Captured after 0, 1, ... runs, and behind each the share of choices that break the limit."""
    table = np.array(list(captured))
    cells = [f"{mean:6.3f} ({share:4.0%})" for mean, share in zip(table.mean(0), (table == 0.0).mean(0), strict=True)]
    return f"  {name:40s} {'  '.join(cells)}   n {len(table)}"


def main() -> int:
    """Print what each way of choosing runs captures; 2 where the table is absent."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("table", nargs="?", type=Path, default=MEASURED)
    parser.add_argument("--predictions", type=Path, help="JSON lines of `planner estimate`")
    parser.add_argument("--only", default=",".join(POLICIES), help=f"of {', '.join(POLICIES)}")
    parser.add_argument("--by-family", action="store_true")
    given = parser.parse_args()
    groups = read_groups(required(given.table), given.predictions)
    families = sorted({group.family for group in groups})
    constants = {family: fitted([group for group in groups if group.family != family]) for family in families}
    print(
        f"{len(groups)} groups, {len(groups) * len(QUANTILES)} decisions; constants fitted without the family replayed"
    )
    print("captured (choices that break the limit) after 0, 1, ... runs")
    print(f"  {PUBLISHED}")
    for name in given.only.split(","):
        captured = replay(groups, POLICIES[name], constants)
        print(line(SAYS[name], captured), flush=True)
        if given.by_family:
            for family in families:
                own = [family == group.family for group in groups for _ in QUANTILES]
                print(line(f"    {family}", (c for c, keep in zip(captured, own, strict=True) if keep)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
