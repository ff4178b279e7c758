"""Whole `planner solve` processes of RL examples: user CPU, what is proven, and recipes beside the plan.

Usage: rl_plans.py [EXAMPLE ...]. The recipes are what a launch script does without a plan: everything on all GPUs in
turn, and half the GPUs each, with a node's GPUs as one generating replica and the fastest training that fits; over
training time, one plan throughout. Exits 1 where a process that finds sources and loops compiled takes more than 10 s
of user CPU, its plan is not certified, or a recipe beats it.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from processes import compiled_user_cpu_s

from planner.kinds.rl.formulate import formulate
from planner.kinds.rl.horizon import horizon_problem
from planner.kinds.rl.setting import read_setting
from planner.load.problems import load_problem
from planner.rl.evaluate import evaluate
from planner.rl.plan import GenerationGroup, RlPlan
from planner.rl.problem import RlProblem
from planner.rl.search.horizon import evaluate_horizon
from planner.rl.search.trainings import training_choices

CPU_LIMIT_S = 10.0
EXAMPLES = Path(__file__).parents[1] / "examples"


def recipes(problem: RlProblem) -> Iterator[tuple[str, RlPlan]]:
    """Every plan of each recipe that runs at all, by name."""
    node = max(option.tp for option in problem.generation)
    kinds = [option for option in problem.generation if option.tp == node]
    for name, placement, share in (("all in turn", "colocated", 1.0), ("half and half", "disaggregated", 0.5)):
        for mode in problem.modes:
            if mode.placement != placement:
                continue
            for choice in training_choices(problem):
                pool = problem.pool_of[choice.option.pool]
                gpus = int(pool.gpus * share)
                if choice.gpus != gpus:
                    continue
                for option in kinds:
                    if option.pool == pool.name and gpus % option.gpus == 0:
                        yield name, RlPlan(mode, (GenerationGroup(option, gpus // option.gpus),), choice)


def beside(path: Path) -> dict[str, float]:
    """The objective of each recipe, the best of its trainings: over all periods where the problem has several."""
    setting = read_setting(load_problem(path))
    problem, options = formulate(setting).problem, setting.options
    running = None if options.horizon is None else horizon_problem(setting.resolved.problem, options, problem, None)
    best: dict[str, float] = {}
    for name, plan in recipes(problem):
        if running is None:
            priced = evaluate(problem, plan)
            objective, broken = priced.objective, priced.broken
        else:
            throughout = evaluate_horizon(running, [plan] * len(running.periods))
            objective, broken = throughout.total, throughout.broken
        if not broken:
            best[name] = min(objective, best.get(name, objective))
    return best


def main(paths: list[Path]) -> int:
    bad = 0
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "plan.json"
            cpu_s = compiled_user_cpu_s("solve", path, "-o", out)
            certificate = json.loads(out.read_text(encoding="utf-8"))["certificate"]
        value = certificate["objective"]["value"]
        trivial = beside(path)
        rows = ", ".join(f"{name} {other:.4g} ({other / value - 1:+.0%})" for name, other in trivial.items())
        print(
            f"{path.stem:<24} {certificate['objective']['metric']:<18} {value:8.4g}  gap {certificate['gap']:.1e}  "
            f"{certificate['candidates']:>8} plans  {cpu_s:4.1f} s CPU | {rows or 'no recipe fits'}"
        )
        dominated = any(other < value * (1 - 1e-9) for other in trivial.values())
        bad += certificate["status"] != "optimal" or cpu_s > CPU_LIMIT_S or dominated
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]] or sorted(EXAMPLES.glob("rl-*.yaml"))))
