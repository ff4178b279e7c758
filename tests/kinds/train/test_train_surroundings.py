"""What a training problem may say of its job beyond degrees: uneven experts, packed documents, Muon, hosts that update,
GPUs that lag, switches that add up, samples on their way, layers that move; what has no measured run says so."""

from dataclasses import replace
from math import log, sqrt
from typing import Any

import numpy as np
import pytest
import yaml
from train_problems import every_plan, job, problem

from planner.api import solve
from planner.costs.operators.experts import ExpertLoad
from planner.costs.training.config import AHEAD, FRAMEWORKS, Loading, TrainingConfig, machine_of
from planner.costs.training.memory import memory
from planner.costs.training.optimizers.host import MOVED_BYTES
from planner.costs.training.optimizers.muon import newton_schulz_flop
from planner.costs.training.parameters import (
    Parameters,
    host_state_bytes,
    lora_parameters,
    lora_state_bytes,
    rank_parameters,
    state_bytes,
)
from planner.costs.training.rates import default_rates
from planner.costs.training.step import data_parallel, step_time
from planner.costs.training.volumes import data_parallel_volume
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.hardware.library import find_node
from planner.kinds.train.check import check as check_rules
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.plan.decode import decode
from planner.kinds.train.search.one_pool import OnePoolSearch
from planner.kinds.train.space.states import ShardShape
from planner.kinds.train.space.tables import CostTable
from planner.models.library import find_model
from planner.plan.schema import Envelope
from planner.progress import Limits

LLAMA, MOE = "meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B"
FIXED: dict[str, Any] = {"tp": 1, "pp": 1, "cp": 1, "micro_batch": 1, "zero_stage": 1}


def _config(name: str = LLAMA, **changes: Any) -> TrainingConfig:  # noqa: ANN401
    made = TrainingConfig(find_model(name), machine_of(find_node("hgx_h100")), 4096, 64, 1, dp=16)
    return replace(made, **changes)


def _planned(data: dict[str, Any]) -> tuple[Envelope, TrainDecision]:
    plan = solve(data)
    return plan, TrainDecision.model_validate(plan.decision)


def _step_s(plan: Envelope) -> float:
    return next(each.value for each in plan.predictions if each.metric == "step_time_s")


def test_the_fullest_rank_is_even_alone_and_the_fullest_expert_where_each_has_one() -> None:
    load = ExpertLoad(2.0)
    assert load.of_rank(128, 1) == 1.0
    assert load.of_rank(128, 128) == pytest.approx(2.0)
    assert 1.0 < load.of_rank(128, 8) < load.of_rank(128, 64) < 2.0
    assert ExpertLoad(4.0, 1.25).of_rank(128, 128) == 1.25
    assert ExpertLoad(1.0, 1.25, padded=True).of_rank(128, 1) == 1.25


def test_ranks_with_several_experts_are_as_uneven_as_drawn_loads() -> None:
    """Loads of 128 experts with a normal spread, drawn 2,000 times, summed over ranks of 8."""
    drawn = 1.0 + 0.2 * np.random.default_rng(1).standard_normal((2000, 128))
    fullest = float(drawn.max(axis=1).mean())
    of_ranks = float(drawn.reshape(2000, 16, 8).mean(axis=2).max(axis=1).mean())
    assert ExpertLoad(fullest).of_rank(128, 16) == pytest.approx(of_ranks, rel=0.02)


def test_uneven_experts_take_longer_and_hold_more_and_dropped_tokens_less() -> None:
    even, uneven = (_config(MOE, ep=8, expert_load=ExpertLoad(fullest)) for fullest in (1.0, 2.0))
    dropped = replace(uneven, expert_load=ExpertLoad(2.0, 0.8))
    steps, bytes_ = zip(*((step_time(c).step_s, memory(c).total_R.max()) for c in (even, uneven, dropped)), strict=True)
    assert steps[2] < steps[0] < steps[1]
    assert bytes_[2] < bytes_[0] < bytes_[1]


def test_packed_documents_attend_to_themselves_alone() -> None:
    """Equal documents: the pairs of the whole sequence against those of its documents, counted."""
    whole = job(problem(LLAMA, task="sft", search=FIXED))
    packed = job(problem(LLAMA, task="sft", search=FIXED, documents=[{"tokens": 1024, "share": 1}]))
    assert packed.options.document_tokens == 1024.0
    tables = [CostTable(each, ShardShape(1, 1, 1, 1, 1)) for each in (whole, packed)]
    costs = [table.layers[0].forward_of_module["core_attention"] for table in tables]
    pairs = 4096 * 4097 / 2, 4 * 1024 * 1025 / 2
    assert pairs[1] / pairs[0] * 0.9 < costs[1] / costs[0] < 0.6
    mixed = job(problem(LLAMA, task="sft", documents=[{"tokens": 512, "share": 3}, {"tokens": 4096, "share": 1}]))
    assert mixed.options.document_tokens == pytest.approx((3 * 512**2 + 4096**2) / (3 * 512 + 4096))


def test_newton_schulz_counts_the_products_of_its_steps() -> None:
    rows, cols = 3, 5
    x, counted = np.ones((rows, cols)), 0
    for _ in range(5):
        products = ((x, x.T), (x @ x.T, x @ x.T), (x @ x.T, x))
        counted += sum(2 * left.shape[0] * left.shape[1] * right.shape[1] for left, right in products)
    assert newton_schulz_flop(rows, cols) == newton_schulz_flop(cols, rows) == counted


def test_muon_keeps_less_and_exchanges_more() -> None:
    adam, muon = _config(), _config(optimizer="muon")
    assert memory(muon).optimizer_R[0] < memory(adam).optimizer_R[0]
    held = rank_parameters(adam, 0)
    volumes = [data_parallel_volume(each, held) for each in (adam, muon)]
    assert volumes[1].reduce_outside_s == pytest.approx(2.0 * volumes[0].reduce_outside_s)
    assert volumes[1].compute_s > 0.0 == volumes[0].compute_s


def test_a_plan_with_muon_is_launched_as_priced() -> None:
    data = {**problem(LLAMA, optimizer="muon", search={**FIXED, "tp": [1, 2]}), "engine": {"name": "megatron-lm"}}
    plan, decision = _planned(data)
    assert decision.zero_stage == 1
    text = "".join(emit(plan, decision, "megatron-lm").values())
    assert "--optimizer dist_muon" in text
    assert not any(flag in text for flag in ("--use-distributed-optimizer", "--overlap-grad-reduce"))
    assert any("no measurement near" in note and "muon" in note for note in plan.evidence.notes)


@pytest.mark.parametrize(("documents", "told"), [((), True), (({"tokens": 8192, "share": 1},), False)])
def test_what_is_longer_than_the_model_takes_is_said(documents: tuple[dict[str, int], ...], *, told: bool) -> None:
    options = {"sequence_tokens": 65536, "global_batch": 8, "task": "sft", "documents": documents}
    plan, _ = _planned(problem("Qwen/Qwen3-8B", **options, search={**FIXED, "tp": 4, "cp": 2}))
    assert any("65536 tokens are longer than the 40960" in note for note in plan.evidence.notes) is told


def test_hosts_that_update_take_the_time_of_their_memory() -> None:
    held = Parameters(1.6e9, 0.0)
    volume = data_parallel_volume(_config(offload=frozenset({"optimizer"})), held)
    each = held.total / 16
    assert volume.offload_s == pytest.approx(each * MOVED_BYTES / (614e9 / 8 / 2) + each * 6.0 / 64e9, rel=0.1)
    assert volume.update_s < data_parallel_volume(_config(), held).update_s


def _sharded(**changes: Any) -> TrainingConfig:  # noqa: ANN401
    fields = {"zero_stage": 3, "micro_batch": 1, "tp": 1, "pp": 1, "framework": FRAMEWORKS["torchtitan"], **changes}
    return _config(**fields)


def test_shards_that_fsdp2_keeps_on_the_host_come_for_every_gather_and_sums_of_gradients_return() -> None:
    """One layer of 1.6e9 elements on 16 ranks: 4 bytes of an element each way, beside each pass of a micro-batch."""
    held, moved = Parameters(1.6e9, 0.0), frozenset({"optimizer"})
    for batches in (1, 4):
        plain, host = (_sharded(global_batch=16 * batches, offload=each) for each in (frozenset(), moved))
        before, after = (data_parallel(each, held, default_rates()) for each in (plain, host))
        link_s, memory_s = 1e8 * 4.0 / host.machine.host_bytes_per_s, 1e8 / (614e9 / 8 / 2)
        assert after.gather_s - before.gather_s == pytest.approx(link_s)
        assert after.reduce_s - before.reduce_s == pytest.approx(link_s)
        waited_s = (batches - 1) * (after.reduce_s + 12.0 * memory_s)
        assert after.optimizer_s == pytest.approx(40.0 * memory_s + waited_s)


def test_what_fsdp2_keeps_on_the_host_takes_no_memory_of_the_device() -> None:
    held = Parameters(1.6e9, 0.0)
    states = [state_bytes(_sharded(zero_stage=stage, offload=frozenset({"optimizer"})), held) for stage in (2, 3)]
    assert [state.total_bytes for state in states] == [3.2e9, 0.0]


def test_states_of_adapters_lie_on_the_host_or_on_the_device() -> None:
    """12 bytes of an element that learns; with whole shards on the host its weight and its gradient too."""
    held, moved = Parameters(1.6e9, 0.0), frozenset({"optimizer"})
    for config, left in ((_config(task="lora"), 6.0), (_sharded(task="lora"), 0.0)):
        count = lora_parameters(config, held).total
        device, host = (lora_state_bytes(replace(config, offload=each), held) for each in (frozenset(), moved))
        assert device.optimizer_bytes == pytest.approx(12.0 * count)
        assert host.total_bytes == pytest.approx(left * count)
        assert host_state_bytes(replace(config, offload=moved), held) > host_state_bytes(config, held) == 0.0


def test_hosts_of_which_nobody_says_what_memory_they_have_are_remarked() -> None:
    search = {**FIXED, "offload": ["optimizer"], "zero_stage": 1}
    known = job(problem(LLAMA, nodes=1, global_batch=8, memory_utilisation=0.65, search=search))
    node = replace(known.machine.node, host_memory_bytes=0.0)
    unknown = replace(known, machine=replace(known.machine, node=node))
    told = "hosts of role `job` have room for what is offloaded: nobody says what memory they have"
    for own, said in ((known, False), (unknown, True)):
        plan = decode(own, OnePoolSearch(own, Limits()).run())
        decision = TrainDecision.model_validate(plan.decision)
        assert decision.offload == ("optimizer",)
        assert (told in plan.assumptions) is said
        (finding,) = (row for row in check_rules(plan, decision) if row.rule == "train.host_memory")
        assert finding.skipped is said


@pytest.mark.parametrize(
    ("engine", "zero_stage", "share"), [("torchtitan", 3, 0.25), ("nemo-automodel", 3, 0.25), ("deepspeed", 2, 0.35)]
)
def test_a_plan_with_states_on_the_host_is_slower_and_smaller(engine: str, zero_stage: int, share: float) -> None:
    search = {**FIXED, "zero_stage": zero_stage}
    options = {"nodes": 1, "global_batch": 8, "task": "sft" if engine == "nemo-automodel" else "pretrain"}
    data = [problem(LLAMA, **options, search=search, memory_utilisation=most) for most in (0.95, share)]
    data[1]["options"]["search"] = {**search, "offload": ["optimizer"]}
    (plain, _), (host, decision) = (_planned({**each, "engine": {"name": engine}}) for each in data)
    assert decision.offload == ("optimizer",)
    assert _step_s(host) > _step_s(plain)
    used = [plan.roles[0].memory for plan in (plain, host)]
    assert used[0] is not None
    assert used[1] is not None
    assert used[1].used_bytes < used[0].used_bytes


def test_gpus_that_lag_lengthen_the_pipeline_by_their_expected_maximum() -> None:
    even, spread = (step_time(_config(step_spread=value)) for value in (0.0, 0.02))
    assert spread.pipeline_s / even.pipeline_s == pytest.approx(1.0 + 0.02 * sqrt(2.0 * log(16)))
    plan = solve(problem(LLAMA, step_spread=0.02, search=FIXED))
    assert "steps of GPUs spread by 2.0%" in " ".join(plan.assumptions)
    assert _step_s(plan) > _step_s(solve(problem(LLAMA, search=FIXED)))


def _loaded(**loading: float | str) -> tuple[Envelope, TrainDecision]:
    return _planned(problem(LLAMA, global_batch=64, loading=loading, search={"tp": 1, "pp": 1, "cp": [1, 2, 4]}))


def test_no_step_is_shorter_than_its_samples_take_and_more_ranks_load_more() -> None:
    free, _ = _planned(problem(LLAMA, global_batch=64, search={"tp": 1, "pp": 1, "cp": [1, 2, 4]}))
    slow, decision = _loaded(samples_per_s=64 / 16 / (10.0 * _step_s(free)))
    assert decision.roles[0].parallelism.dp == 16
    assert _step_s(slow) == pytest.approx(10.0 * _step_s(free))
    assert slow.certificate.status == "optimal"
    assert slow.certificate.bound == slow.certificate.objective.value
    stored, _ = _loaded(sample="1GB", read="1GB/s")
    assert _step_s(stored) == pytest.approx(64.0)
    assert any("no measurement near" in note and "samples" in note for note in stored.evidence.notes)


def test_steps_with_other_passes_are_no_shorter_than_their_samples_take() -> None:
    """As those of documents on their own degrees, of ranges on other replicas and of passes by modality."""
    slow, free = (
        next(every_plan(job(problem(LLAMA, global_batch=64, loading=loading, search=FIXED))))
        for loading in ({"samples_per_s": 0.01}, None)
    )
    assert slow.with_span_s(0.0) == slow.step_s > 100.0 * free.step_s
    assert free.with_span_s(0.0) == pytest.approx(free.step_s - free.pipeline_s)


def test_samples_take_the_adapters_that_training_shares() -> None:
    plain, loaded = (_config(loading=loading) for loading in (AHEAD, Loading(sample_bytes=1e8)))
    own = plain.num_micro_batches * plain.micro_batch
    more_s = step_time(loaded).step_s - step_time(plain).step_s
    assert more_s == pytest.approx(own * 1e8 / plain.machine.fabric_bytes_per_s)


@pytest.mark.parametrize(
    ("loading", "message"),
    [
        ({}, "loading without samples"),
        ({"read": "1GB/s"}, "loading without samples"),
        ({"read": "1GB/s", "samples_per_s": 4}, "samples of no size"),
        ({"samples_per_s": 0}, "samples_per_s"),
    ],
)
def test_loading_that_says_nothing_is_refused(loading: dict[str, object], message: str) -> None:
    with pytest.raises(PlannerError, match=message):
        _planned(problem(LLAMA, loading=loading))


def test_switches_halve_what_all_ranks_sum_and_nothing_that_stays_scattered() -> None:
    held = Parameters(1e9, 0.0)
    for stage, halved in ((0, True), (1, False)):
        plain, helped = (
            data_parallel_volume(_config(zero_stage=stage, in_network=on), held).reduce_outside_s
            for on in (False, True)
        )
        assert helped == pytest.approx(plain if not halved else plain / 2.0 / (1.0 - 1.0 / 2.0))
    wide = [
        data_parallel_volume(_config(zero_stage=0, dp=1024, in_network=on), held).reduce_outside_s
        for on in (False, True)
    ]
    assert wide[1] / wide[0] == pytest.approx(0.5, rel=0.01)


def test_no_fewer_layers_move_their_activations_than_must() -> None:
    search = {**FIXED, "recompute": "none", "offload": ["activations"], "dp": 8}
    data = {**problem(LLAMA, nodes=1, sequence_tokens=16384, global_batch=8, search=search)}
    data["engine"] = {"name": "megatron-lm"}
    plan, decision = _planned(data)
    moved = decision.moved_layers
    assert moved is not None
    assert 1 <= moved < 31
    rank = decision.pipeline_ranks[0].memory
    each = rank.activations_bytes / (31 - moved)
    assert rank.used_bytes <= 0.95 * rank.capacity_bytes < rank.used_bytes + each
    assert f"--cpu-offloading-num-layers {moved}" in "".join(emit(plan, decision, "megatron-lm").values())


BAD: list[tuple[dict[str, Any], str | None, str, str]] = [
    ({"experts": {"fullest": 2.0}}, None, "has no experts", "leave it out"),
    ({"dispatcher": "alltoall"}, None, "has no experts", "leave it out"),
    ({"experts": {"padded": True}}, None, "no capacity", "capacity"),
    ({"documents": [{"tokens": 512, "share": 1}]}, None, "pre-training", "task: sft"),
    ({"documents": [{"tokens": 9999, "share": 1}], "task": "sft"}, None, "9999", "cut documents at 4096"),
    ({"documents": [{"tokens": 512, "share": 1}], "task": "sft"}, "deepspeed", "packs no documents", "megatron-bridge"),
    ({"optimizer": "muon"}, "torchtitan", "muon", "adamw"),
    ({"optimizer": "muon", "task": "lora"}, None, "adapters", "adamw"),
    ({"optimizer": "muon", "search": {"zero_stage": 3}}, None, "without ZeRO 1", "write 1"),
    ({"in_network_reduction": True}, "torchtitan", "reductions in the network", "megatron-lm"),
    ({"dispatcher": "hybridep"}, None, "racks of 72", "deepep"),
    ({"dropout": {"hidden": 0.1}}, "torchtitan", "no setting of how much", "megatron-lm"),
    ({"search": {"recompute_modules": ["moe"]}}, None, "has no `moe`", "leave it out"),
    ({"search": {"recompute": "full", "recompute_modules": "mlp"}}, None, "nothing recomputes", "selective"),
    ({"search": {"recompute_modules": "mlp"}}, "torchtitan", "names no modules", "recompute_modules"),
    ({"search": {"recompute_layers": 2}}, "torchtitan", "all layers whole", "all"),
]


@pytest.mark.parametrize(("options", "engine", "what", "hint"), BAD)
def test_what_does_not_go_together_is_refused(
    options: dict[str, Any], engine: str | None, what: str, hint: str
) -> None:
    data = problem(MOE if options.get("dispatcher") == "hybridep" else LLAMA, **options)
    with pytest.raises(PlannerError, match=what) as refused:
        solve(data if engine is None else {**data, "engine": {"name": engine}})
    assert hint in (refused.value.hint or "")


def test_padded_experts_need_the_plain_exchange() -> None:
    experts = {"capacity": 1.25, "padded": True}
    with pytest.raises(PlannerError, match="pads no experts"):
        solve(problem(MOE, experts=experts, dispatcher="deepep"))
    data = {**problem(MOE, experts=experts, search={"cp": 1, "micro_batch": 1}), "engine": {"name": "megatron-lm"}}
    plan, decision = _planned(data)
    text = "".join(emit(plan, decision, "megatron-lm").values())
    assert "--moe-pad-expert-input-to-capacity" in text
    assert "alltoall" in text or decision.degrees.ep == 1


def test_a_recipe_of_automodel_says_what_the_plan_decides() -> None:
    data = {**problem(LLAMA, task="lora", search={"cp": 1, "tp": 2, "micro_batch": 1, "recompute": "full"})}
    plan, decision = _planned({**data, "engine": {"name": "nemo-automodel"}})
    files = emit(plan, decision, "nemo-automodel")
    recipe = yaml.safe_load(files["recipe.yaml"])
    shape = decision.degrees
    assert recipe["distributed"] == {"dp_size": shape.dp, "dp_replicate_size": 1, "tp_size": 2, "cp_size": 1} | {
        "dp_replicate_size": shape.dp // (decision.zero_shards or shape.dp)
    }
    assert recipe["distributed_config"]["activation_checkpointing"] == "full"
    assert recipe["distributed_config"]["reshard_after_forward"] is (decision.zero_stage == 3)
    assert recipe["peft"]["dim"] == 16
    assert recipe["packed_sequence"]["packed_sequence_size"] == 4096
    assert "finetune.py" in files["launch.sh"]
    with pytest.raises(PlannerError, match="pretrain"):
        solve({**problem(LLAMA), "engine": {"name": "nemo-automodel"}})
