"""RL resource problems: `planner rl solve` beside the known optimum, its user CPU, and what recipes give.

Usage: rl.py FOLDER, with problems `p*.json` and `optimum.json`. Then problems made of these with other features, where
the proven bound stands in for the optimum. Exits 1 where a plan is more than 1 % above the optimum, not feasible, or
took more than 2 s of user CPU, in a process that finds sources and loops compiled.
"""

import json
import resource
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from inputs import exit_code, first_path
from processes import compiled_user_cpu_s
from rl_recipes import best_recipe

from planner.documents.read import load_document
from planner.interchange.rl_plan import read_plan
from planner.interchange.rl_problem import read_problem
from planner.rl.evaluate import evaluate
from planner.rl.problem import RlProblem
from planner.rl.rollouts.ranker import noisy_keys, recall
from planner.rl.search.search import solve
from planner.rl.trajectories import SampleBatch

CPU_LIMIT_S, MOST_ABOVE = 2.0, 1.01


def beside(problem: RlProblem, best: float) -> str:
    """How far the best recipe is above `best`, as people write it down and with its TP chosen by our evaluator."""
    parts = []
    for tuned in (False, True):
        recipe, value = best_recipe(problem, tuned=tuned)
        parts.append(f"{value / best - 1:+.1%} ({recipe})" if np.isfinite(value) else "none is feasible")
    return "   ".join(parts)


def shared_problems(folder: Path) -> bool:
    """Prints every problem of `folder` beside its optimum; whether all are as good and as fast as they must be."""
    known = json.loads((folder / "optimum.json").read_text(encoding="utf-8"))
    print(
        f"{'problem':32} {'optimum':>9} {'ours':>9} {'above':>7} {'gap':>6} {'CPU':>6}  recipe, and with its TP tuned"
    )
    good = True
    for name, entry in sorted(known.items()):
        path = folder / f"{name}.json"
        with tempfile.TemporaryDirectory() as scratch:
            written = Path(scratch) / "plan.json"
            cpu_s = compiled_user_cpu_s("rl", "solve", path, "--output", written)
            problem = read_problem(load_document(path))
            evaluation = evaluate(problem, read_plan(load_document(written), problem))
        solution = solve(problem)
        best = entry["objective"]
        print(
            f"{name:32} {best:9.3f} {evaluation.objective:9.3f} {evaluation.objective / best - 1:7.2%} "
            f"{solution.gap or 0:6.2%} "
            f"{cpu_s:5.2f}s  {beside(problem, best)}"
        )
        good &= evaluation.feasible and evaluation.objective <= MOST_ABOVE * best and cpu_s < CPU_LIMIT_S
    return good


def variants(folder: Path) -> dict[str, RlProblem]:
    """Problems with the features that the shared ones do not have, made of their curves and lengths."""
    given = {name[:2].strip("_"): read_problem(load_document(folder / f"{name}.json")) for name in _names(folder)}
    cheap = replace(given["p5"], objective="cost_per_iter")
    cap = 1.2 * (solve(given["p5"]).objective or 0.0)
    long_tail = given["p3"]
    ranked = tuple(
        replace(batch, rank_key_N=noisy_keys(batch.output_tokens_N.astype(float), 0.6, seed))
        for seed, batch in enumerate(long_tail.batches)
    )
    rollout = replace(
        long_tail,
        training=(),
        batches=ranked,
        max_groups=2,
        tail_fractions=(0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5),
        dispatch="predicted_longest_first",
        modes=given["p3"].modes[-1:],
        minibatches=1,
    )
    drifting = tuple(_scaled(given["p1"].batches[0], scale) for scale in np.linspace(0.4, 1.6, 6))
    return {
        "cost (p5)": cheap,
        "cost, capped at 1.2 x shortest": replace(cheap, max_iteration_s=cap),
        "rollout only, noisy predictor (p3)": rollout,
        "drift over six iterations (p1)": replace(given["p1"], batches=drifting),
        "all modes (p1)": replace(given["p1"], modes=given["p3"].modes),
    }


def _names(folder: Path) -> list[str]:
    return sorted(json.loads((folder / "optimum.json").read_text(encoding="utf-8")))


def _scaled(batch: SampleBatch, scale: float) -> SampleBatch:
    return replace(batch, output_tokens_N=np.maximum(1, (batch.output_tokens_N * scale).astype(np.int64)))


def made_problems(folder: Path) -> bool:
    """Prints the variants; whether all are solved to optimality in time."""
    header = f"\n{'made of these':36} {'ours':>9} {'gap':>6} {'CPU':>6} {'seen':>7} {'pruned':>8}"
    print(f"{header}  recipe, and with its TP tuned")
    good = True
    for name, problem in variants(folder).items():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        solution = solve(problem)
        cpu_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
        assert solution.objective is not None
        print(
            f"{name:36} {solution.objective:9.3f} {solution.gap or 0:6.2%} {cpu_s:5.2f}s "
            f"{solution.seen:7d} {solution.pruned:8d}  {beside(problem, solution.objective)}"
        )
        good &= (solution.gap or 0.0) <= 1e-9 and cpu_s < CPU_LIMIT_S
        for batch in problem.batches[:1]:
            if batch.rank_key_N is not None:
                reached = recall(batch.rank_key_N, batch.output_tokens_N.astype(float), 0.2)
                print(f"  (the predictor finds {reached:.0%} of the longest 20 %)")
    return good


def main(folder: Path) -> int:
    shared, made = shared_problems(folder), made_problems(folder)
    return int(not (shared and made))


if __name__ == "__main__":
    sys.exit(exit_code(main(first_path())))
