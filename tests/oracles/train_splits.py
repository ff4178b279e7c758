"""Splits of GPUs over a language model and its networks: seeded small jobs, and the least step over every split."""

from itertools import product
from typing import Any

import numpy as np
from train_problems import every_plan, job, problem

from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.job import TrainJob
from planner.kinds.train.search.search import SearchResult
from planner.kinds.train.split.search import ApartSearch
from planner.kinds.train.split.sides import apart_of, sides_of
from planner.progress import Limits
from planner.solvers.modalities.split import Share

MODELS = ("Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-VL-4B-Instruct", "Qwen/Qwen3-VL-8B-Instruct")


def random_split_problem(seed: int) -> dict[str, Any]:
    """A job with a tower apart on at most eight GPUs: model, images, what is frozen, batch and degrees drawn."""
    draws = np.random.default_rng(seed)

    def some(values: tuple[int, ...]) -> list[int]:
        return sorted(int(v) for v in draws.choice(values, int(draws.integers(1, len(values) + 1)), replace=False))

    sizes = [{"width": int(draws.choice((224, 512, 1024))), "height": 448, "count": int(draws.integers(1, 5))}]
    frozen = ([], ["encoder"], ["encoder", "projector"])[int(draws.integers(3))]
    return problem(
        str(draws.choice(MODELS)),
        nodes=1,
        limits={"gpus": int(draws.integers(2, 9))},
        global_batch=int(draws.choice((4, 8, 12))),
        samples=[{"share": 1, "images": sizes}, *([{"share": 1}] if draws.random() < 0.5 else [])],
        frozen=frozen,
        search={
            "cp": 1,
            "tp": some((1, 2, 4)),
            "pp": some((1, 2)),
            "dp": some((1, 2, 3)),
            "micro_batch": some((1, 2)),
            "vpp": 1,
            "schedule": "1f1b",
            "zero_stage": int(draws.integers(2)),
            "recompute": str(draws.choice(("none", "full"))),
        },
    )


def least_and_result(seed: int) -> tuple[float, SearchResult]:
    """The least step of the seeded job over every split, infinite where none fits, and what the search says."""
    own = apart_of(job(random_split_problem(seed)))
    result = ApartSearch(own, Limits()).run()
    return min((split_s(plan, own) for plan in every_plan(own)), default=float("inf")), result


def split_s(plan: Evaluation, own: TrainJob) -> float:
    """The least step over all shares, by the definition."""
    choice = plan.choice
    sides, batches = sides_of(choice.table), choice.num_micro_batches
    rate = float(plan.busy_R.max()) / batches
    rest = plan.step_s - plan.pipeline_s - plan.exchange_s
    least = float("inf")
    every = [[Share(tp, dp) for tp in costs for dp in range(1, own.num_gpus + 1)] for costs in sides.costs]
    for shares in product(*every):
        gpus = choice.num_gpus + sum(share.tp * share.dp for share in shares)
        if gpus > own.num_gpus or any(s.dp % choice.dp and choice.dp % s.dp for s in shares):
            continue
        warm, rates, sync = plan.pipeline_s - (batches - 1) * rate, [rate], [plan.exchange_s]
        for share, module, costs in zip(shares, sides.problem.sides, sides.costs, strict=True):
            if choice.num_gpus % share.tp:
                break
            cost = costs[share.tp]
            held = 6 * cost.trained_elements + 12 * cost.trained_elements / share.dp + cost.frozen_bytes
            if held + 2 * cost.in_flight_bytes + cost.work_bytes > sides.problem.memory_bytes:
                break
            whole = sum(cost.pass_s)
            warm += whole * max(1.0, choice.dp / share.dp)
            rates.append(whole * choice.dp / share.dp)
            sent = 2 * (share.dp - 1) / share.dp * module.parameter_bytes * 2 / share.tp
            sync.append(sent / sides.problem.network_bytes_per_s if module.trained else 0.0)
        else:
            least = min(least, warm + (batches - 1) * max(rates) + max(sync) + rest)
    return least
