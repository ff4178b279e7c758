"""`--alternatives 20` beside a list of all plans of small problems, ranked by what distinct means.

    python benchmarks/alternatives.py [--quick] [--only KIND] [--seed 0] [--problems 20]

Prints, for each kind (and form of placements), on how many problems all objectives of the ranking are those of the list
(`tests/oracles/ranked_plans.py` says how plans are listed), how many plans these have, and the CPU seconds of both. The
trivial answer beside: the best plan, and what its certificate names as next best.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "oracles"))

from ranked_plans import KINDS, MAXIMISED, Json, by_definition, resolved

from planner.alternatives.ranking import alternatives
from planner.api import solve
from planner.errors import Infeasible
from planner.explain.stated import other_plans
from planner.progress import Limits

MOST = 20
TOLERANCE = 1e-6
SPREAD_TOLERANCE = 3e-4  # above their bound, at which searches of expert layouts stop


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="two problems of each")
    parser.add_argument("--only", choices=[*KINDS], default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problems", type=int, default=20)
    given = parser.parse_args()
    number = 2 if given.quick else given.problems
    with tempfile.TemporaryDirectory() as folder:
        for kind in [given.only] if given.only else KINDS:
            compare(kind, range(given.seed, given.seed + number), Path(folder))


def compare(kind: str, seeds: range, folder: Path) -> None:
    """Prints how a kind fares."""
    make, plans_of = KINDS[kind]
    right = trivial = plans = asked = 0
    ranked_s = listed_s = 0.0
    for seed in seeds:
        for attempt in range(50):
            draw = random.Random(f"{kind} {seed} {attempt}")
            data: Json = make(draw, folder) if kind == "experts" else make(draw)
            (goal,) = data["objective"].values()
            started = time.process_time()
            wanted = by_definition(plans_of(data), MOST, maximised=goal in MAXIMISED)
            listed_s += time.process_time() - started
            if wanted:
                break
        asked += 1
        problem = resolved(data)
        started = time.process_time()
        try:
            told = [plan.certificate.objective.value for plan in alternatives(problem, MOST, Limits()).plans]
        except Infeasible:
            told = []
        ranked_s += time.process_time() - started
        plans += len(wanted)
        tolerance = SPREAD_TOLERANCE if kind == "experts" else TOLERANCE
        same = alike(told, wanted, tolerance)
        right += same
        trivial += alike(next_best(problem, len(wanted)), wanted, tolerance)
        if not same:
            print(f"  {kind} {seed}: {shown(told)} for {shown(wanted)}", flush=True)
    print(
        f"{kind}: {right} of {asked} rankings equal ({plans} plans; best and next best of the certificate: {trivial}), "
        f"{ranked_s:.1f} CPU-s, lists {listed_s:.1f}",
        flush=True,
    )


def next_best(problem: Any, most: int) -> list[float | None]:  # noqa: ANN401 - a problem
    """The objectives of the best plan and of those that its certificate names."""
    try:
        best = solve(problem, level="static")
    except Infeasible:
        return []
    values = [float(str(other["objective"])) for other in other_plans(best) if other.get("objective") is not None]
    values.sort(reverse=best.certificate.objective.sense == "maximize")
    return [best.certificate.objective.value, *values][:most]


def alike(told: list[float | None], wanted: list[float], tolerance: float) -> bool:
    return len(told) == len(wanted) and all(
        value is not None and abs(value - other) <= tolerance * max(abs(other), 1.0)
        for value, other in zip(told, wanted, strict=True)
    )


def shown(values: Any) -> str:  # noqa: ANN401 - numbers
    return "[" + ", ".join(f"{value:.6g}" for value in values) + "]"


if __name__ == "__main__":
    main()
