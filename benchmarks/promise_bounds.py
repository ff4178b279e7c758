"""Proven bounds of serving problems beside verified plans, and verified plans beside all plans of small problems.

python benchmarks/promise_bounds.py                gaps of 10 problems of each of two models, all plans of 20 problems
python benchmarks/promise_bounds.py --quick        3 problems of each model, and 2 of all plans
python benchmarks/promise_bounds.py --gaps-only --problems 5 --seed 7

Gaps are |bound - objective| / objective of verified plans, problems those of `benchmarks/promises.py` whose requests
arrive with a CV of 1. Trivial answers beside them: the bound without limits (roofline times of the best batches), and
the optimum of steady state, which its own model proves and simulation does not.

All plans: every shape, batch and chunk of colocated engines on 8 GPUs, as many instances as there is room for, with the
cache that the smallest activations of the shape leave (mixed types, and prefill apart from decode, are left out).
Each is simulated on the same streams as the verified plan, first at an objective 2 % better than that plan's, and where
it keeps its limits there, at higher ones; best is what the best of them keeps.
"""

import argparse
import dataclasses
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from promises import problem

from planner.api import solve
from planner.errors import Infeasible, PlannerError
from planner.kinds.serve.bounds.bound import bound_of_types, proven_bound
from planner.kinds.serve.bounds.demands import Workload, workloads_of
from planner.kinds.serve.bounds.engines import EngineType, engine_types
from planner.kinds.serve.bounds.types import type_bound
from planner.kinds.serve.simulated.load_streams import drawn
from planner.kinds.serve.steady.points import Tally, make_points
from planner.kinds.serve.steady.search import ServeSetting, prepare
from planner.load.problems import load_problem
from planner.problem.resolve import Resolved
from planner.simulate.fleet.instances import Fleet
from planner.simulate.goodput.rate import goodput
from planner.simulate.judge.limits import judge_runs
from planner.simulate.run.engine import simulate
from planner.simulate.run.mixture import Mixture

MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-32B")
BETTER = 1.02
STREAM_REQUESTS = 3_000
SURE_REQUESTS = 20_000
STREAM_SEED = 40_000


def problems(seed: int, model: str, *, most_gpus: int, modes: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Problems of one model whose requests arrive with a CV of 1."""
    rng = random.Random(seed)
    while True:
        raw = problem(rng)
        (workload,) = raw["workloads"]
        small = raw["cluster"]["pools"][0]["gpus"] <= most_gpus
        if raw["models"]["m"]["name"] == model and small and workload.get("load", {}).get("arrival_cv", 1.0) == 1.0:
            yield raw if modes is None else {**raw, "options": {**raw["options"], "modes": modes}}


def resolved(raw: dict[str, Any], level: str) -> Resolved:
    """The problem at a level."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.json"
        path.write_text(json.dumps({**raw, "options": {**raw["options"], "judged_by": level}}))
        return load_problem(path)


def objective(raw: dict[str, Any], level: str) -> float | None:
    """What a level's plan is worth; None where it has none."""
    try:
        return solve(resolved(raw, level)).certificate.objective.value
    except (Infeasible, PlannerError):
        return None


def without_limits(setting: ServeSetting) -> float | None:
    """The bound from step times alone."""
    workloads = [
        Workload(each.share, each.input_tokens, each.output_tokens, (), None) for each in workloads_of(setting, (1.0,))
    ]
    types = []
    for engine in engine_types(setting, workloads):
        types.append(type_bound(engine, workloads, (0,), setting.targets[0].context_tokens, 0.0))
    return bound_of_types(setting, types, workloads).value if types else None


def print_gaps(seed: int, count: int) -> None:
    """A row for each problem, then medians by model."""
    for model in MODELS:
        gaps: list[float] = []
        free: list[float] = []
        steady: list[float] = []
        source = problems(seed, model, most_gpus=16)
        while len(gaps) < count:
            raw = next(source)
            verified, static = objective(raw, "verification"), objective(raw, "queueing")
            if verified is None:
                continue
            setting = prepare(resolved(raw, "queueing"))
            started = time.process_time()
            bound = proven_bound(setting)
            spent_s = time.process_time() - started
            maximising = "maximize" in raw["objective"]
            gap = bound.beside(verified, maximising=maximising)[1]
            trivial = without_limits(setting)
            gaps.append(math.inf if gap is None else gap)
            free.append(math.inf if trivial is None else abs(trivial - verified) / verified)
            steady.append(math.inf if static is None else abs(static - verified) / verified)
            print(
                f"{model.split('/')[1]:24s} {_words(raw)}  verified {verified:.4g}, bound {bound.value}, "
                f"gap {gaps[-1]:.1%}; without limits {free[-1]:.1%}; "
                f"steady state {steady[-1]:.1%} away; {spent_s:.1f} CPU-s",
                flush=True,
            )
        print(
            f"{model.split('/')[1]}: median gap {statistics.median(gaps):.1%} of {len(gaps)}; without limits "
            f"{statistics.median(free):.1%}; steady state's optimum is {statistics.median(steady):.1%} away, proven of "
            "its own model alone"
        )


def _words(raw: dict[str, Any]) -> str:
    (workload,), (pool,) = raw["workloads"], raw["cluster"]["pools"]
    slo = " ".join(f"{of.removesuffix('_s')} {name}" for name, limit in workload["slo"].items() for of in limit)
    modes = "+".join(mode[:2] for mode in raw["options"]["modes"])
    inputs, outputs = workload["input_tokens"], workload["output_tokens"]
    lengths = f"{inputs['mean']}/{outputs['mean']} cv {inputs['cv']}/{outputs['cv']}"
    return f"{pool['gpus']:2d} {pool['gpu']} {modes:5s} {lengths} {slo}"


def points_of(setting: ServeSetting, engine: EngineType) -> Iterator[tuple[int, int]]:
    """Batch and chunk of every point of the shape of an engine type that fits in memory."""
    costs = setting.costs_of_pool[engine.model, engine.pool]
    shapes, options = [engine.shape], setting.options
    points = make_points(
        "colocated", costs, shapes, options, setting.targets, Tally(), copies=1, release=setting.release
    )
    yield from ((int(batch), int(chunk)) for batch, chunk in zip(points.batch, points.chunk, strict=True))


def keeps(fleet: Fleet, mixture: Mixture, rate_per_s: float) -> bool:
    """Whether a stationary part of a run keeps every limit, waits not growing."""
    judgement = judge_runs([simulate(fleet, mixture.requests(rate_per_s))], mixture.slos)
    return not judgement.saturated and all(limit.margin >= 0.0 for limit in judgement.limits)


def best_of_all(raw: dict[str, Any], verified: float) -> tuple[float, int, int]:
    """The best objective that a colocated plan of one type keeps, how many there are, and how many were not excluded.

    A plan is excluded by the bound of its shape, or by a short run at `BETTER` times what the best has.
    """
    setting = prepare(resolved(raw, "queueing"))
    gpus, workloads = setting.resolved.pools[0].num_gpus, workloads_of(setting, (1.0,))
    short, long = (
        drawn(setting, (1.0,), count, count // 10, STREAM_SEED) for count in (STREAM_REQUESTS, SURE_REQUESTS)
    )
    best, plans, looked = verified, 0, 0
    for engine in engine_types(setting, workloads):
        count = gpus // engine.shape.devices
        bound = type_bound(engine, workloads, (0,), setting.targets[0].context_tokens, 0.0)
        most = bound_of_types(setting, [bound], workloads).value or 0.0
        members = engine.shape.dp * count
        for batch, chunk in points_of(setting, engine):
            plans += 1
            if most <= best * BETTER:
                continue
            instance = dataclasses.replace(engine.instance, most_sequences=batch, token_budget=chunk)
            overheads = setting.costs_of_pool[engine.model, engine.pool].costs.engine
            overhead_s = float(overheads.request_s(setting.resolved.workloads[0].input.mean_tokens))
            fleet = Fleet((instance,) * members, request_overhead_s=overhead_s, groups=(engine.shape.dp,) * count)
            if not keeps(fleet, short, best * BETTER * gpus) or not keeps(fleet, long, best * BETTER * gpus):
                continue
            looked += 1
            (draws,), (slo,) = long.draws, long.slos
            best = (
                goodput(
                    fleet, draws, slo, most_per_s=most * gpus, least_per_s=best * BETTER * gpus, tolerance=0.01
                ).rate_per_s
                / gpus
                or best
            )
    return best, plans, looked


def print_all(seed: int, count: int) -> None:
    """A row for each problem, then how many verified plans are more than 2 % behind."""
    behind, done = [], 0
    sources = [problems(seed + 1, model, most_gpus=8, modes=["colocated"]) for model in MODELS]
    while done < count:
        raw = next(sources[done % len(sources)])
        if "maximize" not in raw["objective"]:
            continue
        verified, static = objective(raw, "verification"), objective(raw, "queueing")
        if verified is None or static is None:
            continue
        started = time.process_time()
        best, plans, looked = best_of_all(raw, verified)
        done += 1
        behind.append(best / verified - 1.0)
        print(
            f"{raw['models']['m']['name'].split('/')[1]:24s} {_words(raw)}  verified {verified:.4g}, "
            f"best of {plans} plans {best:.4g} ({behind[-1]:+.1%}, {looked} kept more); "
            f"steady state claims {static:.4g}; {time.process_time() - started:.0f} CPU-s",
            flush=True,
        )
    print(f"{sum(each > BETTER - 1.0 for each in behind)} of {count} verified plans are more than 2 % behind the best")


def main() -> int:
    """Prints the gaps, then all plans."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 problems of each model, and 2 of all plans")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--problems", type=int, default=10, help="of each model, for the gaps")
    parser.add_argument("--small", type=int, default=20, help="problems all of whose plans are simulated")
    parser.add_argument("--gaps-only", action="store_true")
    parser.add_argument("--small-only", action="store_true")
    given = parser.parse_args()
    if not given.small_only:
        print_gaps(given.seed, 3 if given.quick else given.problems)
    if not given.gaps_only:
        print_all(given.seed, 2 if given.quick else given.small)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
