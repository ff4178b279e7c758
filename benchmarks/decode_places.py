"""Times to first token of disaggregated plans in steady state, with and without the wait for a place, beside simulated.

    python benchmarks/decode_places.py [--loads 20] [--seed 0]      # some half a second of a core for each load

Problems are drawn: three dense models, three GPUs, 4 or 8 of them, lengths and their spread, limits on the p95 of TTFT
and the mean TPOT; those without a plan are passed over. Each is solved at `--level static` on the roofline, and its
plan is simulated on 10,000 requests of its own. The wait for a place is that of `planner/kinds/serve/plan/places.py`,
at the mean and the p95; a p95 of both together is the root of the squares, as of wait and prefill elsewhere. The
trivial answer is the plan's own time, without the wait. Last: how many plans break their limit in simulation, and how
many of those the plan says break it by that wait alone.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import planner
from planner.documents.read import given_document
from planner.errors import Infeasible
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.plan.places import Places, place_assumptions
from planner.kinds.serve.steady.search import prepare, search
from planner.load.problems import resolve_document
from planner.progress import Limits
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import Traffic, simulate_plan

MODELS = ("Qwen/Qwen3-8B", "Qwen/Qwen3-32B", "meta-llama/Llama-3.1-70B")
GPUS = ("h100_sxm", "h200_sxm", "b200_sxm")
SHARE = 0.95
FEW = 3  # attention ranks that decode, at most


@dataclass(frozen=True, slots=True)
class Load:
    """One plan: seconds to the first token at the p95, and what it says of places."""

    title: str
    limit_s: float
    stated_s: float
    places_s: float  # the wait for one alone
    simulated_s: float
    told: bool  # that the wait alone breaks the limit

    @property
    def together_s(self) -> float:
        return float(np.hypot(self.stated_s, self.places_s))


def problem(seed: int) -> dict[str, Any]:
    """One of the drawn problems."""
    draw = np.random.default_rng(seed)
    lengths = {
        "input_tokens": {"mean": int(draw.choice([500, 1000, 2000, 4000])), "cv": float(draw.choice([0.0, 0.5, 1.0]))},
        "output_tokens": {"mean": int(draw.choice([200, 400, 800])), "cv": float(draw.choice([0.0, 0.5, 1.0]))},
    }
    slo = {"ttft": {"p95": f"{draw.choice([2, 4, 8])}s"}, "tpot": {"mean": f"{draw.choice([15, 25, 40])}ms"}}
    return {
        "schema": "planner.problem/1",
        "kind": "serve",
        "models": {"m": {"name": str(draw.choice(MODELS))}},
        "cluster": {"pools": [{"gpu": str(draw.choice(GPUS)), "gpus": int(draw.choice([4, 8]))}]},
        "workloads": [{**lengths, "slo": slo}],
        "costs": {"profiles": ["none"]},
        "objective": {"maximize": "goodput_per_gpu", "expected": False},
        "options": {"modes": ["disaggregated"]},
    }


def loads(seed: int) -> Iterator[Load]:
    """Plans of the drawn problems that decode on few ranks, without end."""
    for number in range(seed, seed + 100_000):
        given = problem(number)
        try:
            plan = planner.solve(given, level="static")
        except Infeasible:
            continue
        setting = prepare(resolve_document(given_document(given, "problem"), Path()))
        target, outcome = setting.targets[0], search(setting, setting.targets, Limits())
        decoding = [item for item in outcome.roles if item.candidate.function == "decode"]
        places = [Places.of(item, target, setting.options) for item in decoding]
        if sum(each.ranks for each in places) > FEW:
            continue
        run = simulate_plan(plan.envelope, ServeDecision.model_validate(plan.envelope.decision), Traffic(), Policies())
        said = {(each.metric, each.statistic): each.value for each in plan.envelope.predictions}
        title = f"{number:4d}  {', '.join(f'{each.ranks} x {each.number} at {each.taken:.2f}' for each in places)}"
        yield Load(
            title,
            target.ttft_limits[0].limit_s,
            said["ttft_s", "p95"],
            max(each.wait_s(SHARE) for each in places),
            float(np.nanquantile(run.result.ttft_s, SHARE)),
            any(place_assumptions(outcome.roles, setting.targets, setting.options)),
        )


def main() -> None:
    """Print every load, and how far both times are from the simulated one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--loads", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    made = []
    print("p95 of TTFT in s: the plan's, with the wait for a place, simulated; its limit")
    for load, _ in zip(loads(given.seed), range(given.loads), strict=False):
        made.append(load)
        print(f"  {load.title:34} {load.stated_s:6.2f} {load.together_s:7.2f} {load.simulated_s:7.2f}   "
              f"{load.limit_s:g}{'  told' * load.told}", flush=True)  # fmt: skip
    simulated = np.array([load.simulated_s for load in made])
    for title, times in (
        ("the plan's", [load.stated_s for load in made]),
        ("with the wait", [load.together_s for load in made]),
    ):
        off = np.abs(np.log(np.array(times) / simulated))
        print(f"{title}: off by a factor of {np.exp(np.median(off)):.2f} (median), {np.exp(off.max()):.2f} (most)")
    broken = [load for load in made if load.simulated_s > load.limit_s]
    told, others = (sum(load.told for load in part) for part in (broken, [x for x in made if x not in broken]))
    print(f"{len(broken)} break their limit, {told} of them told; told of {others} others")


if __name__ == "__main__":
    main()
