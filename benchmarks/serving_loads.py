"""What picks of a load capture where any load may be picked, as `planner solve` may, and not measured ones alone.

    python benchmarks/serving_loads.py ../shared/data/serving             # four fits, each to three groups in four
    python benchmarks/serving_loads.py ../shared/data/serving --unfitted  # the costs before any fit: no fit at all

Between the loads at which a shape of a group was measured both of its times, measured and predicted, are interpolated
in their logarithms over that of the clients, at BETWEEN points: shapes with three loads at least, limits on TPOT at
five quantiles. Every row is predicted by a fit that has not seen its group (`serving_picks.py`, whose rules these are).
Beside what picks capture are the chance that they were taken to hold with, and the share that did.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from inputs import required
from serving import Data
from serving_picks import ALIKE, RULES, SHAPE, Decision, Predicted, prepared

from planner.arrays import Floats, Indices

BETWEEN = 8
QUANTILES = (0.2, 0.35, 0.5, 0.65, 0.8)
LEAST_LOADS = 3


def decisions(data: Data, told: Predicted, chosen: Indices) -> Iterator[Decision]:
    """One a limit of each group of rows alike in all but shape and clients."""
    alike = defaultdict[tuple[str, ...], dict[tuple[str, ...], dict[float, int]]](dict)
    for number in chosen.tolist():
        row = data.rows[number]
        shapes = alike[(row["mode"], *(row[part] for part in ALIKE))]
        shapes.setdefault(tuple(row.get(part, "") for part in SHAPE), {}).setdefault(float(row["concurrency"]), number)
    for shapes in alike.values():
        rows = [[loads[clients] for clients in sorted(loads)] for loads in shapes.values() if len(loads) >= LEAST_LOADS]
        if rows:
            yield from _of_group(data, told, rows)


def _of_group(data: Data, told: Predicted, rows: list[list[int]]) -> Iterator[Decision]:
    tpot_s, output, predicted_s, predicted = np.hstack([_along(data, told, numbers) for numbers in rows])
    spread, fold = told.spreads[rows[0][0]], int(told.fold[rows[0][0]])
    for limit_s in np.quantile(tpot_s, QUANTILES).tolist():
        room = limit_s / predicted_s
        chance = np.array([spread.chance(float(part)) for part in room])
        yield Decision(np.arange(len(room)), limit_s, tpot_s, output, predicted, room, chance, fold)


def _along(data: Data, told: Predicted, numbers: list[int]) -> Floats:
    """TPOT and output a GPU of a shape at loads [L], measured, then predicted [4, L]."""
    first = data.rows[numbers[0]]
    osl, gpus = float(first["osl"]), float(first["gpus"])
    clients = np.log([float(data.rows[number]["concurrency"]) for number in numbers])
    parts = [np.linspace(low, high, BETWEEN, endpoint=False) for low, high in pairwise(clients)]
    loads = np.concatenate([*parts, clients[-1:]])

    def between(times_s: Floats) -> Floats:
        return np.asarray(np.exp(np.interp(loads, clients, np.log(times_s[numbers]))))

    told_of = []
    for times in (data.measured, told):
        tpot_s = between(times.tpot_s)
        told_of += [tpot_s, np.exp(loads) * osl / (between(times.ttft_s) + tpot_s * (osl - 1.0)) / gpus]
    return np.array(told_of)


def show(title: str, made: list[Decision]) -> None:
    print(
        f"{title}: {len(made)} decisions; captured (picks that break the limit), chance of the picks, share that held"
    )
    for name, rule in RULES.items():
        picks = [each.pick(rule) for each in made]
        captured = np.array([each.captured(rule) for each in made])
        chance = np.mean([each.chance[pick] for each, pick in zip(made, picks, strict=True)])
        held = np.mean([each.kept[pick] for each, pick in zip(made, picks, strict=True)])
        print(f"  {name:18} {captured.mean():.3f} ({1.0 - held:3.0%})   {chance:.2f} {held:.2f}")


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=required)
    parser.add_argument("--unfitted", action="store_true")
    given = parser.parse_args()
    data, told, scored = prepared(given.folder, unfitted=given.unfitted)
    show("measured.csv", list(decisions(data, told, scored)))
    show("all open rows", list(decisions(data, told, np.arange(len(data.rows)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
