"""Steady state of pipelined engines beside their slow simulator: TTFT of prefill, TTFT and TPOT of colocated roles.

Cells are dimensionless: a pass of a batch takes (in units of a mean prompt's tokens) its tokens, and perhaps a fixed
part. A third of them, by hash, is held out of the fit of `planner.kinds.serve.steady.steps.pipelines`.
Prefill runs on a compiled twin of the slow simulator, which must agree with it to the last request where both run.
`--quick`: fewer requests, and of colocated roles the cells held out. `--fit`: constants from the other cells.
"""

import argparse
import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
from numba import njit

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "oracles"))
from tandem_simulator import Engine, Part, Request, Rules, simulate

from planner.arrays import Floats, Ints
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.kinds.serve.steady.steps import pipelines
from planner.kinds.serve.steady.steps.first_tokens import Engines, Variability, first_tokens
from planner.kinds.serve.steady.steps.formulas import Costs, Prefill, colocated_tpot_s, prefill_alone, prefill_mixed
from planner.kinds.serve.steady.steps.mixed import MixedSteps, mixed_steps
from planner.kinds.serve.steady.steps.pipelines import Bubbles, prefill_in_stages
from planner.kinds.serve.steady.time_limits import MEAN, Queue, TimeLimit
from planner.models.library import find_model
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate as fleet_times

STAGES, SPREADS, USED = (2, 4, 8, 16), (0.0, 0.25, 0.5, 1.0, 2.0), (0.3, 0.45, 0.6, 0.75, 0.85, 0.92)
BUDGETS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0)  # of a batch, in mean prompts
MEAN_TOKENS = 1000
P99 = TimeLimit("p99", 0.99, float("inf"))
REQUESTS, QUICK_REQUESTS, COMPARED = 40_000, 20_000, 100
USED_COMPARED = 0.6  # utilisation of the colocated cells that both simulators run
CONSTANTS = ("MOST", "LEFT", "START", "BUSY", "BUSY_STAGES", "STAGES", "BUDGET", "BUDGET_STAGES", "SPREAD", "ALONE")


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds of a whole pass, a mean prompt of 1000 tokens taking one for its tokens."""

    fixed_s: float = 0.0
    token_s: float = 1.0 / MEAN_TOKENS
    pair_s: float = 0.0
    sequence_s: float = 0.0

    def step(self, shards: Shards, work: Work) -> SimpleNamespace:
        """What `Costs.step` gives, of these prices."""
        pairs = work.prefill_tokens * (
            work.prefill_context + (work.prefill_tokens / np.maximum(work.prefill_sequences, 1.0) + 1.0) / 2.0
        )
        seconds = self.fixed_s + self.token_s * work.prefill_tokens + self.pair_s * pairs
        return SimpleNamespace(seconds=seconds + self.sequence_s * work.decode_sequences)

    def stages(self, pp: int) -> Callable[[Part], list[float]]:
        """Seconds of the stages for what an engine does in a batch."""

        def stage_s(part: Part) -> list[float]:
            whole = self.fixed_s + self.token_s * part.tokens + self.pair_s * part.pairs
            return [(whole + self.sequence_s * len(part.decodes)) / pp] * pp

        return stage_s


COLOCATED_PRICE = Price(fixed_s=0.15, sequence_s=0.002)
PRICES = {"tokens": Price(), "fixed part": Price(fixed_s=0.2)}
ARCH = find_model("Qwen/Qwen3-32B")


def costs_of(price: Price) -> Costs:
    """Costs of a dense model that has these prices."""
    return cast(Costs, SimpleNamespace(arch=ARCH, engine=EngineOverheads(), step=price.step))


@dataclass(frozen=True, slots=True)
class Cell:
    """One engine at one utilisation; `outputs` and `most_sequences` of colocated ones."""

    price: str
    pp: int
    cv: float
    used: float
    budget: float
    outputs: int = 0
    most_sequences: int = 0

    @property
    def held_out(self) -> bool:
        """Whether no constant was fitted to it."""
        fixed_s = PRICES.get(self.price, COLOCATED_PRICE).fixed_s
        text = f"{self.pp}/{self.cv:g}/{self.used}/{self.budget:g}/{fixed_s}"
        return int(hashlib.sha256(text.encode()).hexdigest(), 16) % 3 == 0


@dataclass(frozen=True, slots=True)
class Times:
    """Mean and p99 of TTFT, and the mean time per output token of colocated engines."""

    ttft_s: float
    p99_s: float
    tpot_s: float = 0.0


def prefill_cells() -> Iterator[Cell]:
    for price in PRICES:
        for pp in STAGES:
            for cv in SPREADS:
                for used in USED:
                    yield from (Cell(price, pp, cv, used, budget) for budget in BUDGETS)


COLOCATED = ((1.0, 100, 48), (4.0, 100, 48), (1.0, 400, 96), (0.5, 50, 32))  # budget, outputs, sequences


def colocated_cells() -> Iterator[Cell]:
    for pp in (1, *STAGES):
        for cv in (0.0, 1.0, 2.0):
            for used in (0.3, USED_COMPARED, 0.85):
                yield from (Cell("decode", pp, cv, used, *shape) for shape in COLOCATED)


def lengths(mean: float, cv: float, count: int, rng: np.random.Generator) -> Ints:
    """Lognormal lengths."""
    deviation = np.sqrt(np.log1p(cv**2))
    drawn = rng.lognormal(np.log(mean) - deviation**2 / 2.0, deviation, count)
    return np.maximum(np.rint(drawn), 1).astype(np.int64)


@njit(cache=True)
def waits(gaps: Floats, service_s: Floats) -> float:
    """The mean wait of one server on this stream, by Lindley's recursion: what the stream's luck is measured by."""
    wait, total = 0.0, 0.0
    for turn in range(1, len(gaps)):
        wait = max(wait + service_s[turn - 1] - gaps[turn], 0.0)
        total += wait
    return total / len(gaps)


def shards_of(cell: Cell) -> Shards:
    return Shards.of(1, cell.pp, 1, 1, 1)


def prefill_times(cell: Cell, count: int) -> tuple[Times, Times, Times]:
    """Simulated, by steady state, and as pp engines that share the load. The stream's luck is taken out of the mean."""
    rng = np.random.default_rng(5)
    input_tokens = lengths(MEAN_TOKENS, cell.cv, count, rng)
    mean, price = float(input_tokens.mean()), PRICES[cell.price]
    cv2 = float(input_tokens.var() / mean**2)
    budget = max(round(cell.budget * mean), 1)
    costs, isl, chunk = costs_of(price), np.array([mean]), np.array([float(budget)])
    plain = prefill_alone(costs, shards_of(cell), isl, chunk)
    staged, bubbles = prefill_in_stages(costs, shards_of(cell), isl, chunk, plain, cv2)
    gaps = rng.exponential(float(staged.queue_s[0]) / cell.used, count)
    arrivals = np.cumsum(gaps)
    first_s = compiled_first_s(arrivals, input_tokens, cell.pp, budget, price.fixed_s, price.token_s, price.pair_s)
    if cell.budget == cell.pp / 4.0:
        compare(cell, price, arrivals[:COMPARED], input_tokens[:COMPARED], budget)
    ttft_s = (first_s - arrivals)[count // 15 :]
    simulated = Times(float(ttft_s.mean()), float(np.quantile(ttft_s, 0.99)))
    used = np.array([cell.used])
    luck_s = waits(gaps, input_tokens * staged.queue_s[0] / mean) - float(
        MEAN.wait_s(used, staged.queue_s, Queue(1.0, cv2))[0]
    )
    return (
        Times(simulated.ttft_s - luck_s, simulated.p99_s),
        steady(staged, used, cv2, bubbles),
        steady(plain, used, cv2, None),
    )


@njit(cache=True)
def compiled_first_s(
    arrivals: Floats, inputs: Ints, pp: int, budget: int, fixed_s: float, token_s: float, pair_s: float
) -> Floats:
    """First tokens [R] of one pipelined engine that only prefills, by the rules of the slow simulator."""
    count = len(arrivals)
    first_s, free_s = np.zeros(count), np.full(pp, -np.inf)
    ends_s, firsts, lasts = np.zeros(pp), np.zeros(pp, dtype=np.int64), np.zeros(pp, dtype=np.int64)
    oldest, flying, come, taken, part, done = 0, 0, 0, 0, 0, 0
    while done < count:
        now = ends_s[oldest] if flying else np.inf
        if come < count:
            now = min(now, arrivals[come])
        while flying and ends_s[oldest] <= now:
            first_s[firsts[oldest] : lasts[oldest]] = ends_s[oldest]
            done = lasts[oldest]
            oldest, flying = (oldest + 1) % pp, flying - 1
        while come < count and arrivals[come] <= now:
            come += 1
        while flying < pp and taken < come:
            left, pairs, before = budget, 0.0, taken
            while taken < come and left:
                tokens = min(inputs[taken] - part, left)
                pairs += tokens * (part + (tokens + 1) / 2)
                part, left = part + tokens, left - tokens
                if part < inputs[taken]:
                    break
                taken, part = taken + 1, 0
            stage_s = (fixed_s + token_s * (budget - left) + pair_s * pairs) / pp
            end_s = now
            for stage in range(pp):
                end_s = max(end_s, free_s[stage]) + stage_s
                free_s[stage] = end_s
            place = (oldest + flying) % pp
            ends_s[place], firsts[place], lasts[place], flying = end_s, before, taken, flying + 1
    return first_s


def compare(cell: Cell, price: Price, arrivals: Floats, inputs: Ints, budget: int) -> None:
    """Raises an error where the compiled engine and the slow one differ."""
    requests = [Request(i, *row) for i, row in enumerate(zip(arrivals.tolist(), inputs.tolist(), strict=True))]
    simulate([Engine(Rules(price.stages(cell.pp), cell.pp, role="prefill", token_budget=budget))], requests)
    again_s = compiled_first_s(arrivals, inputs, cell.pp, budget, price.fixed_s, price.token_s, price.pair_s)
    np.testing.assert_allclose(again_s, [r.first_s for r in requests], rtol=1e-9)


def steady(prefill: Prefill, used: Floats, cv2: float, bubbles: Bubbles | None, tpot_s: float = 0.0) -> Times:
    ttft_s, p99_s = (
        float(prefill.latency_s[0] + limit.wait_s(used, prefill.queue_s, Queue(1.0, cv2), bubbles)[0])
        for limit in (MEAN, P99)
    )
    return Times(ttft_s, p99_s, tpot_s)


def run(cell: Cell, arrivals: Floats, inputs: Ints, outputs: Ints, budget: int) -> Times:
    """Times of a colocated engine in the simulator, which must agree with the slow one where both run."""
    price = COLOCATED_PRICE
    grid = StepGrid.affine(
        price.fixed_s, sequence_s=price.sequence_s, token_s=price.token_s, most_sequences=cell.most_sequences
    )
    engine = Instance(grid, kv_tokens=10**9, token_budget=budget, most_sequences=cell.most_sequences, stages=cell.pp)
    result = fleet_times(Fleet((engine,)), Requests.open_stream(arrivals, inputs, outputs))
    if cell.used == USED_COMPARED:
        rules = Rules(price.stages(cell.pp), cell.pp, token_budget=budget, most_sequences=cell.most_sequences)
        rows = zip(*(column[:COMPARED].tolist() for column in (arrivals, inputs, outputs)), strict=True)
        requests = [Request(i, *row) for i, row in enumerate(rows)]
        simulate([Engine(rules)], requests)
        few = Requests.open_stream(arrivals[:COMPARED], inputs[:COMPARED], outputs[:COMPARED])
        again_s = fleet_times(Fleet((engine,)), few).first_token_s
        np.testing.assert_allclose(again_s, [r.first_s for r in requests], rtol=1e-9)
    counted = slice(len(arrivals) // 15, len(arrivals) - len(arrivals) // 20)
    ttft_s = (result.first_token_s - arrivals)[counted]
    decoded_s = float((result.finished_s - result.first_token_s)[counted].sum())
    tpot_s = decoded_s / max(int((outputs[counted] - 1).sum()), 1)
    return Times(float(ttft_s.mean()), float(np.quantile(ttft_s, 0.99)), tpot_s)


def colocated_times(cell: Cell, count: int) -> tuple[Times, Times, Times]:
    """As `prefill_times`; utilisation is that of places, at the full batch of steady state."""
    rng = np.random.default_rng(5)
    inputs, outputs = lengths(MEAN_TOKENS, cell.cv, count, rng), lengths(cell.outputs, 0.5, count, rng)
    mean, osl = float(inputs.mean()), float(outputs.mean())
    budget, spread = (
        round(cell.budget * mean),
        Variability(1.0, *(float(x.var() / x.mean() ** 2) for x in (inputs, outputs))),
    )
    rate = cell.used * float(colocated_engines(cell, mean, osl, budget, spread).capacity_per_s(spread.prompts)[1])
    by_model = [
        colocated_steady(cell, mean, osl, budget, spread, rate),
        one_stage_each(cell, mean, osl, budget, spread, rate),
    ]
    arrivals = np.cumsum(rng.exponential(1.0 / rate, count))
    return run(cell, arrivals, inputs, outputs, budget), by_model[0], by_model[1]


def mixed(cell: Cell, batch: Floats, mean: float, osl: float, budget: int, spread: Variability) -> MixedSteps:
    """Steps of the cell's engine at some full batches."""
    each = np.ones(len(batch))
    return mixed_steps(
        costs_of(COLOCATED_PRICE), Shards.of(1, cell.pp * each, 1, 1, 1), np.zeros(len(batch), dtype=np.intp), batch,
        budget * each, 0.0 * each, mean * each, mean * each, osl * each, length_cv2=spread.prompts,
    )  # fmt: skip


def colocated_engines(cell: Cell, mean: float, osl: float, budget: int, spread: Variability) -> Engines:
    """The engine with half of its places, and as it is."""
    return mixed(cell, np.array([cell.most_sequences / 2.0, cell.most_sequences]), mean, osl, budget, spread).engines


def colocated_steady(cell: Cell, mean: float, osl: float, budget: int, spread: Variability, rate: float) -> Times:
    """What steady state says of a load: the mean step at the sequences that it has, and times to first token."""
    engines = colocated_engines(cell, mean, osl, budget, spread).take(np.array([1]))
    filled = rate / engines.capacity_per_s(spread.prompts)
    times = first_tokens(engines, filled, spread)
    batches = np.geomspace(0.01, cell.most_sequences, 200)
    steps_s = mixed(cell, batches, mean, osl, budget, spread).engines.step_s
    tpot_s = float(np.interp(rate, batches / (osl * steps_s), steps_s))
    return Times(float(times.quantile_s(None)[0]), float(times.quantile_s(0.99)[0]), tpot_s)


def one_stage_each(cell: Cell, mean: float, osl: float, budget: int, spread: Variability, rate: float) -> Times:
    """The load shared by as many engines of one stage, of a queue before the full steps of each."""
    batches, each = np.geomspace(0.01, cell.most_sequences, 200), np.ones(200)
    costs, shards = costs_of(COLOCATED_PRICE), Shards.of(1, cell.pp * each, 1, 1, 1)
    decode_s = costs.step(shards, Work.decode(batches / cell.pp, mean * each)).seconds
    plain = prefill_mixed(costs, shards, mean * each, osl * each, budget * each, batches, mean * each, decode_s)
    steps_s = colocated_tpot_s(decode_s, plain.stretch_s, plain.steps, batches, osl, each)
    place = np.array([min(int(np.searchsorted(batches / (osl * steps_s), rate)), 199)])
    at_load = replace(plain, latency_s=(plain.latency_s + 0.5 * steps_s)[place], queue_s=plain.queue_s[place])
    used = np.minimum(rate * at_load.queue_s, 0.99)
    return steady(at_load, used, spread.prompts, None, float(steps_s[place[0]]))


def report(name: str, cells: list[Cell], rows: list[tuple[Times, Times, Times]], of: Callable[[Times], float]) -> None:
    """One line for each number of stages and spread, one for all with stages: errors, ours and trivial."""
    fitted = [np.log(of(row[0]) / of(row[2])) for cell, row in zip(cells, rows, strict=True) if not cell.held_out] or [
        np.log(of(row[0]) / of(row[2])) for row in rows
    ]
    factor = float(np.exp(np.mean(fitted)))
    print(f"\n{name}: mean error (largest)\n{'pp':>4} {'cv':>4} {'cells':>6} {'steady state':>16} "
          f"{'pp engines':>16} {f'times {factor:.2f}':>16}")  # fmt: skip
    groups = sorted({(cell.pp, cell.cv) for cell in cells})
    for group in [*groups, None]:
        chosen = [
            row
            for cell, row in zip(cells, rows, strict=True)
            if (cell.pp > 1 if group is None else group == (cell.pp, cell.cv))
        ]
        truth = np.array([of(row[0]) for row in chosen])
        shown = []
        for values in (np.array([of(row[1]) for row in chosen]), np.array([of(row[2]) for row in chosen])):
            shown.append(np.abs(values / truth - 1.0))
        shown.append(np.abs(factor * np.array([of(row[2]) for row in chosen]) / truth - 1.0))
        text = " ".join(f"{f'{errors.mean():.1%} ({errors.max():.0%})':>16}" for errors in shown)
        label = f"{'> 1':>4} {'':>4}" if group is None else f"{group[0]:>4} {group[1]:>4}"
        print(f"{label} {len(chosen):>6} {text}", flush=True)


def report_looks(count: int) -> None:
    """How much later first tokens are where an engine looks at arrivals only as batches leave."""
    print("\nMean TTFT of prefill, pp 4, cv 1, where arrivals are looked at as batches leave, over at once")
    for budget in (0.5, 2.0):
        shown = []
        for used in (0.3, 0.6, 0.85):
            means = []
            for at_once in (True, False):
                rng = np.random.default_rng(5)
                inputs = lengths(MEAN_TOKENS, 1.0, count, rng)
                arrivals = np.cumsum(rng.exponential(inputs.mean() / MEAN_TOKENS / 4.0 / used, count))
                rows = zip(arrivals.tolist(), inputs.tolist(), strict=True)
                requests = [Request(i, *row) for i, row in enumerate(rows)]
                tokens = round(budget * MEAN_TOKENS)
                rules = Rules(Price().stages(4), 4, role="prefill", token_budget=tokens, looks_at_once=at_once)
                simulate([Engine(rules)], requests)
                means.append(np.mean([r.first_s - r.arrival_s for r in requests]))
            shown.append(f"{used}: {means[1] / means[0] - 1.0:+.0%}")
        print(f"  budget of {budget} prompts: {', '.join(shown)}", flush=True)


def fit(cells: list[Cell], rows: list[tuple[Times, Times, Times]]) -> None:
    """Constants that bring steady state closest to the cells, by their relative errors."""
    from scipy.optimize import least_squares

    simulated = [row[0].ttft_s for row in rows]

    def errors(values: Floats) -> Floats:
        for name, value in zip(CONSTANTS, values, strict=True):
            setattr(pipelines, name, value)
        return np.array([np.log(again(cell) / truth) for cell, truth in zip(cells, simulated, strict=True)])

    start = np.array([getattr(pipelines, name) for name in CONSTANTS])
    fitted = least_squares(errors, start, loss="soft_l1", f_scale=0.1)
    for name, value in zip(CONSTANTS, fitted.x, strict=True):
        print(f"{name} = {value:.2f}")


@cache
def moments(cv: float) -> tuple[float, float]:
    """Mean and squared coefficient of variation of the lengths of prefill cells."""
    inputs = lengths(MEAN_TOKENS, cv, REQUESTS, np.random.default_rng(5))
    return float(inputs.mean()), float(inputs.var() / inputs.mean() ** 2)


def again(cell: Cell) -> float:
    """Mean TTFT of a prefill cell in steady state, with the constants as they are now."""
    mean, cv2 = moments(cell.cv)
    isl, chunk = np.array([mean]), np.array([float(max(round(cell.budget * mean), 1))])
    costs = costs_of(PRICES[cell.price])
    plain = prefill_alone(costs, shards_of(cell), isl, chunk)
    staged, bubbles = prefill_in_stages(costs, shards_of(cell), isl, chunk, plain, cv2)
    return steady(staged, np.array([cell.used]), cv2, bubbles).ttft_s


def main() -> int:
    """Print the errors of the cells held out; 1 where the mean error of TTFT is above 10 %.

    Of prefill at any number of stages, of colocated engines in all cells with stages.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--colocated", action="store_true", help="colocated roles alone")
    options = parser.parse_args()
    if options.fit:
        cells = [cell for cell in prefill_cells() if not cell.held_out]
        fit(cells, [prefill_times(cell, REQUESTS) for cell in cells])
        return 0
    late = False if options.colocated else prefill_is_late(QUICK_REQUESTS if options.quick else REQUESTS)
    both = [cell for cell in colocated_cells() if cell.held_out or not options.quick]
    rows_of_both = [colocated_times(cell, QUICK_REQUESTS if options.quick else REQUESTS) for cell in both]
    report("TPOT of colocated, mean", both, rows_of_both, lambda times: times.tpot_s)
    report("TTFT of colocated, mean", both, rows_of_both, lambda times: times.ttft_s)
    report("TTFT of colocated, p99", both, rows_of_both, lambda times: times.p99_s)
    errors = [
        abs(ours.ttft_s / true.ttft_s - 1.0)
        for cell, (true, ours, _) in zip(both, rows_of_both, strict=True)
        if cell.held_out and cell.pp > 1
    ]
    report_looks(1500 if options.quick else 6000)
    return int(late or float(np.mean(errors)) > 0.1)


def prefill_is_late(count: int) -> bool:
    """Report the cells of prefill held out; whether the mean error of TTFT is above 10 % at some number of stages."""
    cells = [cell for cell in prefill_cells() if cell.held_out and cell.used in (0.6, 0.85)]
    rows = [prefill_times(cell, count) for cell in cells]
    report("TTFT of prefill, mean", cells, rows, lambda times: times.ttft_s)
    report("TTFT of prefill, p99", cells, rows, lambda times: times.p99_s)
    errors = [
        [
            abs(ours.ttft_s / true.ttft_s - 1.0)
            for cell, (true, ours, _) in zip(cells, rows, strict=True)
            if cell.pp == pp
        ]
        for pp in STAGES
    ]
    return max(float(np.mean(of_stages)) for of_stages in errors) > 0.1


if __name__ == "__main__":
    sys.exit(main())
