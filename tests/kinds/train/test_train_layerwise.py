"""Strategies mixed by layer: the best of all mixes, within memory, part of what a plan decides, checked and refused."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from broken_plans import failing
from train_problems import job, problem

from planner.api import solve
from planner.costs.training.config import RecomputeConfig
from planner.emit.registry import emit
from planner.errors import Infeasible, PlannerError
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.evaluation.choice import Strategy
from planner.kinds.train.evaluation.evaluate import evaluate
from planner.kinds.train.evaluation.evaluation import Evaluation, fits
from planner.kinds.train.evaluation.mixes import LayerwiseSpace, evaluate_mix
from planner.kinds.train.job import TrainJob
from planner.kinds.train.search.layerwise import StrategyOptions, plan_layers
from planner.kinds.train.search.one_pool import OnePoolSearch
from planner.plan.schema import Envelope
from planner.progress import Limits

QWEN = "Qwen/Qwen2.5-7B"
FEW: dict[str, Any] = {
    "tp": [1, 2],
    "cp": 1,
    "zero_stage": [1, 3],
    "recompute": ["none", "full"],
    "micro_batch": [2, 4],
}


def _small(layers: int, memory_utilisation: float, **search: Any) -> TrainJob:  # noqa: ANN401
    """The first layers of a model on 8 GPUs, with few strategies and little memory."""
    data = problem(QWEN, nodes=1, global_batch=32, memory_utilisation=memory_utilisation, search=FEW | search)
    whole = job(data)
    return replace(whole, arch=replace(whole.arch, layers=whole.arch.layers[:layers]))


def test_items_at_work_hold_more_with_zero_3_and_with_full_recomputation() -> None:
    options = StrategyOptions(LayerwiseSpace(_small(3, 0.9), 1, 1, "ring", 8, 32))
    costs = options.costs
    for state, strategies in enumerate(options.strategies):
        for option, (zero, mode) in enumerate(strategies):
            plain = options.space.table(options.degrees[state]).work(1, RecomputeConfig())
            again = mode.recompute.granularity == "full"
            assert (costs.work_GO[state, option] > plain.layer_bytes) == (zero == 3 or again)
            assert (costs.loss_GO[state, option] > plain.loss_bytes) == (zero == 3)
    forward, *backward = options.space.table(1).pass_K3[0]
    assert costs.forward_share >= forward / (forward + sum(backward)) > 0.2


def _every_mix(small: TrainJob, counts: tuple[int, ...]) -> Iterator[Evaluation]:
    """Every strategy of every layer for every size of micro-batch, those that fit."""
    ranks = small.num_gpus // len(counts)
    for sequences in (2, 4, 8, 16, 32):
        space = LayerwiseSpace(small, len(counts), 1, "ring", ranks, sequences)
        able = [tp for tp in (1, 2) if sequences * tp % ranks == 0 and sequences * tp // ranks in (2, 4)]
        options = [
            Strategy(tp, ranks // tp, zero, mode.recompute)
            for tp in able
            for zero in (1, 3)
            for mode in space.table(tp).modes
        ]
        for chosen in itertools.product(options, repeat=sum(counts)):
            mix = evaluate_mix(space, counts, chosen)
            if fits(mix):
                yield mix


def test_activations_change_between_two_tp_by_an_all_to_all_of_the_wider() -> None:
    small = _small(2, 0.75, pp=1)
    space = LayerwiseSpace(small, 1, 1, "ring", 8, 16)
    rates, machine = small.rates, small.machine
    sent_bytes = 16 * small.options.sequence_tokens / 8 * 3584 * 2  # of a GPU, hidden size 3584 in bf16
    wide_s = 3 / 4 * sent_bytes / machine.link_bytes_per_s / rates.get("link.ep", machine.generation)
    assert space.change_s(2, 4) == pytest.approx(wide_s + rates.get("start.ep"))
    assert space.change_s(4, 2) == space.change_s(2, 4)
    assert space.change_s(4, 4) == 0.0


@pytest.mark.parametrize("memory_utilisation", [0.75, 0.3, 0.22])
def test_the_mix_of_one_stage_is_the_best_of_all_mixes(memory_utilisation: float) -> None:
    small = _small(2, memory_utilisation, pp=1)
    best = min(mix.step_s for mix in _every_mix(small, (2,)))
    plan = plan_layers(small)
    assert plan.best is not None
    assert fits(plan.best)
    assert plan.value == pytest.approx(best, rel=1e-9)
    assert plan.bound == pytest.approx(best, rel=1e-9)


def test_no_mix_of_two_stages_beats_the_bound_and_the_plan_is_near_it() -> None:
    small = _small(2, 0.3, pp=2)
    best = min(mix.step_s for mix in _every_mix(small, (1, 1)))
    plan = plan_layers(small)
    assert plan.bound <= best * (1 + 1e-9)
    assert best <= plan.value * (1 + 1e-9)
    assert plan.value <= 1.05 * plan.bound


def test_one_strategy_for_all_layers_costs_no_less_as_a_mix() -> None:
    best = (
        OnePoolSearch(job(problem(QWEN, global_batch=64, search={"cp": 1, "pp": 1, "zero_stage": 1})), Limits())
        .run()
        .best
    )
    assert best is not None
    choice = best.choice
    space = LayerwiseSpace(choice.table.job, 1, 1, "ring", choice.num_gpus, choice.dp * choice.table.shape.micro_batch)
    strategy = Strategy(choice.table.shape.tp, choice.dp, choice.zero_stage, choice.mode.recompute)
    mixed = evaluate_mix(space, (28,), (strategy,) * 28)
    plain = evaluate(choice, (28,))
    assert plain.step_s <= mixed.step_s * (1 + 1e-9)
    assert mixed.step_s == pytest.approx(plain.step_s, rel=0.01)
    assert np.all(mixed.memory.total_R == pytest.approx(plain.memory.total_R, rel=1e-9))


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    data = problem(QWEN, nodes=8, global_batch=256, sequence_tokens=8192, memory_utilisation=0.13)
    data["options"]["search"] = {"cp": 1, "layerwise": True}
    return solve(data).model_dump(mode="json", by_alias=True)


def test_a_problem_that_asks_for_it_gets_the_mix_where_it_is_faster(plan: dict[str, Any]) -> None:
    decision = TrainDecision.model_validate(plan["decision"])
    assert len(decision.layer_runs) > 1
    assert sum(run.layers for run in decision.layer_runs) == 28
    certificate = plan["certificate"]
    assert certificate["gap"] < 0.02
    assert certificate["next_best"]["loss"] > 0.02  # the best plan with one strategy for all layers
    assert "strategies_by_layer" in certificate["axes"]


def test_one_strategy_is_kept_where_memory_binds_nothing() -> None:
    options = {"global_batch": 16, "sequence_tokens": 2048, "reduce_gradients": "bf16", "choice": "fastest"}
    solved = solve(problem(QWEN, nodes=2, search={"layerwise": True}, **options))
    assert not solved.decision["layer_runs"]
    assert solved.certificate.status == "optimal"


def test_strategies_of_28_layers_on_64_gpus_are_solved_for_few_of_their_cuts() -> None:
    """Its CPU time is held to a second by benchmarks/training_search.py."""
    tight = job(problem(QWEN, nodes=8, global_batch=256, sequence_tokens=8192, memory_utilisation=0.25))
    mixes = plan_layers(tight)
    assert mixes.best is not None
    assert 0 < mixes.solved < 0.2 * mixes.cuts


def test_a_model_that_fits_under_no_strategy_is_refused() -> None:
    with pytest.raises(Infeasible):
        solve(problem(QWEN, nodes=1, global_batch=8, memory_utilisation=0.1, search={"layerwise": True}))


def test_experts_have_no_strategies_by_layer() -> None:
    with pytest.raises(PlannerError, match="has experts, which") as raised:
        solve(problem("Qwen/Qwen3-30B-A3B", search={"layerwise": True}))
    assert "layerwise" in str(raised.value)


def _run(data: dict[str, Any], **fields: Any) -> None:  # noqa: ANN401
    data["decision"]["layer_runs"][-1].update(fields)


EDITS: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a strategy that recomputes less": (lambda d: _run(d, recompute="none", modules=[]), "restated.predictions"),
    "ranks that do not add up": (lambda d: _run(d, tp=2, dp=64), "train.layer_runs"),
    "a layer without a strategy": (lambda d: d["decision"]["layer_runs"].pop(), "train.layer_runs"),
    "heads that a layer's tp does not divide": (lambda d: _run(d, tp=16, dp=4), "train.layer_runs"),
    "a group that no strategy has": (lambda d: d["decision"]["groups"][0].update(stride=7), "train.groups"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_mix_is_priced_again_by_the_check(plan: dict[str, Any], name: str) -> None:
    assert not failing(plan)
    edit, rule = EDITS[name]
    copy = Envelope.model_validate(plan).model_dump(mode="json", by_alias=True)
    edit(copy)
    assert rule in failing(copy)


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge", "torchtitan", "deepspeed", "torchrun", "slurm"])
def test_launchers_refuse_strategies_by_layer(plan: dict[str, Any], target: str) -> None:
    envelope = Envelope.model_validate(plan)
    with pytest.raises(PlannerError, match="layers have strategies of their own"):
        emit(envelope, TrainDecision.model_validate(envelope.decision), target)
