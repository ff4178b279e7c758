"""Models that only score: cut as the actor is, in host memory between their turns where they leave no room for it."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from planner.api import solve
from planner.check import check_plan
from planner.costs.training.config import USABLE_SHARE
from planner.documents.read import parse_document
from planner.emit.registry import emit
from planner.errors import Infeasible, PlannerError
from planner.kinds.rl.curves.beside import modelled_trainers
from planner.kinds.rl.curves.shapes import Lengths, stages_of
from planner.kinds.rl.curves.training import Trainer
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.drawn import draw_periods, longest_sample
from planner.kinds.rl.names import BETWEEN_TURNS, OFFLOADED
from planner.kinds.rl.setting import read_setting
from planner.load.problems import resolve_document
from planner.plan.schema import Envelope
from planner.rl.curves import NEVER_FITS


def problem(model: str, nodes: int, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    """GRPO with a reference on nodes of eight GPUs."""
    return {
        "schema": "planner.problem/1",
        "kind": "rl",
        "models": {"policy": {"name": model}},
        "cluster": {"pools": [{"gpu": "h100_sxm", "nodes": nodes}]},
        "workloads": [{"input_tokens": 200, "output_tokens": {"mean": 550, "cv": 0.5}}],
        "objective": {"minimize": "iteration_time"},
        "options": {
            "algorithm": "grpo", "prompts": 32, "samples_per_prompt": 16, "max_output_tokens": 1536,
            "reference": "policy", "iterations": 1, **options,
        },
    }  # fmt: skip


def solved(document: dict[str, Any]) -> Envelope:
    return solve(resolve_document(parse_document(json.dumps(document), "problem.json"), Path()))


@cache
def large() -> Envelope:
    """671B parameters with a reference on 32 nodes, as public recipes train them (16 stages, experts over 16 ranks)."""
    apart = {"arrangements": ["disaggregated"], "training_pp": [16], "generation_tp": [8]}
    return solved(problem("deepseek-ai/DeepSeek-V3", 64, max_staleness=1, **apart))


def trainers(document: dict[str, Any]) -> list[Trainer]:
    setting = read_setting(resolve_document(parse_document(json.dumps(document), "problem.json"), Path()))
    periods = draw_periods(setting.resolved.problem, setting.options)
    batches = [batch for period in periods for batch in period]
    lengths = Lengths.of(batches, longest_sample(setting.resolved.problem, setting.options, batches))
    return [each for each in modelled_trainers(setting, setting.pools[0], lengths) if each.option.min_dp < NEVER_FITS]


def test_a_reference_of_671b_is_cut_as_the_actor_on_the_actors_ranks() -> None:
    decision = RlDecision.model_validate(large().decision)
    actor, reference = (next(role for role in decision.roles if role.name == name) for name in ("actor", "reference"))
    assert reference.parallelism == actor.parallelism
    ranks = {block.role: block.model_dump(exclude={"role"}) for block in decision.placement}
    assert ranks["reference"] == ranks["actor"]
    assert [f for f in check_plan(large(), decision) if not f.ok] == []


def test_what_lies_in_host_memory_is_launched_so_or_refused() -> None:
    apart = {"arrangements": ["disaggregated"], "generation_tp": [1], "training_tp": [2], "training_pp": [1]}
    plan = solved(problem("Qwen/Qwen3-14B", 2, max_staleness=1, **apart))
    decision = RlDecision.model_validate(plan.decision)
    assert next(role for role in decision.roles if role.name == "reference").limits == {BETWEEN_TURNS: "host"}
    assert [f for f in check_plan(plan, decision) if not f.ok] == []
    text = "".join(emit(plan, decision, "verl").values())
    assert "actor_rollout_ref.ref.megatron.param_offload=True" in text
    assert "actor_rollout_ref.actor.megatron.param_offload=False" in text
    with pytest.raises(PlannerError, match="AReaL keeps `reference` on the GPUs") as refused:
        emit(plan, decision, "areal")
    assert refused.value.hint == "solve with `launcher: areal`, or use the target `nemo-rl` or `verl`"
    assert emit(plan, decision, "nemo-rl")
    ranked = decision.model_copy(update={"dispatch": "longest_first"})
    with pytest.raises(PlannerError, match="no launcher hands out samples by predicted length") as unsorted:
        emit(plan, ranked, "verl")
    assert "`length_error`" in unsorted.value.hint


@pytest.mark.parametrize(("model", "nodes"), [("Qwen/Qwen3-8B", 1), ("Qwen/Qwen3-32B", 4)])
def test_every_trainer_has_room_in_training_and_while_its_reference_is_in_turn(model: str, nodes: int) -> None:
    """By the definition: what stays on a device, and what its turn adds."""
    offloaded = 0
    for trainer in trainers(problem(model, nodes)):
        assert trainer.config is not None
        (reference,) = trainer.helpers
        usable = trainer.config.machine.memory_bytes * USABLE_SHARE
        memory = trainer.memory(trainer.option.min_dp)
        assert reference.weights_bytes == pytest.approx(float(memory.weights_R.max()), rel=0.2)
        assert float(memory.total_R.max()) + reference.kept_bytes <= usable
        assert float(memory.state_R.max()) + reference.weights_bytes <= usable
        if trainer.option.min_dp > 1:
            smaller = trainer.memory(trainer.option.min_dp - 1)
            in_turn = float(smaller.state_R.max()) + reference.weights_bytes
            assert max(float(smaller.total_R.max()) + reference.kept_bytes, in_turn) > usable
        offloaded += trainer.option.label.endswith(OFFLOADED)
    assert offloaded > 0


def _by_degrees(document: dict[str, Any]) -> dict[str, list[tuple[bool, bool, int]]]:
    """Of each cut of the actor: whether all is computed again, the reference lies on the host, and least replicas."""
    known: dict[str, list[tuple[bool, bool, int]]] = {}
    for trainer in trainers(document):
        option = trainer.option
        parts, again = option.label.removesuffix(OFFLOADED).rsplit("-", 1)
        row = (again == "full", option.label.endswith(OFFLOADED), option.min_dp)
        known.setdefault(f"tp{option.tp} pp{option.pp} {parts}", []).append(row)
    return known


def test_a_reference_in_host_memory_is_an_option_only_where_it_gives_room() -> None:
    known = _by_degrees(problem("Qwen/Qwen3-32B", 4)).values()
    assert any(len({host for _, host, _ in rows}) == 2 for rows in known)
    for rows in known:
        for again, host, least in rows:
            kept = [(other, number) for other, on_host, number in rows if not on_host]
            assert not (host and any(other <= again and number <= least for other, number in kept))


def test_everything_is_computed_again_where_that_needs_fewer_replicas() -> None:
    """An actor that fits as it is on several replicas alone is an option of fewer of them too."""
    known = _by_degrees(problem("Qwen/Qwen3-32B", 4)).values()
    fewer = 0
    for rows in known:
        for host in (False, True):
            least = {again: number for again, on_host, number in rows if on_host is host}
            assert len(least) == len([row for row in rows if row[1] is host])
            if len(least) == 2:
                assert least[True] < least[False]
                fewer += 1
    assert fewer > 0


def test_the_nearest_number_of_gpus_is_one_that_works() -> None:
    with pytest.raises(Infeasible) as refused:
        solved(problem("Qwen/Qwen3-235B-A22B", 2))
    (conflict,) = refused.value.conflict
    assert conflict["nearest"] == "64 GPUs"
    assert trainers(problem("Qwen/Qwen3-235B-A22B", 8))
    assert not trainers(problem("Qwen/Qwen3-235B-A22B", 4))


@pytest.mark.parametrize(
    ("layers", "pp", "stages"),
    [
        (64, 4, (16, 16, 16, 16)),
        (94, 8, (11, 12, 12, 12, 12, 12, 12, 11)),
        (61, 8, (7, 8, 8, 8, 8, 8, 8, 6)),  # as slime's example of DeepSeek-R1 says
        (61, 16, (3, *[4] * 14, 2)),  # as NeMo-RL's recipes of DeepSeek-V3 say
        (28, 16, ()),
        (33, 2, (17, 16)),
    ],
)
def test_stages_between_the_ends_have_as_many_layers(layers: int, pp: int, stages: tuple[int, ...]) -> None:
    assert stages_of(layers, pp) == stages
    assert sum(stages) in (layers, 0)


def test_training_is_priced_and_held_in_memory_at_a_sample_at_the_cut_off() -> None:
    document = problem("Qwen/Qwen3-8B", 1)
    document["workloads"] = [{"input_tokens": 200, "output_tokens": {"mean": 500, "cv": 1.0}}]
    for trainer in trainers(document):
        assert trainer.config is not None
        assert trainer.config.micro_batch * trainer.config.sequence_tokens == 200 + 1536
        assert trainer.option.micro_tokens == (200 + 1536) * trainer.inner_dp
