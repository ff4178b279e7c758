"""How near formulas of percentiles of the time per output token are to simulated engines.

python benchmarks/token_times.py            every cell
python benchmarks/token_times.py --quick    a tenth of them, shorter streams

A cell is one engine, that decodes or does both, with a batch limit, lengths, bursts and a load; all combinations, but
those whose prefill is busier than 85 %. No constant is fitted: half of the cells, by hash, only set the constant of the
best trivial answer, the simulated mean times what suits each percentile best, and all errors are of the other half.
What limits are held to is the formula of the full batch: the second table says in how many cells more requests than
may take longer than it says.
"""

import argparse
import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate
from planner.solvers.stochastic.gap_averages import Answers, GapAverages, SteadySteps
from planner.solvers.stochastic.token_gaps import StepPrompts, TokenGaps

QUANTILES = (0.5, 0.9, 0.99)
PROMPT = 1000  # mean tokens
MOST_BUSY = 0.85
COUNT, QUICK_COUNT = 40_000, 15_000
NODES = 64


@dataclass(frozen=True, slots=True)
class Cell:
    """One engine at one load. A step of the full batch without prompts takes a second."""

    role: str
    places: int
    answer: int  # mean tokens
    answer_cv: float
    prompt_cv: float
    gap_cv: float
    used: float  # load over that of a full batch
    by_sequences: float  # share of the step of a full batch that its sequences take
    stretched: float  # share of the mean step of a full batch that prompts take
    prompts: float  # that a step has room for

    @property
    def held_out(self) -> bool:
        """Whether it is one of those that errors are of."""
        return hashlib.sha256(repr(astuple(self)).encode()).digest()[-1] % 2 == 1

    @property
    def quick(self) -> bool:
        """Whether it is one of the tenth."""
        return hashlib.sha256(repr(astuple(self)).encode()).digest()[0] % 10 == 0

    @property
    def full_s(self) -> float:
        """The mean step of the full batch."""
        return 1.0 / (1.0 - self.stretched)

    @property
    def rate_per_s(self) -> float:
        """Of requests."""
        return self.used * self.places / (self.answer * self.full_s)

    @property
    def prompt_s(self) -> float:
        """That a mean prompt adds to steps."""
        return (self.full_s - 1.0) * self.answer / self.places

    @property
    def busy(self) -> float:
        """Share of time that prefill takes, with the steps that prompts are in."""
        return self.rate_per_s * (self.prompt_s + 1.0 / self.prompts)

    def pace_s(self, sequences: float) -> float:
        """A step without prompts."""
        return 1.0 - self.by_sequences * (1.0 - sequences / self.places)


def cells() -> Iterator[Cell]:
    """All combinations whose prefill keeps up."""
    for row in itertools.product(
        (16, 64, 256), (50, 400), (0.0, 0.5, 1.0), (0.0,), (1.0, 2.0), (0.5, 0.8, 0.95), (0.1, 0.6), (0.0,), (1.0,)
    ):
        yield Cell("decode", *row)
    for row in itertools.product(
        (16, 64, 256),
        (50, 400),
        (0.0, 1.0),
        (0.0, 1.0),
        (1.0, 2.0),
        (0.5, 0.8, 0.95),
        (0.1, 0.5),
        (0.1, 0.4),
        (0.4, 1.0, 2.5),
    ):
        cell = Cell("colocated", *row)
        if cell.busy < MOST_BUSY:
            yield cell


def lengths(mean: int, cv: float, count: int, rng: np.random.Generator) -> Ints:
    """Log-normal lengths of two tokens and more."""
    deviation = math.sqrt(math.log1p(cv**2))
    drawn = rng.lognormal(math.log(mean) - deviation**2 / 2.0, deviation, count)
    return np.maximum(np.rint(drawn), 2).astype(np.int64)


def simulated(cell: Cell, count: int) -> tuple[Floats, Floats, Answers]:
    """Times per output token of a stream, its beginning and end left out, percentiles of gaps, and the answers as the
    formula has them.
    """
    rng = np.random.default_rng(7)
    prompts, answers = (
        lengths(mean, cv, count, rng) for mean, cv in ((PROMPT, cell.prompt_cv), (cell.answer, cell.answer_cv))
    )
    arrivals = np.cumsum(rng.gamma(cell.gap_cv**-2, cell.gap_cv**2, count)) / cell.rate_per_s
    token_s = cell.prompt_s / PROMPT if cell.role == "colocated" else 0.0
    grid = StepGrid.affine(
        cell.pace_s(0.0), sequence_s=cell.by_sequences / cell.places, token_s=token_s, most_sequences=cell.places
    )
    room = round(cell.prompts * PROMPT) + cell.places
    engine = Instance(grid, 10**9, role=cell.role, token_budget=room, most_sequences=cell.places)
    first = Instance(StepGrid.affine(1e-9), 10**9, role="prefill")
    fleet = Fleet((engine,) if cell.role == "colocated" else (first, engine))
    run = simulate(fleet, Requests.open_stream(arrivals, prompts, answers))
    known = np.sort(answers).astype(float)
    nodes = tuple(float(part.mean()) for part in np.array_split(known, NODES))
    facts = Answers(nodes, float(answers.var() / answers.mean() ** 2), cell.prompt_cv**2, cell.gap_cv**2)
    gaps = run.gaps.within(0.1, 0.95)
    gaps_s = np.array([gaps.statistic_s(quantile) for quantile in QUANTILES])
    return run.tpot_s[count // 10 : -count // 20], gaps_s, facts


def formulas(cell: Cell, answers: Answers) -> tuple[GapAverages, GapAverages]:
    """At the load, and at the full batch."""
    ones, joining = np.ones(1), 1.0 if cell.role == "decode" else 0.0
    added_s = cell.by_sequences / cell.places
    freely = 1.0 - cell.rate_per_s * cell.prompt_s  # the share of time that prompts leave
    held = cell.rate_per_s * cell.answer / freely
    sequences = min(held * cell.pace_s(0.0) / (1.0 - held * added_s), cell.places)
    pace_s = cell.pace_s(sequences) * ones
    now = SteadySteps(pace_s, pace_s / freely, sequences * ones, ones, ones, 0.0 * ones, 0.0 * ones, joining)
    full = SteadySteps(ones, cell.full_s * ones, cell.places * ones, ones, ones, 0.0 * ones, 0.0 * ones, joining)
    return now.below_full_batch(answers, added_s * ones), full.at_full_batch(answers)


def gaps_of(cell: Cell, answers: Answers, *, capped: bool) -> TokenGaps:
    """Gaps at the load, in steps whose room for prompts is known or not."""
    ones, joining = np.ones(1), 1.0 if cell.role == "decode" else 0.0
    freely = 1.0 - cell.rate_per_s * cell.prompt_s
    held = cell.rate_per_s * cell.answer / freely
    sequences = min(held * cell.pace_s(0.0) / (1.0 - held * cell.by_sequences / cell.places), cell.places)
    pace_s, steps = cell.pace_s(sequences) * ones, answers.mean_tokens * ones
    parts = ones / cell.prompts if cell.role == "colocated" else 0.0 * ones
    prompts = StepPrompts.of_batch(sequences * ones, steps, parts, ones, answers.prompt_cv2)
    most_s = cell.prompts * cell.prompt_s * ones if capped and cell.role == "colocated" else None
    return TokenGaps.of_steps(pace_s, pace_s / freely, prompts, 1.0 / np.maximum(steps - 1.0, 1.0), joining, most_s)


@dataclass(frozen=True, slots=True)
class Row:
    """Percentiles of a cell: simulated, of the formula at its load, and of that of the full batch; the mean."""

    cell: Cell
    mean_s: float
    true_s: Floats
    said_s: Floats
    full_s: Floats
    late: Floats  # share of requests beyond the percentile of the full batch
    gaps_s: Floats  # percentiles of gaps, simulated
    said_gaps_s: Floats
    uncapped_s: Floats  # said where steps have room for any number of prompts


def row_of(cell: Cell, count: int) -> Row:
    """A cell simulated, and its formulas."""
    times_s, gaps_s, answers = simulated(cell, count)
    now, full = formulas(cell, answers)
    full_s = np.array([float(full.quantile_s(q)[0]) for q in QUANTILES])
    said_s = np.minimum([float(now.quantile_s(q)[0]) for q in QUANTILES], full_s)
    late = np.array([np.mean(times_s > bound * (1.0 + 1e-9)) for bound in full_s])
    said_gaps_s, uncapped_s = (
        np.array([float(gaps_of(cell, answers, capped=capped).quantile_s(q)[0]) for q in QUANTILES])
        for capped in (True, False)
    )
    figures = (np.quantile(times_s, QUANTILES), said_s, full_s, late, gaps_s, said_gaps_s, uncapped_s)
    return Row(cell, float(times_s.mean()), *figures)


def report(rows: Sequence[Row]) -> None:
    """Errors of held-out cells by role and load, beside those of the mean, and of the mean times a constant."""
    print(f"{'held-out cells':30s}" + "".join(f"{f'p{100 * q:g}':>22s}" for q in QUANTILES) + "   (absolute, largest)")
    for role in ("decode", "colocated"):
        fitted = [row for row in rows if row.cell.role == role and not row.cell.held_out]
        factor = np.median([row.true_s / row.mean_s for row in fitted], axis=0)
        for used in (0.5, 0.8, 0.95, None):
            chosen = [row for row in rows if row.cell.role == role and row.cell.held_out]
            chosen = [row for row in chosen if used is None or row.cell.used == used]
            if chosen:
                name = f"{role}, load {used or 'all'}, {len(chosen)}"
                print(_line(name, [row.said_s / row.true_s - 1.0 for row in chosen]))
        print(_line("  the mean", [row.mean_s / row.true_s - 1.0 for row in chosen]))
        print(_line("  the mean times a constant", [factor * row.mean_s / row.true_s - 1.0 for row in chosen]))
    print(f"\n{'full batch, held-out cells':30s}" + "".join(f"{f'p{100 * q:g}':>22s}" for q in QUANTILES)
          + "   (cells with more late requests, how much longer at most; full batch over simulated)")  # fmt: skip
    for role, used in itertools.product(("decode", "colocated"), (0.5, 0.8, 0.95)):
        chosen = [row for row in rows if (row.cell.role, row.cell.used) == (role, used) and row.cell.held_out]
        if chosen:
            over = np.array([row.late > 1.0 - np.array(QUANTILES) for row in chosen])
            most = np.max([row.true_s / row.full_s - 1.0 for row in chosen], axis=0)
            room = np.mean([row.full_s / row.true_s for row in chosen], axis=0)
            shown = (
                f"{f'{o:.0%} {max(m, 0):.1%} {r:.2f}':>22s}" for o, m, r in zip(over.mean(0), most, room, strict=True)
            )
            print(f"{f'{role}, load {used}, {len(chosen)}':30s}" + "".join(shown))


def report_gaps(rows: Sequence[Row]) -> None:
    """Errors of percentiles of gaps of held-out cells, beside those without room in steps, and of the mean gap."""
    print(f"\n{'gaps of held-out cells':30s}" + "".join(f"{f'p{100 * q:g}':>22s}" for q in QUANTILES))
    for role in ("decode", "colocated"):
        fitted = [row for row in rows if row.cell.role == role and not row.cell.held_out]
        chosen = [row for row in rows if row.cell.role == role and row.cell.held_out]
        factor = np.median([row.gaps_s / row.mean_s for row in fitted], axis=0)
        print(_line(f"{role}, {len(chosen)}", [row.said_gaps_s / row.gaps_s - 1.0 for row in chosen]))
        print(_line("  steps of any length", [row.uncapped_s / row.gaps_s - 1.0 for row in chosen]))
        print(_line("  the mean times a constant", [factor * row.mean_s / row.gaps_s - 1.0 for row in chosen]))


def _line(name: str, errors: Sequence[Floats]) -> str:
    absolute = np.abs(np.array(errors))
    shown = (f"{f'{m:.1%} ({w:.0%})':>22s}" for m, w in zip(absolute.mean(0), absolute.max(0), strict=True))
    return f"{name:30s}" + "".join(shown)


def main() -> int:
    """Prints the tables; 1 where the formula is not better than the mean times a constant at p90 or p99."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the cells, shorter streams")
    given = parser.parse_args()
    chosen = [cell for cell in cells() if cell.quick or not given.quick]
    rows = [row_of(cell, QUICK_COUNT if given.quick else COUNT) for cell in chosen]
    report(rows)
    report_gaps(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
