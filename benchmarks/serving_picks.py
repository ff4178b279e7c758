"""What picks under a limit capture where predictions err: by the estimate, and by what is expected.

    python benchmarks/serving_picks.py ../shared/data/serving             # four fits, each to three groups in four
    python benchmarks/serving_picks.py ../shared/data/serving --unfitted  # the costs before any fit: no fit at all
    python benchmarks/serving_picks.py ../shared/data/serving --lost pd   # and which picks lose what, and to what

Decisions are those of the data's score.py (load, shape, pd, mode; its docstring), on measured.csv and the open groups
of measured_more.csv, on rows whose `precision` is not stated too: 390, 1,104, 63 and 24 with their limits. Every row is
predicted by a fit that has not seen its group (`serving.py --folds 4`), and the widths of its error are those that the
groups of that fit tell, within and between. A pick is scored by what was measured: its output over that of the best, 0
where it breaks the limit.

Rules: `estimate`, most predicted output among rows predicted to keep the limit, which is the trivial answer; `upper
end`, the same under the limit divided by the upper end of the 80 % interval; `most with`, most output among rows that
keep the limit with at least that chance, as `slo.confidence` asks for it (`planner.kinds.serve.by_default`: with 70 %);
`expected`, most output times the chance that the limit holds, among rows with at least that chance
(`planner.kinds.serve.expected` begins at 60 %); `by other folds`, the confidence, or the rule, that captures most in
the decisions of the other folds. Where no row has the chance, all that keep the limit compete, and where none does, the
fastest is picked.

`--lost` adds what the rules would capture were one thing known: the measured times to first token, those per output
token, or the median error of all rows of a group, of a shape of decoding (tensor parallel, attention data parallel over
up to BOARD ranks, over more) or of both; and every pick of that decision, rule of 60 %, beside the best row. Measured
times to first token come alone, and with the batches that they leave decoding. Errors by shape of decoding are of the
predictions, and of those with these batches.
"""

import argparse
import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from inputs import required
from recipe_columns import Columns
from serving import Data, spreads_of
from serving_fit import features

from planner.arrays import Bools, Floats, Indices
from planner.calibrate.deployments import paced, predict
from planner.costs.rates.collectives import BOARD
from planner.costs.rates.spread import ErrorSpread

FOLDS = 4
SETTLING = 20  # rounds, of which each takes most of what is left away
QUANTILES = (0.25, 0.5, 0.75)
TOLERANCE = 1.0001
DECISIONS = ("load", "shape", "pd", "mode")
LEAST = (0.5, 0.55, 0.6, 0.65, 0.7)
CONFIDENCES = (0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.9)
ALIKE = ("family", "system", "backend", "precision", "isl", "osl")
SHAPE = ("tp", "pp", "dp", "moe_tp", "moe_ep", "prefill_workers", "prefill_tp", "prefill_dp", "decode_workers",
         "decode_tp", "decode_dp")  # fmt: skip
BROKEN = 0.0

Rule = Callable[[Floats, Floats, Floats, Floats], Floats]
"""Values of rows [M] from output, room (limit over predicted time), the chance that limits hold, and that each does."""


def estimate(output: Floats, room: Floats, chance: Floats, least: Floats) -> Floats:
    return np.where(room >= 1.0, output, -np.inf)


def at_least(wanted: float) -> Rule:
    """Output times chance, of rows with at least that chance; of all that keep the limit where none has."""

    def value(output: Floats, room: Floats, chance: Floats, least: Floats) -> Floats:
        sure = chance >= wanted
        return np.where(sure if sure.any() else room >= 1.0, output * chance, -np.inf)

    return value


def most_with(wanted: float) -> Rule:
    """Output, of rows that keep each limit with at least that chance; of all that keep them where none does."""

    def value(output: Floats, room: Floats, chance: Floats, least: Floats) -> Floats:
        sure = least >= wanted
        return np.where(sure if sure.any() else room >= 1.0, output, -np.inf)

    return value


def upper_end(output: Floats, room: Floats, chance: Floats, least: Floats) -> Floats:
    return np.where(least >= 0.9, output, -np.inf)


RULES: dict[str, Rule] = {
    "estimate": estimate,
    "upper end": upper_end,
    **{f"most with {least:.0%}": most_with(least) for least in CONFIDENCES},
    **{f"expected, {least:.0%}": at_least(least) for least in LEAST},
}


@dataclass(frozen=True, slots=True)
class Predicted:
    """Left-out times of rows [N], the widths of errors of each (TPOT, TTFT), and the fold of its group."""

    ttft_s: Floats
    tpot_s: Floats
    spreads: list[ErrorSpread]
    first_spreads: list[ErrorSpread]
    fold: Indices
    low: Floats  # logarithms of the bounds within groups over the estimates of TPOT
    high: Floats
    base_s: Floats  # of a decoding step,
    slope_s: Floats  # and more for each sequence of a rank


def prepared(folder: Path, *, unfitted: bool) -> tuple[Data, Predicted, Indices]:
    """The rows of the tables, what is predicted of them, and which of them the data's score.py decides among."""
    data = Data.read(folder, ("stated",))
    with (folder / "measured.csv").open(newline="") as file:
        decided = {row["id"] for row in csv.DictReader(file) if row["precision"]}
    scored = np.array([number for number, row in enumerate(data.rows) if row["id"] in decided])
    return data, left_out(data, unfitted=unfitted), scored


def left_out(data: Data, *, unfitted: bool) -> Predicted:
    """Of every row by a fit, and widths, of the other groups; of the costs before any fit the widths alone are."""
    terms, fold = data.terms["stated"], data.group % FOLDS
    times, within, steps = np.zeros((3, 2, len(data.rows)))
    spreads_by_fold = {}
    for number in range(FOLDS):
        chosen = fold != number
        fitted = None if unfitted else data.fitted(chosen)
        parameters = data.start if fitted is None else fitted.parameters
        told = predict(terms, parameters)
        spreads = spreads_of(data, fitted, chosen)
        spread = spreads["tpot"]
        bounds = spread.bounds(told.tpot_s, features(terms, parameters, told))
        times[:, ~chosen] = np.array([told.ttft_s, told.tpot_s])[:, ~chosen]
        pace, _ = paced(terms, parameters)
        steps[:, ~chosen] = np.array([pace.base_s, pace.slope_s])[:, ~chosen]
        within[:, ~chosen] = np.log(np.array(bounds) / told.tpot_s)[:, ~chosen]
        spreads_by_fold[number] = {name: spread.elsewhere() for name, spread in spreads.items()}
    tpot, ttft = ([spreads_by_fold[int(number)][name] for number in fold] for name in ("tpot", "ttft"))
    return Predicted(times[0], times[1], tpot, ttft, fold, within[0], within[1], steps[0], steps[1])


@dataclass(frozen=True, slots=True)
class Decision:
    """Rows to choose from, their measured and predicted output a GPU, the limit on TPOT, and how near it each is.

    Where TTFT has a limit too, `used` and `room` are of the one that is nearer, and `chance` is that both hold.
    """

    members: Indices
    limit_s: float
    used: Floats  # measured time over limit
    output: Floats
    predicted: Floats
    room: Floats
    chance: Floats
    least: Floats  # of the chances of each limit
    fold: int

    @property
    def kept(self) -> Bools:
        """Rows that keep the limit as measured."""
        return self.used <= TOLERANCE

    def pick(self, rule: Rule) -> int:
        value = rule(self.predicted, self.room, self.chance, self.least)
        return int(np.argmax(value)) if np.isfinite(value.max()) else int(np.argmax(self.room))

    def captured(self, rule: Rule) -> float:
        chosen = self.pick(rule)
        return min(float(self.output[chosen] / self.output[self.kept].max()), 1.0) if self.kept[chosen] else BROKEN


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
                rows, limit_s, measured.tpot_s[rows] / limit_s, output[rows], predicted[rows], room, chance, chance,
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
    every_kind = {name: list(decisions(data, told, groups_of(data, name, chosen))) for name in DECISIONS}
    made = {name: every for name, every in every_kind.items() if every}
    table = {
        name: np.array([[decision.captured(rule) for rule in RULES.values()] for decision in every])
        for name, every in made.items()
    }
    counted = ", ".join(f"{name} {len(every)}" for name, every in made.items())
    print(f"{title}; captured, and picks that break the limit; decisions: {counted}")
    for number, rule in enumerate(RULES):
        print(_line(rule, {name: captured[:, number] for name, captured in table.items()}))
    for title, start in (("confidence", "most with"), ("rule", "")):
        columns = [number for number, rule in enumerate(RULES) if rule.startswith(start)]
        nested = {name: _nested(made[name], captured[:, columns]) for name, captured in table.items()}
        print(_line(f"{title} by other folds", nested))


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
    return f"  {title:25} {'   '.join(cells)}"


def decoding(data: Data) -> list[str]:
    """How each row decodes: by instances that prefill too, tensor parallel, by few or by many attention ranks."""

    def shape(row: Columns) -> str:
        ranks = float(row["decode_dp"] or 1)
        return "tensor" if ranks == 1 else f"up to {BOARD} ranks" if ranks <= BOARD else "more ranks"

    return [shape(row) if row["mode"] == "disagg" else "colocated" for row in data.rows]


def left_decoding(data: Data, told: Predicted) -> Predicted:
    """The predictions with measured times to first token, and steps of the batches that these leave decoding.

    Of C clients on R ranks, C / R d / (t + d) decode at once, t the time to first token and d that of all others
    (Little's law). Colocated rows stay as they are.
    """
    frame = data.terms["stated"].frame

    def step_s(ttft_s: Floats) -> Floats:
        """Of the batch beside such times to first token [N], where both settle."""
        tpot_s = told.tpot_s
        for _ in range(SETTLING):
            share = 1.0 - ttft_s / (ttft_s + tpot_s * (frame.osl - 1.0))
            batch = np.minimum(frame.clients / frame.decode_ranks * share, frame.most_decoding)
            tpot_s = told.base_s + told.slope_s * batch
        return tpot_s

    apart = frame.disaggregated > 0
    shorter = np.where(apart, step_s(data.measured.ttft_s) / step_s(told.ttft_s), 1.0)
    return replace(told, ttft_s=data.measured.ttft_s, tpot_s=told.tpot_s * shorter)


def known(data: Data, told: Predicted) -> Iterator[tuple[str, Predicted]]:
    """The predictions with one thing that was measured in place of what was predicted."""
    error, shape = np.log(data.measured.tpot_s / told.tpot_s), decoding(data)
    yield "as predicted", told
    yield "measured TTFT", replace(told, ttft_s=data.measured.ttft_s)
    yield "and the batches it leaves", left_decoding(data, told)
    yield "measured TPOT", replace(told, tpot_s=data.measured.tpot_s)
    for title, keys in (
        ("median TPOT error of groups", [f"{number}" for number in data.group]),
        ("of shapes of decoding", shape),
        ("of both", [f"{number} {own}" for number, own in zip(data.group, shape, strict=True)]),
    ):
        each = np.unique(keys, return_inverse=True)[1]
        medians = np.array([np.median(error[each == number]) for number in range(each.max() + 1)])
        yield title, replace(told, tpot_s=told.tpot_s * np.exp(medians[each]))


def _errors(data: Data, told: Predicted, chosen: Bools) -> str:
    """Quartiles of the signed error of the chosen rows' time per output token, in percent."""
    error = np.log(data.measured.tpot_s / told.tpot_s)[chosen]
    low, middle, high = 100.0 * np.expm1(np.quantile(error, QUANTILES))
    return f"{middle:+5.1f} % ({low:+.0f} to {high:+.0f}; {len(error)} rows)"


def lost(data: Data, told: Predicted, name: str, chosen: Indices) -> None:
    """What is captured of a decision were one thing known, errors by shape of decoding, and every pick."""
    groups, sure = groups_of(data, name, chosen), f"expected, {LEAST[2]:.0%}"
    print(f"{name}: captured by the estimate, and {sure}, with one thing known")
    for title, other in known(data, told):
        made = list(decisions(data, other, groups))
        cells = "  ".join(
            f"{np.mean([each.captured(RULES[rule]) for each in made]):.3f}" for rule in ("estimate", sure)
        )
        print(f"  {title:30} {cells}")
    kinds = np.array([f"{row['backend']} {own}" for row, own in zip(data.rows, decoding(data), strict=True)])
    for kind in np.unique(kinds):
        own, left = (_errors(data, other, kinds == kind) for other in (told, left_decoding(data, told)))
        print(f"  TPOT, measured over predicted, {kind:21} {own}   of those batches {left}")
    for each in decisions(data, told, groups):
        pick, best = each.pick(RULES[sure]), int(np.argmax(np.where(each.kept, each.output, -np.inf)))
        row = data.rows[each.members[0]]
        print(
            f"  {each.captured(RULES[sure]):.2f}  {' '.join(row[part] for part in ALIKE)}  limit {each.limit_s:.4f} s"
        )
        for title, number in (("pick", pick), ("best", best)) if pick != best else ():
            at = each.members[number]
            own = data.rows[at]
            layout = "/".join(own.get(part, "") for part in SHAPE).strip("/")
            print(f"        {title} {layout}, {own['concurrency']} clients: TPOT {told.tpot_s[at]:.4f} s "
                  f"({data.measured.tpot_s[at]:.4f} measured), TTFT {told.ttft_s[at]:.2f} "
                  f"({data.measured.ttft_s[at]:.2f})")  # fmt: skip


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=required)
    parser.add_argument("--unfitted", action="store_true")
    parser.add_argument("--lost", choices=DECISIONS)
    given = parser.parse_args()
    data, told, scored = prepared(given.folder, unfitted=given.unfitted)
    show(data, told, "as score.py: measured.csv", scored)
    show(data, told, "all open rows", np.arange(len(data.rows)))
    if given.lost:
        lost(data, told, given.lost, scored)
    return 0


if __name__ == "__main__":
    sys.exit(main())
