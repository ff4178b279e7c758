"""What picks under a limit capture where predictions err: by the estimate, and by what is expected.

    python benchmarks/serving_picks.py ../shared/data/serving             # four fits, each to three groups in four
    python benchmarks/serving_picks.py ../shared/data/serving --unfitted  # the costs before any fit: no fit at all

Decisions are those of the data's score.py (load, shape, pd, mode; its docstring), on measured.csv and the open groups
of measured_more.csv, on rows whose `precision` is not stated too: 390, 1,104, 63 and 24 with their limits. Every row is
predicted by a fit that has not seen its group (`serving.py --folds 4`), and the widths of its error are those that the
groups of that fit tell, within and between. A pick is scored by what was measured: its output over that of the best, 0
where it breaks the limit.

Rules: `estimate`, most predicted output among rows predicted to keep the limit, which is the trivial answer; `upper
end`, the same under the limit divided by the upper end of the 80 % interval; `expected`, most output times the chance
that the limit holds, among rows with at least that chance (`planner.kinds.serve.expected` begins at 60 %); `chosen`,
the rule that captures most in the decisions of the other folds. Where no row has the chance, all that keep the limit
compete, and where none does, the fastest is picked.
"""

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from inputs import required
from serving import Data, spreads_of

from planner.arrays import Floats, Indices
from planner.calibrate.deployments import predict
from planner.costs.rates.spread import ErrorSpread

FOLDS = 4
QUANTILES = (0.25, 0.5, 0.75)
TOLERANCE = 1.0001
DECISIONS = ("load", "shape", "pd", "mode")
LEAST = (0.5, 0.55, 0.6, 0.65, 0.7)
ALIKE = ("family", "system", "backend", "precision", "isl", "osl")
SHAPE = ("tp", "pp", "dp", "moe_tp", "moe_ep", "prefill_workers", "prefill_tp", "prefill_dp", "decode_workers",
         "decode_tp", "decode_dp")  # fmt: skip
BROKEN = 0.0

Rule = Callable[[Floats, Floats, Floats], Floats]
"""Values of rows [M] from output, room (limit over predicted time) and the chance that the limit holds."""


def estimate(output: Floats, room: Floats, chance: Floats) -> Floats:
    return np.where(room >= 1.0, output, -np.inf)


def at_least(least: float) -> Rule:
    """Output times chance, of rows with at least that chance; of all that keep the limit where none has."""

    def value(output: Floats, room: Floats, chance: Floats) -> Floats:
        sure = chance >= least
        return np.where(sure if sure.any() else room >= 1.0, output * chance, -np.inf)

    return value


def upper_end(output: Floats, room: Floats, chance: Floats) -> Floats:
    return np.where(chance >= 0.9, output, -np.inf)


RULES: dict[str, Rule] = {
    "estimate": estimate,
    "upper end": upper_end,
    **{f"expected, {least:.0%}": at_least(least) for least in LEAST},
}


@dataclass(frozen=True, slots=True)
class Predicted:
    """Left-out times of rows [N], the width of the error of each, and the fold of its group."""

    ttft_s: Floats
    tpot_s: Floats
    spreads: list[ErrorSpread]
    fold: Indices


def left_out(data: Data, *, unfitted: bool) -> Predicted:
    """Of every row by a fit, and widths, of the other groups; of the costs before any fit the widths alone are."""
    times, fold = np.zeros((2, len(data.rows))), data.group % FOLDS
    spread_of = {}
    for number in range(FOLDS):
        chosen = fold != number
        fitted = None if unfitted else data.fitted(chosen)
        told = predict(data.terms["stated"], data.start if fitted is None else fitted.parameters)
        times[:, ~chosen] = np.array([told.ttft_s, told.tpot_s])[:, ~chosen]
        spread_of[number] = spreads_of(data, fitted, chosen)["tpot"].elsewhere()
    return Predicted(times[0], times[1], [spread_of[int(number)] for number in fold], fold)


@dataclass(frozen=True, slots=True)
class Decision:
    """Rows to choose from, their measured and predicted output a GPU, and the limit on TPOT."""

    members: Indices
    limit_s: float
    tpot_s: Floats
    output: Floats
    predicted: Floats
    room: Floats
    chance: Floats
    fold: int

    def captured(self, rule: Rule) -> float:
        value = rule(self.predicted, self.room, self.chance)
        chosen = int(np.argmax(value)) if np.isfinite(value.max()) else int(np.argmax(self.room))
        kept = self.tpot_s <= self.limit_s * TOLERANCE
        return min(float(self.output[chosen] / self.output[kept].max()), 1.0) if kept[chosen] else BROKEN


def decisions(data: Data, told: Predicted, groups: list[Indices]) -> Iterator[Decision]:
    """Each group of rows with limits at the quartiles of what was measured."""
    clients, osl, gpus = (np.array([float(row[name]) for row in data.rows]) for name in ("concurrency", "osl", "gpus"))
    measured = data.measured
    output = clients * osl / (measured.ttft_s + measured.tpot_s * (osl - 1.0)) / gpus
    predicted = clients * osl / (told.ttft_s + told.tpot_s * (osl - 1.0)) / gpus
    for rows in groups:
        for share in QUANTILES:
            limit_s = float(np.quantile(measured.tpot_s[rows], share))
            room = limit_s / told.tpot_s[rows]
            chance = np.array([told.spreads[row].chance(float(part)) for row, part in zip(rows, room, strict=True)])
            yield Decision(
                rows, limit_s, measured.tpot_s[rows], output[rows], predicted[rows], room, chance,
                int(told.fold[rows[0]]),
            )  # fmt: skip


def groups_of(data: Data, name: str, chosen: Indices) -> list[Indices]:
    """The rows of every decision of score.py's of that name."""
    rows, grouped = data.rows, defaultdict[tuple[str, ...], list[int]](list)
    shape = ["/".join(row.get(part, "") for part in SHAPE) for row in rows]
    for number in chosen.tolist():
        row = rows[number]
        alike = tuple(row[part] for part in ALIKE)
        if name in ("load", "shape"):
            alike = (row["mode"], *alike)
        if name == "shape":
            alike = (*alike, row["concurrency"])
        if name != "pd" or row["mode"] == "disagg":
            grouped[alike].append(number)

    def counts(members: list[int]) -> bool:
        shapes = len({shape[number] for number in members})
        modes = len({rows[number]["mode"] for number in members})
        return {"load": len(members) >= 5, "shape": shapes >= 3, "pd": shapes >= 3}.get(
            name, modes == 2 and len(members) >= 5
        )

    return [np.array(members) for members in grouped.values() if counts(members)]


def show(data: Data, told: Predicted, title: str, chosen: Indices) -> None:
    """What each rule captures, and how many of its picks break the limit."""
    made = {name: list(decisions(data, told, groups_of(data, name, chosen))) for name in DECISIONS}
    table = {
        name: np.array([[decision.captured(rule) for rule in RULES.values()] for decision in every])
        for name, every in made.items()
    }
    counted = ", ".join(f"{name} {len(every)}" for name, every in made.items())
    print(f"{title}; captured, and picks that break the limit; decisions: {counted}")
    for number, rule in enumerate(RULES):
        print(_line(rule, {name: captured[:, number] for name, captured in table.items()}))
    print(_line("chosen by other folds", {name: _nested(made[name], captured) for name, captured in table.items()}))


def _nested(made: list[Decision], captured: Floats) -> Floats:
    """What the rule captures in each fold that captures most in the others."""
    fold = np.array([decision.fold for decision in made])
    values = np.zeros(len(made))
    for number in np.unique(fold):
        others = fold != number
        best = int(np.argmax(captured[others].mean(axis=0))) if others.any() else 0
        values[~others] = captured[~others, best]
    return values


def _line(title: str, captured: dict[str, Floats]) -> str:
    cells = (f"{name} {values.mean():.3f} ({(values == BROKEN).mean():3.0%})" for name, values in captured.items())
    return f"  {title:22} {'   '.join(cells)}"


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=required)
    parser.add_argument("--unfitted", action="store_true")
    given = parser.parse_args()
    data = Data.read(given.folder, ("stated",))
    told = left_out(data, unfitted=given.unfitted)
    with (given.folder / "measured.csv").open(newline="") as file:
        first = {row["id"] for row in csv.DictReader(file) if row["precision"]}
    scored = [number for number, row in enumerate(data.rows) if row["id"] in first]
    show(data, told, "as score.py: measured.csv", np.array(scored))
    show(data, told, "all open rows", np.arange(len(data.rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
