"""How near measured closed loops are: in the mean, replayed by the estimator's own loop, and by the simulator.

All three take the same step times (base + slope D, start + seconds a prompt token) of the same calibration; rows of
`measured.csv` whose clients wait for answers. What engines add around their steps, the replay simulates and the others
add in the mean. The trivial answer is the median of all rows.

    python benchmarks/closed_loops.py ../shared/data/serving/measured.csv
"""

import math
import sys
import time
from dataclasses import asdict, replace

import numpy as np
from inputs import first_path
from recipe_columns import filled

from planner.arrays import Bools, Floats
from planner.estimate.batches import batch_of, groups_of
from planner.estimate.case import Case
from planner.estimate.closed_loop import ClosedLoops, MeanTimes, simulate_loops
from planner.estimate.frame import Added, loop_of, pace_of, settled, taken
from planner.estimate.measured import cases_of_rows, rows_of_table
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate
from planner.simulate.run.result import SimulationResult

LEAST_REQUESTS, MOST_REQUESTS = 8, 6000  # of one run, as in the replay
REPLAY_DRAWS = 1 << 16
OPEN_REQUESTS = 20_000
UNLIMITED = 2**40  # tokens of cache: sequences are limited by number


def main() -> int:
    """Print the errors."""
    path = str(first_path())
    with open(path, newline="", encoding="utf-8") as file:
        rows = {row["id"]: filled(row, inferred=True) for row in rows_of_table(file, path)}
    cases = [case for case in cases_of_rows(rows.values()) if isinstance(case, Case) and case.clients > 0]
    errors: dict[str, list[Floats]] = {"in the mean": [], "replayed": [], "simulated": []}
    order: list[int] = []
    spent = dict.fromkeys(errors, 0.0)
    for members in groups_of(cases):
        order += members
        for name, (times, seconds) in predictions([cases[i] for i in members]).items():
            errors[name].append(np.stack([times.ttft_s, times.tpot_s]))
            spent[name] += seconds
    measured = np.array([[float(rows[cases[i].id][name]) / 1e3 for i in order] for name in ("ttft_ms", "tpot_ms")])
    queued = np.array([rows[cases[i].id]["saturated"] == "1" for i in order])
    print(
        f"{len(order)} closed loops: error in percent, mean / median; TTFT of {int(np.sum(~queued))} without queueing"
    )
    constant = np.repeat(np.median(measured, axis=1)[:, None], len(order), axis=1)
    for name, values in [("one constant", [constant]), *errors.items()]:
        show(name, np.concatenate(values, axis=1), measured, queued, spent.get(name, 0.0))
    return 0


def show(name: str, predicted: Floats, measured: Floats, queued: Bools, seconds: float) -> None:
    """One line of errors."""
    error = 100.0 * np.abs(predicted / measured - 1.0)
    ttft, tpot = error[0][~queued], error[1]
    text = f"TPOT {tpot.mean():5.1f} / {np.median(tpot):4.1f}   TTFT {ttft.mean():5.1f} / {np.median(ttft):4.1f}"
    print(f"  {name:14} {text}   {seconds:6.2f} CPU-s")


def predictions(cases: list[Case]) -> dict[str, tuple[MeanTimes, float]]:
    """Times of cases that share model, pool and engine, and the CPU seconds that they took."""
    batch = batch_of(cases, None)
    frame, added = batch.frame(), Added.of([batch.costs.engine] * len(cases))
    unhurried = replace(batch.costs, engine=replace(batch.costs.engine, launch_s=0.0))
    pace = pace_of(frame, [unhurried.step(shards, work).seconds for shards, work in batch.steps(frame)], added)
    loop = loop_of(frame, pace, added)
    times, begun = {}, time.process_time()
    rest = settled(frame, pace, added)
    times["in the mean"] = MeanTimes(rest.ttft_s, rest.tpot_s), time.process_time() - begun
    begun = time.process_time()
    replayed = simulate_loops(loop)
    times["replayed"] = replayed, time.process_time() - begun
    begun = time.process_time()
    times["simulated"] = simulated(loop), time.process_time() - begun
    return times


def simulated(loop: ClosedLoops) -> MeanTimes:
    """Loops of the estimator as runs of the simulator."""
    rows = (taken(loop, run) for run in range(len(loop.clients)))
    means = [means_of({name: float(value) for name, value in asdict(row).items()}) for row in rows]
    return MeanTimes(*np.array(means).T)


def means_of(loop: dict[str, float]) -> tuple[float, float]:
    """Mean TTFT and TPOT of one loop."""
    result, apart = simulated_run(loop), loop["disaggregated"] > 0.0
    tpot_s = float(np.nanmean(result.tpot_s)) if loop["osl"] >= 2.0 else 0.0
    batch = min(loop["clients"] / loop["decode_ranks"], max(int(loop["most_decoding"]), 1))
    step_s = loop["base_s"] + loop["slope_s"] * batch
    looks = 0.0 if apart else (loop["poll_steps"] - 1.0) / 2.0 + loop["hold_steps"] + loop["output_steps"]
    tokens = loop["isl"] * (1.0 - loop["spread"] / 2.0)
    way_s = loop["frontend_s"] + loop["frontend_token_s"] * tokens + loop["arrival_s"]
    return float(np.mean(result.ttft_s)) + way_s + looks * step_s, tpot_s


def simulated_run(loop: dict[str, float], seed: int = 0, *, delayed: bool = False) -> SimulationResult:
    """One loop in the simulator, lengths drawn as the replay draws them, or of another seed.

    Where they are `delayed`, requests take their time on the way to the engine, which is no part of their own times.
    """
    apart, most = loop["disaggregated"] > 0.0, max(int(loop["most_decoding"]), 1)
    clients = math.ceil(loop["clients"] / (1.0 if apart else loop["decode_ranks"]))
    count = int(max(loop["requests_per_client"] * clients, LEAST_REQUESTS))
    count = max(MOST_REQUESTS, 2 * clients) if count > MOST_REQUESTS else count
    count = OPEN_REQUESTS if loop["rate_per_s"] else count
    return simulate(
        _fleet(loop, apart, most, seed),
        _requests({**loop, "arrival_s": loop["arrival_s"] * delayed}, clients, count, most, seed),
    )


def _fleet(loop: dict[str, float], apart: bool, most: int, seed: int) -> Fleet:
    budget, skew = max(int(loop["step_tokens"]), 1), _factors(loop["jitter"], seed)
    both = _decoding_grid(loop, most)
    if not apart:
        policy, cache = "prefill-first" if loop["prefill_first"] else "mixed", int(min(loop["cache_tokens"], UNLIMITED))
        rank = Instance(both, cache, policy=policy, token_budget=budget, most_sequences=most)
        return Fleet((rank,), skew=skew)
    alone = _grid(loop, most)
    first = Instance(alone, UNLIMITED, role="prefill", token_budget=budget, most_sequences=most)
    last = Instance(both, UNLIMITED, role="decode", most_sequences=most)
    ranks, members, decoding = (int(loop[name]) for name in ("prefill_ranks", "prefill_members", "decode_ranks"))
    groups = (members,) * (ranks // members) + (1,) * decoding
    return Fleet((first,) * ranks + (last,) * decoding, skew=skew, handover_s=loop["moved_s"], groups=groups)


def _factors(jitter: float, seed: int) -> tuple[float, ...]:
    """By which steps are longer or shorter, one after another: lognormal of mean 1."""
    deviation = math.sqrt(math.log1p(jitter**2))
    draws = np.random.default_rng((seed, 1)).normal(-(deviation**2) / 2.0, deviation, REPLAY_DRAWS)
    return tuple(np.exp(draws).tolist()) if jitter else ()


def _decoding_grid(loop: dict[str, float], most: int) -> StepGrid:
    """Steps that decode; those of batches beyond the largest graph are no shorter than their launches."""
    grid = _grid(loop, most, base_s=loop["base_s"], sequence_s=loop["slope_s"])
    if loop["graph_batch"] >= most:
        return grid
    batches, beyond = np.arange(most + 1.0), int(loop["graph_batch"]) + 1
    decode_s = grid.decode_s.copy()
    decode_s[beyond:] = np.maximum(decode_s[beyond:], loop["eager_s"])
    more_s = (decode_s - grid.decode_s)[:, :1, None, None]
    plain_s = grid.mixed_s[:1] + batches[:, None, None, None] / most * (grid.mixed_s[1:] - grid.mixed_s[:1])
    return replace(grid, decode_s=decode_s, batches=batches, mixed_s=plain_s + more_s)


def _grid(loop: dict[str, float], most: int, **decoding: float) -> StepGrid:
    """Step times of a rank; with `joint_s`, though it is nothing, no step with prompts is shorter than its launches."""
    grid = StepGrid.affine(token_s=loop["token_s"], prefill_s=loop["start_s"], most_sequences=most, **decoding)
    if not loop["least_s"]:
        return grid
    return replace(grid, joint_s=np.zeros(2), rank_tokens=np.array([0.0, 1.0]), least_s=np.full(2, loop["least_s"]))


def _requests(loop: dict[str, float], clients: int, count: int, most: int, seed: int) -> Requests:
    """Requests of lengths drawn as the replay draws them."""
    draws = np.random.default_rng(seed)
    prompts, answers = (draws.random(REPLAY_DRAWS)[np.arange(count) % REPLAY_DRAWS] for _ in range(2))
    isl = loop["isl"] * (1.0 - loop["spread"] * prompts)
    osl = np.floor(loop["osl"] * (1.0 - loop["osl_spread"] * answers))
    isl, osl = np.maximum(np.rint(isl), 1.0), np.maximum(osl, 1.0)
    if loop["rate_per_s"]:
        ranks = 1.0 if loop["disaggregated"] else loop["decode_ranks"]
        return Requests.open_stream(np.cumsum(draws.exponential(ranks / loop["rate_per_s"], count)), isl, osl)
    think_s = draws.exponential(loop["arrival_s"], count) if loop["arrival_s"] else 0.0
    requests = Requests.closed_loop(isl, osl, clients=clients, think_s=think_s)
    batch = min(loop["clients"] / loop["decode_ranks"], most)
    answer_s = loop["osl"] * (loop["base_s"] + loop["slope_s"] * batch) + batch * loop["token_s"] * loop["isl"]
    first = np.arange(count) < requests.num_open
    start_s = np.where(first, loop["staggered"] * answer_s * np.arange(count) / clients, 0.0)
    return replace(requests, arrival_s=start_s)


if __name__ == "__main__":
    sys.exit(main())
