"""Splits of GPUs over modules against all splits, counted from the definition alone; bad input."""

import itertools
import math

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.solvers.modalities.split import Module, Share, SplitProblem, best_split, step_s
from planner.solvers.result import Status


def random_split(seed: int) -> SplitProblem:
    draws = np.random.default_rng(seed)

    def module(name: str, layers: int) -> Module:
        whole = float(draws.uniform(0.5, 5.0))
        seconds = {tp: whole / tp * float(draws.uniform(1.0, 1.3)) for tp in (1, 2) if tp == 1 or draws.random() < 0.8}
        sizes = float(draws.uniform(1, 30)), float(draws.uniform(0, 10))
        return Module(name, layers, seconds, *sizes, trained=bool(draws.random() < 0.7))

    sides = tuple(module(f"side-{turn}", 4) for turn in range(int(draws.integers(0, 3))))
    batch = int(draws.choice((4, 6, 8)))
    return SplitProblem(
        module("llm", int(draws.choice((2, 4)))),
        sides,
        gpus=int(draws.integers(4, 11)),
        global_batch=batch,
        micro_batch=int(draws.choice((1, 2))),
        memory_bytes=float(draws.uniform(30, 200)),
        network_bytes_per_s=float(draws.uniform(5, 50)),
    )


def seconds(problem: SplitProblem, split: tuple[Share, ...]) -> float:
    """The definition, module by module."""
    llm = split[0]
    if sum(share.tp * share.dp * share.pp for share in split) > problem.gpus:
        return math.inf
    if problem.global_batch % (problem.micro_batch * llm.dp) or problem.backbone.layers % llm.pp:
        return math.inf
    batches = problem.global_batch // (problem.micro_batch * llm.dp)
    warm, rates, sync = 0.0, [], 0.0
    for module, share in zip((problem.backbone, *problem.sides), split, strict=True):
        whole = problem.micro_batch * module.seconds_of_tp[share.tp]
        shards = share.tp * share.pp
        held = module.parameter_bytes * (3 if module.trained else 1) / shards
        held += module.parameter_bytes * 6 / (shards * share.dp) if module.trained else 0
        flight = min(share.pp, batches) if module is problem.backbone else problem.side_micro_batches
        held += problem.micro_batch * flight * module.activation_bytes / shards
        if held > problem.memory_bytes:
            return math.inf
        if module is problem.backbone:
            warm += whole
            rates.append(whole / share.pp)
        else:
            if share.dp % llm.dp and llm.dp % share.dp:
                return math.inf
            warm += whole * max(1, llm.dp / share.dp)
            rates.append(whole * llm.dp / share.dp)
        if module.trained:
            sent = 4 * (share.dp - 1) / share.dp * module.parameter_bytes / shards
            sync = max(sync, sent / problem.network_bytes_per_s)
    return warm + (batches - 1) * max(rates) + sync


def every_split(problem: SplitProblem) -> list[tuple[Share, ...]]:
    most = range(1, problem.gpus + 1)
    llm = [Share(tp, dp, pp) for tp in problem.backbone.seconds_of_tp for dp in most for pp in (1, 2, 4)]
    sides = [[Share(tp, dp) for tp in side.seconds_of_tp for dp in most] for side in problem.sides]
    return [split for split in itertools.product(llm, *sides) if sum(s.gpus for s in split) <= problem.gpus]


def test_the_best_split_is_that_of_all_splits() -> None:
    fitting = 0
    for seed in range(100):
        problem = random_split(seed)
        least = min((seconds(problem, split) for split in every_split(problem)), default=math.inf)
        result = best_split(problem)
        if least == math.inf:
            assert result.status is Status.INFEASIBLE
            continue
        fitting += 1
        assert result.status is Status.OPTIMAL
        assert result.solution is not None
        assert result.objective == pytest.approx(least, rel=1e-12)
        assert seconds(problem, result.solution) == pytest.approx(least, rel=1e-12)
        assert step_s(problem, result.solution) == result.objective == result.bound
    assert fitting >= 60


def test_more_gpus_and_memory_never_make_a_step_longer() -> None:
    import dataclasses

    for seed in range(30):
        problem = random_split(seed)
        more = dataclasses.replace(problem, gpus=problem.gpus + 3, memory_bytes=problem.memory_bytes * 1.5)
        before, after = best_split(problem).objective, best_split(more).objective
        assert before is None or (after is not None and after <= before * (1 + 1e-12))


def test_bad_input_is_refused_with_the_nearest_that_works() -> None:
    module = Module("llm", 2, {1: 1.0}, 1.0, 1.0)
    with pytest.raises(PlannerError, match="use a batch of 6"):
        SplitProblem(module, (), 4, 5, 2, 1.0, 1.0)
    with pytest.raises(PlannerError, match="no times"):
        Module("llm", 2, {}, 1.0, 1.0)
    with pytest.raises(PlannerError, match="no GPUs"):
        SplitProblem(module, (), 0, 4, 1, 1.0, 1.0)
