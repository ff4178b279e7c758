"""What picks of a load capture where any load may be picked, as `planner solve` may, and not measured ones alone.

    python benchmarks/serving_loads.py ../shared/data/serving             # four fits, each to three groups in four
    python benchmarks/serving_loads.py ../shared/data/serving --unfitted  # the costs before any fit: no fit at all

Between the loads at which a shape of a group was measured both of its times, measured and predicted, are interpolated
in their logarithms over that of the clients, at BETWEEN points: shapes with three loads at least, limits on TPOT at
five quantiles, and with each of them on TTFT at three, of what does not queue. Every row is predicted by a fit that has
not seen its group (`serving_picks.py`, whose rules these are). Beside what picks capture are the chance that they were
taken to hold with, and the share that did.

Where both times have a limit, a `chance` is that both hold (`planner.costs.rates.spread.all_hold`); `each with` asks so
much of each of them, as `solve` does.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from inputs import required
from serving import Data
from serving_picks import ALIKE, RULES, SHAPE, Decision, Predicted, prepared

from planner.arrays import Floats, Indices
from planner.costs.rates.spread import ErrorSpread, all_hold

BETWEEN = 8
QUANTILES = (0.2, 0.35, 0.5, 0.65, 0.8)
FIRST_QUANTILES = (0.35, 0.65, 0.9)
LEAST_LOADS = 3


def decisions(data: Data, told: Predicted, chosen: Indices, *, both: bool = False) -> Iterator[Decision]:
    """One a limit of each group of rows alike in all but shape and clients; with `both`, one a pair of limits."""
    alike = defaultdict[tuple[str, ...], dict[tuple[str, ...], dict[float, int]]](dict)
    for number in chosen.tolist():
        row = data.rows[number]
        if both and row["saturated"] == "1":
            continue
        shapes = alike[(row["mode"], *(row[part] for part in ALIKE))]
        shapes.setdefault(tuple(row.get(part, "") for part in SHAPE), {}).setdefault(float(row["concurrency"]), number)
    for shapes in alike.values():
        rows = [[loads[clients] for clients in sorted(loads)] for loads in shapes.values() if len(loads) >= LEAST_LOADS]
        if rows:
            yield from _of_group(data, told, rows, both=both)


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit on a time at loads [L]: measured times over it, it over the predicted ones, and the chance it holds."""

    limit_s: float
    used: Floats
    room: Floats
    chance: Floats


def _of_group(data: Data, told: Predicted, rows: list[list[int]], *, both: bool) -> Iterator[Decision]:
    tpot, ttft, output = np.concatenate([_along(data, told, numbers) for numbers in rows], axis=2)
    first = rows[0][0]
    on_tpot = _limits(tpot, told.spreads[first], QUANTILES)
    on_ttft = _limits(ttft, told.first_spreads[first], FIRST_QUANTILES)
    for limits in product(on_tpot, on_ttft) if both else zip(on_tpot, strict=True):
        decision = _decision(limits, output, int(told.fold[first]))
        if decision.kept.any():
            yield decision


def _limits(times: Floats, spread: ErrorSpread, quantiles: Sequence[float]) -> list[Limit]:
    """At quantiles of what was measured, of times measured and predicted [2, L]."""
    made = []
    for limit_s in np.quantile(times[0], quantiles).tolist():
        room = limit_s / times[1]
        made.append(Limit(limit_s, times[0] / limit_s, room, np.array([spread.chance(float(part)) for part in room])))
    return made


def _decision(limits: Sequence[Limit], output: Floats, fold: int) -> Decision:
    chance = np.array([all_hold(each) for each in zip(*(limit.chance.tolist() for limit in limits), strict=True)])
    used, room = np.max([limit.used for limit in limits], axis=0), np.min([limit.room for limit in limits], axis=0)
    least = np.min([limit.chance for limit in limits], axis=0)
    return Decision(np.arange(len(room)), limits[0].limit_s, used, output[0], output[1], room, chance, least, fold)


def _along(data: Data, told: Predicted, numbers: list[int]) -> Floats:
    """TPOT, TTFT and output a GPU of a shape at loads [L], measured and predicted [3, 2, L]."""
    first = data.rows[numbers[0]]
    osl, gpus = float(first["osl"]), float(first["gpus"])
    clients = np.log([float(data.rows[number]["concurrency"]) for number in numbers])
    parts = [np.linspace(low, high, BETWEEN, endpoint=False) for low, high in pairwise(clients)]
    loads = np.concatenate([*parts, clients[-1:]])

    def between(times_s: Floats) -> Floats:
        return np.asarray(np.exp(np.interp(loads, clients, np.log(times_s[numbers]))))

    told_of = []
    for times in (data.measured, told):
        tpot_s, ttft_s = between(times.tpot_s), between(times.ttft_s)
        told_of.append([tpot_s, ttft_s, np.exp(loads) * osl / (ttft_s + tpot_s * (osl - 1.0)) / gpus])
    return np.array(told_of).swapaxes(0, 1)


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
    for title, chosen in (("measured.csv", scored), ("all open rows", np.arange(len(data.rows)))):
        show(title, list(decisions(data, told, chosen)))
        show(f"{title}, limits on both times", list(decisions(data, told, chosen, both=True)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
