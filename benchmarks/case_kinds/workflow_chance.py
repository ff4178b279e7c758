"""Options of a graph's stages under a chance of lateness (Jolteon): chosen on scenarios that no judge has seen."""

from pathlib import Path
from typing import Any

import numpy as np

from case_kinds import CaseAnswer
from planner.arrays import Floats
from planner.solvers.workflow.chance import ChanceProblem, StageOptions, cheapest_options, least_limit_s, share_held

SCENARIOS = 40_000
SEED = 20_261_125  # of the scenarios that options are chosen on; the judge has its own


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """The cheapest configuration of every stage, proven over our scenarios; US dollars."""
    run_p = np.array(case["run_probability"])
    shape = (len(case["stages"]), len(case["steps"]), SCENARIOS)
    drawn_SJK = np.random.default_rng(SEED).choice(len(run_p), size=shape, p=run_p)
    stages = []
    for stage, drawn_JK in zip(case["stages"], drawn_SJK, strict=True):
        runs_ORJ = np.array(stage["seconds"])
        time_s_OK = np.sum([runs_ORJ[:, drawn_K, step] for step, drawn_K in enumerate(drawn_JK)], axis=0)
        mean_s_O = np.einsum("r,orj->o", run_p, runs_ORJ)
        stages.append(StageOptions(tuple(stage["parents"]), _cost_O(case, stage, mean_s_O), time_s_OK))
    problem = ChanceProblem(tuple(stages), case["latency_s"], case["probability"])
    result = cheapest_options(problem)
    if result.solution is None or result.objective is None:
        raise ValueError(f"no configuration is fast enough; none is below a limit of {least_limit_s(problem):g} s")
    held = share_held(problem, result.solution)
    return CaseAnswer(
        {"config": list(result.solution)}, result.objective, result.bound, f"holds in {held:.4f} of our scenarios"
    )


def _cost_O(case: dict[str, Any], stage: dict[str, Any], mean_s_O: Floats) -> Floats:
    """Dollars of a run of the stage under each configuration: memory by seconds, and a fee, for each function."""
    memory_mb_O, functions_O = np.array(stage["configs"], float).T
    count_O = functions_O if stage["parallel"] else np.ones_like(functions_O)
    return np.asarray(count_O * (memory_mb_O / 1024 * mean_s_O * case["usd_per_gb_s"] + case["usd_per_function"]))
