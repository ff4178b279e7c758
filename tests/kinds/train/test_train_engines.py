"""Training problems that name their engine: what is planned is what that engine launches, priced as it is emitted."""

from dataclasses import replace
from typing import Any

import pytest
from launched_fields import differences
from train_problems import every_plan, job, problem

from planner.api import solve
from planner.costs.training.config import RecomputeConfig
from planner.emit.registry import emit
from planner.engines.training import DEEPEP_RANKS, TRAINING_ENGINES
from planner.errors import Infeasible, PlannerError
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.options import TrainOptions
from planner.kinds.train.search.one_pool import OnePoolSearch
from planner.kinds.train.space.space import space_of
from planner.kinds.train.space.states import ShardShape
from planner.kinds.train.space.tables import CostTable
from planner.models.library import find_model
from planner.plan.schema import Envelope
from planner.progress import Limits

LLAMA, MOE = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"
FIXED = {"cp": [1, 2], "tp": [1, 2], "micro_batch": 1, "vpp": [1, 2], "context_parallel": None}
LONG: dict[str, Any] = {"sequence_tokens": 16384, "global_batch": 16}


def _problem(engine: str | None, model: str = LLAMA, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    data = problem(model, **options)
    return data if engine is None else {**data, "engine": {"name": engine}}


def _planned(data: dict[str, Any]) -> tuple[Envelope, TrainDecision]:
    plan = solve(data)
    return plan, TrainDecision.model_validate(plan.decision)


def _launched(engine: str, plan: Evaluation) -> bool:
    """The rules of the engines, once more: Megatron's FSDP has no pipeline, torchtitan no ZeRO 1, DeepSpeed no pp."""
    choice, shape = plan.choice, plan.choice.table.shape
    if engine == "deepspeed":
        sharded = not choice.shards and (shape.tp == 1 or choice.zero_stage < 3)
        return choice.pp == 1 and sharded and (shape.cp == 1 or shape.context == "ulysses")
    if engine in ("torchtitan", "nemo-automodel"):
        if engine == "nemo-automodel" and (choice.pp > 1 or choice.zero_stage < 2):
            return False
        part = choice.shards % shape.cp == 0 and not choice.full_layers and shape.context != "ulysses"
        return choice.zero_stage != 1 and part and (choice.zero_stage > 0 or shape.cp == 1)
    return choice.zero_stage < 2 or choice.pp == 1


@pytest.mark.parametrize("engine", TRAINING_ENGINES)
def test_the_plan_of_an_engine_is_the_best_of_all_that_it_launches(engine: str) -> None:
    """Of the plans of a problem that names no engine and every stage, those that obey the engine's rules."""
    search = {**FIXED, "pp": [1, 2], "dp": [2, 4], "zero_stage": [0, 1, 2, 3], "recompute": ["none", "full"]}
    if engine == "deepspeed":
        search |= {"pp": 1, "context_parallel": "ulysses"}
    if engine == "torchtitan":
        search |= {"zero_stage": [0, 2, 3], "context_parallel": ["ring", "all_gather"]}
    given = LONG
    if engine == "nemo-automodel":
        search |= {"zero_stage": [2, 3], "context_parallel": ["ring", "all_gather"], "pp": 1}
        given = {**LONG, "task": "sft"}
    named = job(_problem(engine, search=search, nodes=1, **given))
    best = OnePoolSearch(named, Limits()).run().best
    free = job(_problem(None, search=search, nodes=1, **given))
    assert best is not None
    again = [plan for plan in every_plan(replace(free, framework=named.framework)) if _launched(engine, plan)]
    assert best.step_s == pytest.approx(min(plan.step_s for plan in again), rel=1e-9)


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("megatron-lm", MOE, {"search": {"cp": 1, "micro_batch": 1}}),
    ("megatron-bridge", MOE, {"task": "sft", "search": {"cp": 1, "micro_batch": 1}}),
    ("megatron-bridge", LLAMA, {"task": "lora", "precision": "fp8_block", "search": {"cp": 1}}),
    ("torchtitan", MOE, {"search": {"cp": 1, "micro_batch": 1}}),
    ("torchtitan", "meta-llama/Meta-Llama-3.1-8B", {"search": {"pp": [2, 4], "micro_batch": 1}}),
    ("deepspeed", LLAMA, {"search": {"offload": ["optimizer"]}}),
    ("nemo-automodel", LLAMA, {"task": "lora", "search": {"cp": 1}}),
    ("nemo-automodel", LLAMA, {"task": "sft", "search": {"cp": [1, 2], "micro_batch": [2, 4], "recompute": "full"}}),
    ("megatron-lm", LLAMA, {"search": {"offload": ["optimizer", "activations"], "pp": [1, 2]}}),
    ("megatron-bridge", LLAMA, {"search": {"pp": [2, 4], "offload": ["optimizer"]}, "reduce_gradients": "bf16"}),
    ("megatron-lm", MOE, {"overlap": ["grad_reduce", "tp_comm", "ep_comm"], "search": {"pp": [1, 2, 4], "cp": 1}}),
    ("deepspeed", LLAMA, {"task": "sft", "overlap": ["param_gather", "p2p"]}),
]


@pytest.mark.parametrize(("engine", "model", "options"), CASES)
def test_the_plan_of_an_engine_is_emitted_and_priced_the_same(engine: str, model: str, options: dict[str, Any]) -> None:
    """Its files say every field of the decision that the engine has words for, as another reader reads them."""
    plan, decision = _planned(_problem(engine, model, **options))
    named = decision.roles[0].engine
    assert named is not None
    assert named.name == engine
    files = emit(plan, decision, engine)
    stated = TrainOptions.model_validate(plan.inputs["options"])
    assert differences(engine, files, decision, stated, find_model(model)) == {}
    text = "".join(files.values())
    assert "Planned for" not in text
    forwards = decision.dispatcher in ("deepep", "hybridep")
    assert forwards == (engine.startswith("megatron") and decision.roles[0].parallelism.ep > 1)
    assert ("flex" in text) == forwards


def test_another_target_says_what_the_step_takes_there() -> None:
    data = _problem("torchtitan", "meta-llama/Meta-Llama-3.1-8B", nodes=1, search={"pp": 1, "zero_stage": 3, "cp": 1})
    plan, decision = _planned(data)
    step_s = {prediction.metric: prediction.value for prediction in plan.predictions}["step_time_s"]
    line = next(row for row in emit(plan, decision, "megatron-lm")["launch.sh"].splitlines() if "Planned for" in row)
    assert f"Planned for torchtitan, {step_s:.4g} s a step; under megatron-lm it takes" in line
    assert "+0.0%" not in line


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("torchtitan", {"precision": "nvfp4"}, "has no precision `nvfp4`.*did you mean"),
    ("torchtitan", {"precision": "fp8_block"}, "has no precision `fp8_block`.*did you mean `fp8`"),
    ("torchtitan", {"task": "lora"}, "has no task `lora`.*it has pretrain"),
    ("torchtitan", {"dispatcher": "deepep"}, "has no dispatcher `deepep`.*it has alltoall"),
    ("megatron-lm", {"search": {"schedule": "zb_v"}}, "has no schedule `zb_v`.*it has 1f1b, interleaved"),
    ("torchtitan", {"search": {"zero_stage": [1, 2]}}, "has no zero stage `1`.*it has 0, 2, 3"),
    ("deepspeed", {"search": {"pp": 4}}, "has no pp `4`.*it has 1"),
    ("deepspeed", {"search": {"context_parallel": "ring"}}, "has no context parallel `ring`.*it has ulysses"),
    ("megatron-lm", {"optimizer": "lamb"}, "has no optimizer `lamb`"),
    ("torchtitan", {"overlap": ["grad_reduce", "param_gather", "p2p", "ep_comm"]}, "has no overlap `ep_comm`"),
    ("torchtitan", {"overlap": ["param_gather", "p2p"]}, "always runs `grad_reduce` beside computing"),
    ("megatron-lm", {"overlap": ["tp_fused"]}, "has no overlap `tp_fused`"),
    ("megatron-lm", {"overlap": ["tp_comm"], "search": {"sequence_parallel": False}}, "`tp_comm` without sequence"),
    (
        "megatron-lm",
        {"overlap": ["ep_comm"], "search": {"recompute": "full"}},
        "`ep_comm` where layers are",
    ),
    ("megatron-lm", {"search": {"sequence_parallel": [False, True]}}, "sequence parallelism is on or off in all plans"),
    ("torchtitan", {"reduce_gradients": "bf16"}, "has no reduce gradients `bf16`.*it has fp32"),
    ("megatron", {}, "engine.name: must be one of .*`megatron-lm`.*`torchtitan`"),
]


@pytest.mark.parametrize(("engine", "options", "message"), REFUSED)
def test_what_an_engine_lacks_is_one_error(engine: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlannerError, match=f"(?s){message}"):
        solve(_problem(engine, **options))


@pytest.mark.parametrize(
    ("engine", "model", "task", "refused"),
    [
        ("torchtitan", "meta-llama/Meta-Llama-3.1-8B", "pretrain", "computes no `operators` again by itself"),
        ("nemo-automodel", LLAMA, "sft", "task `sft` with ZeRO 2"),
    ],
)
def test_engines_that_recompute_by_operator_are_planned_and_priced_so(
    engine: str, model: str, task: str, refused: str
) -> None:
    """Their policy lies between nothing and whole layers in time and in bytes; Megatron, which has none, refuses it."""
    search = {"recompute": "selective", "tp": 1, "cp": 1, "pp": 1, "micro_batch": 2}
    data = _problem(engine, model, task=task, search=search)
    plan, decision = _planned(data)
    assert {run.recompute.modules for run in decision.stage_runs} == {("operators",)}
    table = CostTable(job(data), ShardShape(1, 1, 1, 1, 2))
    none, policy, full = (
        table.mode(RecomputeConfig(*row)) for row in (("none",), ("selective", ("operators",)), ("full",))
    )
    assert none.extra_s[0] == 0.0 < 0.2 * full.extra_s[0] < policy.extra_s[0] < 0.5 * full.extra_s[0]
    assert full.in_flight_bytes[0] < 0.3 * none.in_flight_bytes[0] < policy.in_flight_bytes[0]
    assert policy.in_flight_bytes[0] < 0.6 * none.in_flight_bytes[0]
    with pytest.raises(PlannerError, match=refused):
        emit(plan, decision, "megatron-lm")


@pytest.mark.parametrize(
    ("search", "ranks"), [({"ep": 256}, "ep 256 x moe_tp 1"), ({"ep": [12], "moe_tp": 1}, "ep 12")]
)
def test_experts_on_ranks_that_deepep_does_not_join_are_refused(search: dict[str, Any], ranks: str) -> None:
    data = _problem("megatron-lm", "deepseek-ai/DeepSeek-V3", nodes=64, search=search)
    with pytest.raises(PlannerError, match=f"(?s)`deepep` joins 2, 4.*{ranks}.*alltoall"):
        solve(data)
    sent = job(_problem("megatron-lm", "deepseek-ai/DeepSeek-V3", nodes=64, dispatcher="alltoall"))
    assert 256 in space_of(sent).ep
    free = space_of(job(_problem("megatron-lm", "deepseek-ai/DeepSeek-V3", nodes=64)))
    assert 1 < len(set(free.ep * free.etp)) <= len(DEEPEP_RANKS)
    assert set(free.ep * free.etp) <= set(DEEPEP_RANKS)


UNTRAINED = [
    ("torchtitan", "Qwen/Qwen2.5-7B", "pretrain", "torchtitan has no configuration of `Qwen/Qwen2.5-7B`"),
    ("megatron-lm", "openai/gpt-oss-20b", "pretrain", "`openai/gpt-oss-20b` has 2 kinds of token mixers"),
    ("megatron-bridge", "deepseek-ai/DeepSeek-V3", "lora", "no place for adapters beside the attention of"),
]


@pytest.mark.parametrize(("engine", "model", "task", "message"), UNTRAINED)
def test_a_model_that_an_engine_does_not_train_is_refused_before_the_search(
    engine: str, model: str, task: str, message: str
) -> None:
    with pytest.raises(PlannerError, match=message):
        solve(_problem(engine, model, task=task, nodes=64))


@pytest.mark.parametrize("overlap", [["ep_comm", "p2p"], ["grad_reduce"]])
def test_no_plan_of_megatron_asks_for_overlap_that_it_asserts_against(overlap: list[str]) -> None:
    """Experts are hidden in interleaved pipelines alone, and no two ranks interleave without `p2p`."""
    search = {"pp": 2, "tp": 1, "cp": 1, "micro_batch": 1}
    for vpp in (1, 2):
        named = _problem("megatron-lm", MOE, overlap=overlap, search={**search, "vpp": vpp})
        if (vpp == 2) == ("ep_comm" in overlap):
            assert _planned(named)[1].degrees.vpp == vpp
        else:
            with pytest.raises(Infeasible):
                solve(named)


def test_an_unknown_release_is_refused() -> None:
    data = problem()
    with pytest.raises(PlannerError, match=r"nothing is known of `torchtitan` 9\.1"):
        solve({**data, "engine": {"name": "torchtitan", "version": "9.1"}})


def test_a_serving_engine_trains_nothing() -> None:
    with pytest.raises(PlannerError, match=r"(?s)`sglang` serves.*megatron-lm"):
        solve(_problem("sglang"))


def test_a_pipeline_that_shards_gradients_is_planned_for_no_launcher_unasked() -> None:
    """What the problem fixes stands; where it names Megatron-LM too, nothing is left."""
    search = {"pp": 2, "tp": 1, "cp": 1, "dp": 8, "micro_batch": 1, "zero_stage": [2, 3]}
    _, decision = _planned(_problem(None, search=search))
    assert decision.zero_stage == 2
    with pytest.raises(Infeasible) as refused:
        solve(_problem("megatron-lm", search=search))
    assert "zero_stage = 2, 3" in str(refused.value.conflict)
    assert "zero_stage 0" in str(refused.value.conflict)


@pytest.mark.parametrize(
    ("engine", "model", "mtp", "reason"),
    [
        ("torchtitan", "deepseek-ai/DeepSeek-V3", True, "trains no heads for further tokens"),
        ("megatron-lm", LLAMA, True, "has no heads for further tokens"),
        ("megatron-lm", LLAMA, False, "has no heads for further tokens"),
    ],
)
def test_heads_for_further_tokens_that_nothing_trains_are_refused(
    engine: str, model: str, mtp: bool, reason: str
) -> None:
    with pytest.raises(PlannerError, match=reason) as caught:
        solve(_problem(engine, model, mtp=mtp, search={**FIXED, "pp": 1}))
    assert "mtp" in caught.value.where
    assert caught.value.hint
