"""GPUs, tp, dp and pp of the modules of a multimodal model, each on a pool of its own."""

from pathlib import Path
from typing import Any

from case_kinds import CaseAnswer
from planner.solvers.modalities.split import Module, SplitProblem, best_split

BACKBONE = "llm"


def problem_of(case: dict[str, Any]) -> SplitProblem:
    """The modules as the case states them; the language model is the backbone."""
    modules = {
        each["name"]: Module(
            each["name"],
            int(each["layers"]),
            {int(tp): float(seconds) for tp, seconds in each["seconds_per_sample"].items()},
            float(each["parameter_bytes"]),
            float(each["activation_bytes_per_sample"]),
            bool(each["trained"]),
        )
        for each in case["modules"]
    }
    return SplitProblem(
        backbone=modules.pop(BACKBONE),
        sides=tuple(modules.values()),
        gpus=int(case["gpus"]),
        global_batch=int(case["global_batch"]),
        micro_batch=int(case["micro_batch"]),
        memory_bytes=float(case["hardware"]["memory_bytes"]),
        network_bytes_per_s=float(case["hardware"]["nic_bytes_per_s"]),
        side_micro_batches=int(case["side_micro_batches_in_flight"]),
    )


def solve(case: dict[str, Any], directory: Path) -> CaseAnswer:
    """The split with the shortest step, proven."""
    problem = problem_of(case)
    result = best_split(problem)
    if result.solution is None or result.objective is None:
        raise ValueError(f"no split of {problem.gpus} GPUs fits")
    backbone, *sides = result.solution
    answer = {BACKBONE: {"tp": backbone.tp, "dp": backbone.dp, "pp": backbone.pp}}
    answer |= {m.name: {"tp": share.tp, "dp": share.dp} for m, share in zip(problem.sides, sides, strict=True)}
    summary = ", ".join(f"{name} {share}" for name, share in answer.items())
    return CaseAnswer(answer, result.objective, result.bound, summary)
