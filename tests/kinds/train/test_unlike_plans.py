"""Core attention apart, heads by sparsity and schedules by modality as plans: bounds, checks, refusals, bad input."""

import copy
from typing import Any

import pytest
from static_level import solve
from train_problems import problem

from planner.check import check_plan
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.explain.training import training_facts
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.options import TrainOptions
from planner.kinds.train.whole_run.documents import micro_batches_of, packed_sequences
from planner.plan.schema import Envelope
from planner.solvers.contexts.core_attention import operations

DOCUMENTS = [{"tokens": 32768, "share": 1}, {"tokens": 4096, "share": 4}, {"tokens": 1024, "share": 16}]
HEADS = [{"heads": 8, "sparsity": 0.95}, {"heads": 6, "sparsity": 0.6}, {"heads": 2, "sparsity": 0.1}]
IMAGES = [
    {"share": 1, "images": [{"width": 1024, "height": 1024, "count": 2}]},
    {"share": 1, "images": [{"width": 512, "height": 512}]},
    {"share": 1},
]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "core_attention": (
        "meta-llama/Llama-3.1-8B",
        {
            "global_batch": 8,
            "sequence_tokens": 32768,
            "task": "sft",
            "documents": DOCUMENTS,
            "core_attention_apart": {"tolerance": 0.1},
            "search": {"tp": 4, "dp": 4, "zero_stage": 1, "recompute": "full"},
        },
    ),
    "sparse_heads": (
        "Qwen/Qwen3-0.6B",
        {
            "global_batch": 4,
            "sequence_tokens": 65536,
            "sparse_heads": {"heads": HEADS, "gather_overhead": "1ms"},
            "search": {"cp": 8, "dp": 2, "zero_stage": 1, "context_parallel": "ring", "recompute": "full"},
        },
    ),
    "modality_schedule": (
        "Qwen/Qwen3-VL-4B-Instruct",
        {
            "global_batch": 8,
            "samples": IMAGES,
            "schedule_by_modality": True,
            "search": {"tp": 4, "pp": 2, "dp": 2, "cp": 1, "micro_batch": 1, "zero_stage": 1, "recompute": "none"},
        },
    ),
}


def data(case: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    model, own = CASES[case]
    return problem(model, **{**copy.deepcopy(own), **options})


@pytest.fixture(scope="module")
def plans() -> dict[str, Envelope]:
    return {case: solve(data(case)) for case in CASES}


def made_of(plans: dict[str, Envelope], case: str) -> Any:  # noqa: ANN401 - plain data
    return plans[case].decision[case]


def judged(envelope: Envelope) -> list[Any]:
    return list(check_plan(envelope, TrainDecision.model_validate(envelope.decision)))


def test_attention_moves_within_the_tolerance_and_no_work_is_lost(plans: dict[str, Envelope]) -> None:
    made = made_of(plans, "core_attention")
    moved = 0
    for batch in made["batches"]:
        load = [sum(operations(0, tokens) for tokens in row) for row in batch["sequences"]]
        whole = sum(load)
        for own in batch["ranges"]:
            size = operations(own["first"], own["last"])
            load[own["home"]] -= size
            load[own["replica"]] += size
        moved += len(batch["ranges"])
        assert sum(load) == whole
        assert max(load) * len(load) / whole == pytest.approx(batch["busiest_over_mean"])
        assert not batch["ranges"] or max(load) <= 1.1 * whole / len(load) * (1 + 1e-9)
        assert batch["bound_bytes"] <= batch["moved_bytes"] * (1 + 1e-9)
    assert moved > 0
    assert made["bound_s"] <= made["span_s"] < made["packed_s"]


def test_where_nothing_moves_replicas_do_not_wait_for_each_other() -> None:
    alike = [{"tokens": 4096, "share": 1}]
    made: Any = solve(data("core_attention", documents=alike)).decision["core_attention"]
    assert not any(batch["ranges"] for batch in made["batches"])
    assert made["span_s"] == made["packed_s"] == pytest.approx(made["bound_s"])


def test_sequences_hold_their_documents_and_no_more_tokens_than_they_have() -> None:
    options = TrainOptions.model_validate(data("core_attention")["options"])
    rows = packed_sequences(options)
    assert len(rows) == 8
    assert all(0 < sum(row) <= 32768 for row in rows)
    assert sum(len(batch) for batch in micro_batches_of(rows, 4)) == 8


def test_every_head_is_on_one_head_rank_and_no_slower_than_longest_first(plans: dict[str, Envelope]) -> None:
    made = made_of(plans, "sparse_heads")
    assert sorted(head for own in made["heads"] for head in own) == [*range(16)]
    assert made["head_ranks"] * made["sequence_ranks"] == 8
    assert made["bound_s"] <= made["attention_s"] * (1 + 1e-9)
    assert made["attention_s"] <= made["longest_first_s"] * (1 + 1e-9)
    assert made["attention_s"] < made["dense_s"]


def test_heads_that_leave_nothing_out_take_what_dense_ones_do() -> None:
    own = {"heads": [{"heads": 16, "sparsity": 0.0}]}
    dense: Any = solve(data("sparse_heads", sparse_heads=own)).decision["sparse_heads"]
    assert dense["attention_s"] >= 0.9 * dense["dense_s"] or dense["sequence_ranks"] == 1


def test_more_sparsity_never_makes_attention_longer(plans: dict[str, Envelope]) -> None:
    more = [{**row, "sparsity": (1 + row["sparsity"]) / 2} for row in HEADS]
    sparser: Any = solve(data("sparse_heads", sparse_heads={"heads": more})).decision["sparse_heads"]
    assert sparser["attention_s"] <= made_of(plans, "sparse_heads")["attention_s"]


def test_a_schedule_has_every_pass_once_within_memory_and_above_its_bound(plans: dict[str, Envelope]) -> None:
    made = made_of(plans, "modality_schedule")
    batches = made["micro_batches"]
    for row in made["passes"]:
        stated = [(each["micro_batch"], each.get("part"), each["backward"]) for each in row]
        wanted = [
            (b, part, backward)
            for b, batch in enumerate(batches)
            for part in (*range(batch["parts"]), None)
            for backward in (False, True)
        ]
        assert sorted(stated, key=str) == sorted(wanted, key=str)
    assert made["bound_s"] <= made["span_s"] <= made["in_turn_s"]
    assert made["activation_bytes"] <= made["room_bytes"] * (1 + 1e-9)
    assert sum(made["layers_of_rank"]) == 36


@pytest.mark.parametrize("case", CASES)
def test_plans_are_clean_explained_and_emitted_by_no_launcher_that_lacks_them(
    plans: dict[str, Envelope], case: str
) -> None:
    plan = plans[case]
    decision = TrainDecision.model_validate(plan.decision)
    assert all(finding.ok for finding in judged(plan))
    assert any(case in fact.about for fact in training_facts(plan, decision))
    for target in ("megatron-lm", "megatron-bridge", "torchtitan"):
        with pytest.raises(PlannerError, match=f"decision.{case}"):
            emit(plan, decision, target)


@pytest.mark.parametrize(
    ("case", "change"),
    [
        ("core_attention", {"span_s": 1e-3}),
        ("core_attention", {"tolerance": 0.5}),
        ("sparse_heads", {"attention_s": 1e-6}),
        ("sparse_heads", {"heads": [[0], *([[]] * 7)]}),
        ("sparse_heads", {"head_ranks": 3}),
        ("modality_schedule", {"span_s": 1e-3}),
        ("modality_schedule", {"passes": [[], []]}),
        ("modality_schedule", {"layers_of_rank": [1, 2]}),
    ],
)
def test_what_does_not_follow_from_the_plan_is_told(
    plans: dict[str, Envelope], case: str, change: dict[str, Any]
) -> None:
    decision: Any = copy.deepcopy(plans[case].decision)
    decision[case].update(change)
    findings = judged(plans[case].model_copy(update={"decision": decision}))
    assert any(not finding.ok and case in f"{finding.where} {finding.what}" for finding in findings)


@pytest.mark.parametrize(
    "change",
    [{"first": 7}, {"replica": 99}, {"document": 99}, {"first": 0, "last": 10**7}],
)
def test_ranges_that_cannot_be_are_told(plans: dict[str, Envelope], change: dict[str, Any]) -> None:
    decision: Any = copy.deepcopy(plans["core_attention"].decision)
    row = next(row for row in decision["core_attention"]["batches"] if row["ranges"])
    row["ranges"][0].update(change)
    findings = judged(plans["core_attention"].model_copy(update={"decision": decision}))
    assert any(not finding.ok and "core_attention" in f"{finding.where} {finding.what}" for finding in findings)


@pytest.mark.parametrize(
    ("case", "options", "says"),
    [
        ("core_attention", {"documents": []}, "without documents"),
        ("core_attention", {"search": {"cp": 2}}, "with cp"),
        ("core_attention", {"search": {"pp": 2}}, "in a pipeline"),
        ("core_attention", {"degrees_by_document": True}, "leave one of them out"),
        ("core_attention", {"core_attention_apart": {"tolerance": -0.1}}, "tolerance"),
        ("core_attention", {"documents": [{"tokens": 65536, "share": 1}]}, "in shorter sequences"),
        ("core_attention", {"core_attention_apart": {"tolerance": 0.0}}, "write `tolerance: 0.0"),
        ("sparse_heads", {"sparse_heads": {"heads": [{"heads": 16, "sparsity": 1.0}]}}, "sparsity"),
        ("sparse_heads", {"sparse_heads": {"heads": [{"heads": 3, "sparsity": 0.5}]}}, "state the sparsity of 16"),
        ("sparse_heads", {"search": {"tp": 2}}, "with tp"),
        ("sparse_heads", {"lengths": [{"tokens": 65536, "share": 1}]}, "several lengths"),
        ("modality_schedule", {"samples": []}, "without inputs"),
        ("modality_schedule", {"search": {"tp": 4}}, "without a pipeline"),
        ("modality_schedule", {"search": {"pp": 2, "schedule": "zb_h1"}}, "another schedule"),
        ("modality_schedule", {"search": {"pp": 2, "modules": "apart"}}, "modules apart"),
    ],
)
def test_what_these_decisions_do_not_go_with_is_one_clear_error(case: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(PlannerError, match=says):
        solve(data(case, **options))


@pytest.mark.parametrize(("case", "says"), [("core_attention", "where its"), ("modality_schedule", "no orders")])
def test_a_named_engine_that_lacks_them_is_refused(case: str, says: str) -> None:
    with pytest.raises(PlannerError, match=says):
        solve(data(case) | {"engine": {"name": "megatron-bridge"}})


@pytest.mark.parametrize("case", ["core_attention", "sparse_heads"])
def test_a_model_with_other_attention_is_refused_by_name(case: str) -> None:
    with pytest.raises(PlannerError, match="without full attention"):
        solve(data(case, window_tokens=1024))


def test_of_the_best_plans_of_each_degree_the_one_is_taken_that_is_best_with_sparse_heads() -> None:
    even = {"heads": [{"heads": 16, "sparsity": 0.98}], "gather_overhead": "0.5ms"}
    search = {"cp": [1, 2, 4, 8], "micro_batch": 1, "zero_stage": 1}
    options: dict[str, Any] = {"global_batch": 8, "sequence_tokens": 131072, "sparse_heads": even, "search": search}
    made = solve(problem("Qwen/Qwen3-0.6B", **options, nodes=1))
    compared: Any = made.certificate.proof["compared"]
    steps_with = {p.value for p in made.predictions if p.metric == "sparse_heads_step_time_s"}
    assert steps_with == {min(row["step_time_with_s"] for row in compared if row["step_time_with_s"] is not None)}
    steps = [p.value for p in made.predictions if p.metric == "step_time_s"]
    assert min(row["step_time_s"] for row in compared) < steps[0]  # which the search alone would have taken
    assert made.certificate.status == "feasible"
    assert [finding for finding in judged(made) if not finding.ok] == []
    (own,) = TrainDecision.model_validate(made.decision).roles
    options["search"] = {**search, "cp": own.parallelism.cp}
    alone = solve(problem("Qwen/Qwen3-0.6B", **options, nodes=1))
    assert {p.value for p in alone.predictions if p.metric == "sparse_heads_step_time_s"} == steps_with
    assert "compared" not in alone.certificate.proof


def test_plans_of_core_attention_apart_are_weighed_by_tensor_parallel_degree() -> None:
    made = solve(data("core_attention", search={"tp": [2, 4], "zero_stage": 1, "recompute": "full"}))
    compared: Any = made.certificate.proof["compared"]
    assert sorted(row["plan"][:4] for row in compared) == ["tp 2", "tp 4"]
    steps_with = {p.value for p in made.predictions if p.metric == "core_attention_step_time_s"}
    assert steps_with == {min(row["step_time_with_s"] for row in compared)}
    assert [finding for finding in judged(made) if not finding.ok] == []
