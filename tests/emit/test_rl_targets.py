"""RL plans leave for each framework with its own keys: what the plan decided is there, and its parsers accept it."""

import ast
import copy
import importlib.util
import json
import re
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from launched_rl_fields import differences, launched

from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.options import RlOptions
from planner.plan.schema import Envelope, Parallelism

PLAN = Path(__file__).parents[1] / "plans" / "rl.json"
MIXTURE = {"tp": 2, "pp": 1, "dp": 8, "cp": 1, "ep": 8, "moe_tp": 1, "vpp": 1}


def plan(**changes: Any) -> tuple[Envelope, RlDecision]:  # noqa: ANN401
    """The hand-written colocated plan with parts of its decision exchanged; `engine` and `actor` reach its roles, the
    reference as the actor."""
    document = json.loads(PLAN.read_text(encoding="utf-8"))
    decision = document["decision"]
    engine, shape = changes.pop("engine", None), changes.pop("actor", None)
    for role in decision["roles"]:
        if role["function"] == "rollout" and engine:
            role["engine"]["name"] = engine
        if role["function"] in ("actor", "reference") and shape:
            role["parallelism"], role["replicas"] = shape, 1
    document["inputs"]["options"] |= changes.pop("options", {})
    decision |= changes
    envelope = Envelope.model_validate(document)
    return envelope, RlDecision.model_validate(envelope.decision)


APART: dict[str, Any] = {"arrangement": "disaggregated", "synchrony": "asynchronous", "staleness": 1}
RUNS: dict[str, dict[str, Any]] = {
    "colocated": {},
    "one step ahead": APART,
    "two steps ahead": {**APART, "staleness": 2},
    "streaming": {"arrangement": "disaggregated", "synchrony": "stream"},
    "experts": {**APART, "actor": MIXTURE},
}


def verl_overrides(run: str) -> tuple[str, list[str]]:
    special = {"served": scored_apart("reward", "teacher"), "fp8": in_fp8()}
    files = emit(*special[run] if run in special else plan(**RUNS[run]), "verl")
    match = re.search(r"--config-name (\S+)", files["launch-verl.sh"])
    assert match is not None
    return match.group(1), [row for row in files["overrides.txt"].splitlines() if not row.startswith("#")]


@pytest.mark.parametrize(
    ("run", "config"),
    [
        ("colocated", "ppo_megatron_trainer"),
        ("one step ahead", "one_step_off_ppo_megatron_trainer"),
        ("two steps ahead", "fully_async_ppo_megatron_trainer"),
        ("streaming", "fully_async_ppo_megatron_trainer"),
    ],
)
def test_verl_runs_the_recipe_of_the_mode(run: str, config: str) -> None:
    overrides, rows = verl_overrides(run)
    assert overrides == config
    assert "actor_rollout_ref.actor.ppo_mini_batch_size=128" in rows
    assert "actor_rollout_ref.rollout.tensor_model_parallel_size=2" in rows
    assert "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4" in rows
    assert ("rollout.nnodes=4" in rows) == (run != "colocated")


TARGETS = ("verl", "nemo-rl", "areal", "slime", "openrlhf")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("run", [*RUNS, "critic", "long"])
def test_files_start_what_the_plan_says_field_by_field(run: str, target: str) -> None:
    engine = "sglang" if target == "slime" else "vllm"
    special = {"critic": lambda: with_critic(engine), "long": lambda: with_context_ranks(engine)}
    envelope, decision = special[run]() if run in special else plan(**RUNS[run], engine=engine)
    try:
        files = emit(envelope, decision, target)
    except PlannerError:
        assert (run, target) in UNABLE
        return
    options = RlOptions.model_validate(envelope.inputs["options"])
    assert (run, target) not in UNABLE
    assert len(launched(target, files)) >= 25
    assert differences(target, files, decision, options) == {}


UNABLE = {
    ("two steps ahead", "slime"), ("streaming", "slime"), ("streaming", "nemo-rl"), ("streaming", "openrlhf"),
    ("experts", "openrlhf"), ("critic", "openrlhf"), ("critic", "nemo-rl"),
}  # fmt: skip


def with_critic(engine: str) -> tuple[Envelope, RlDecision]:
    """PPO one step ahead, the critic cut as the actor and trained in turn."""
    envelope, decision = plan(**APART, engine=engine, options={"algorithm": "ppo"}, algorithm="ppo")
    actor = next(role for role in decision.roles if role.function == "actor")
    critic = actor.model_copy(update={"name": "critic", "function": "critic"})
    return envelope, decision.model_copy(update={"roles": (*decision.roles, critic)})


def with_context_ranks(engine: str) -> tuple[Envelope, RlDecision]:
    """Micro-batches over three context-parallel ranks, in a tensor-parallel group of two."""
    return plan(**APART, engine=engine, actor={**MIXTURE, "ep": 1, "cp": 3, "dp": 4})


def test_a_critic_cut_otherwise_is_refused_where_all_models_share_degrees() -> None:
    envelope, decision = with_critic("vllm")
    critic = decision.roles[-1].model_copy(update={"parallelism": Parallelism(tp=2, pp=2, dp=8)})
    other = decision.model_copy(update={"roles": (*decision.roles[:-1], critic)})
    with pytest.raises(PlannerError, match="verl cuts the critic as the actor, tp4 pp1 cp1, and not tp2 pp2 cp1"):
        emit(envelope, other, "verl")
    assert yaml.safe_load(emit(envelope, other, "areal")["areal.yaml"])["critic"]["backend"] == "megatron:d8p2t2"


@pytest.mark.parametrize(("part", "able"), [("reference", "areal"), ("reward", "verl")])
def test_a_model_cut_otherwise_is_for_a_target_that_runs_it_so(part: str, able: str) -> None:
    envelope, decision = plan()
    (actor,) = (role for role in decision.roles if role.function == "actor")
    other = actor.model_copy(update={"name": part, "function": part, "parallelism": Parallelism(tp=2, dp=16)})
    kept = [role for role in decision.roles if role.function not in ("reference", part)]
    cut = decision.model_copy(update={"roles": (*kept, other)})
    with pytest.raises(PlannerError, match=f"OpenRLHF cuts the {part} as the actor") as refused:
        emit(envelope, cut, "openrlhf")
    assert f"`{able}`" in refused.value.hint
    assert emit(envelope, cut, able)


@pytest.mark.parametrize(
    ("limits", "what"),
    [({"recompute": "full"}, "compute again"), ({"first_stage_layers": 3, "last_stage_layers": 2}, "end with")],
)
def test_a_critic_that_trains_otherwise_is_refused_where_one_flag_is_for_both(
    limits: dict[str, int | str], what: str
) -> None:
    envelope, decision = with_critic("sglang")
    critic = decision.roles[-1].model_copy(update={"limits": limits})
    other = decision.model_copy(update={"roles": (*decision.roles[:-1], critic)})
    with pytest.raises(PlannerError, match=f"slime has one flag .* {what}"):
        emit(envelope, other, "slime")
    assert emit(envelope, other, "verl")


def test_micro_batches_that_hold_no_sample_at_the_cut_off_are_refused() -> None:
    envelope, decision = plan()
    roles = tuple(
        role.model_copy(update={"limits": {"micro_tokens": 8192}}) if role.function == "actor" else role
        for role in decision.roles
    )
    with pytest.raises(PlannerError, match="micro-batches of 8192 tokens were measured, and samples have up to 18432"):
        emit(envelope, decision.model_copy(update={"roles": roles}), "verl")


def test_samples_beyond_the_context_of_the_model_are_refused() -> None:
    envelope, decision = plan()
    roles = tuple(
        role.model_copy(update={"limits": {**role.limits, "max_context_tokens": 200_000}})
        if role.function == "rollout"
        else role
        for role in decision.roles
    )
    with pytest.raises(PlannerError, match=r"samples have up to 200000 tokens, and engines start \S+ with 131072"):
        emit(envelope, decision.model_copy(update={"roles": roles}), "nemo-rl")


def test_verl_holds_back_by_the_staleness_of_the_plan() -> None:
    _, rows = verl_overrides("two steps ahead")
    assert "async_training.staleness_threshold=2" in rows
    _, rows = verl_overrides("streaming")
    assert "async_training.staleness_threshold=0" in rows
    assert "async_training.trigger_parameter_sync_step=4" in rows


def test_areal_writes_its_allocation_strings() -> None:
    document = yaml.safe_load(emit(*plan(**APART, engine="sglang"), "areal")["areal.yaml"])
    assert document["rollout"]["backend"] == "sglang:d16t2"
    assert document["actor"]["backend"] == "megatron:d8p1t4"
    assert document["rollout"]["max_head_offpolicyness"] == 1
    experts = yaml.safe_load(emit(*plan(**RUNS["experts"]), "areal")["areal.yaml"])
    assert experts["actor"]["backend"] == "megatron:(attn:d8p1t2|ffn:d2p1t1e8)"


def drafted(**drafter: Any) -> tuple[Envelope, RlDecision]:  # noqa: ANN401
    envelope, decision = plan(options={"speculation": {"acceptance": 0.7, "draft_tokens": [3], **drafter}})
    roles = [
        role.model_copy(update={"limits": {**role.limits, "draft_tokens": 3}}) if role.function == "rollout" else role
        for role in decision.roles
    ]
    return envelope, decision.model_copy(update={"roles": tuple(roles)})


@pytest.mark.parametrize(
    ("drafter", "configured"),
    [
        ({"method": "mtp"}, {"method": "mtp"}),
        (
            {"method": "stated", "draft_step": "1ms", "algorithm": "eagle3", "checkpoint": "org/head"},
            {"method": "eagle3", "model": "org/head"},
        ),
    ],
)
def test_nemo_rl_names_the_drafter_and_others_refuse_drafts(
    drafter: dict[str, Any], configured: dict[str, Any]
) -> None:
    document = yaml.safe_load(emit(*drafted(**drafter), "nemo-rl")["nemo-rl.yaml"])
    config = document["policy"]["generation"]["vllm_kwargs"]["speculative_config"]
    assert config == {**configured, "num_speculative_tokens": 3}
    with pytest.raises(PlannerError, match="verl starts generators without drafts"):
        emit(*drafted(**drafter), "verl")


def test_a_drafter_without_a_name_has_no_configuration() -> None:
    with pytest.raises(PlannerError, match="only the time is stated"):
        emit(*drafted(method="stated", draft_step="1ms"), "nemo-rl")


def test_nemo_rl_says_which_nodes_generate_and_how_old_samples_may_be() -> None:
    document = yaml.safe_load(emit(*plan(**APART), "nemo-rl")["nemo-rl.yaml"])
    assert document["grpo"]["async_grpo"] == {"enabled": True, "max_trajectory_age_steps": 1}
    assert document["policy"]["generation"]["colocated"]["resources"] == {"gpus_per_node": 8, "num_nodes": 4}
    assert document["cluster"] == {"gpus_per_node": 8, "num_nodes": 8}
    assert document["policy"]["train_global_batch_size"] == 2048


def test_openrlhf_and_slime_count_engines_and_gpus() -> None:
    script = emit(*plan(**APART), "openrlhf")["launch-openrlhf.sh"]
    assert "--vllm.num_engines 16" in script
    assert "--train.async_enable" in script
    script = emit(*plan(**APART, engine="sglang"), "slime")["launch-slime.sh"]
    assert "train_async.py" in script
    assert "--rollout-num-gpus 32" in script
    assert "--rollout-num-gpus-per-engine 2" in script
    assert "--colocate" in emit(*plan(engine="sglang"), "slime")["launch-slime.sh"]


def of_gpus(
    generating: int,
    training: int,
    *,
    tp: int = 2,
    engine: str = "vllm",
    **changes: Any,  # noqa: ANN401
) -> tuple[Envelope, RlDecision]:
    """The plan with so many GPUs of nodes of eight for each role, in replicas of tp 2 and of `tp`."""
    shape = {**MIXTURE, "ep": 1, "tp": tp, "dp": training // tp}
    envelope, decision = plan(**APART, engine=engine, actor=shape, **changes)
    sized = {"rollout": generating // 2}
    kept = [role for role in decision.roles if role.function in ("rollout", "actor")]
    roles = tuple(role.model_copy(update={"replicas": sized.get(role.function, role.replicas)}) for role in kept)
    return envelope, decision.model_copy(update={"roles": roles})


def test_verl_is_told_parts_that_lie_beside_each_other_on_nodes() -> None:
    # of four nodes; 7 + 7 would leave 2 x 8 + 1 + 1
    rows = emit(*of_gpus(18, 14, tp=1), "verl")["overrides.txt"].splitlines()
    assert {"trainer.nnodes=7", "trainer.n_gpus_per_node=2"} <= set(rows)
    assert {"rollout.nnodes=3", "rollout.n_gpus_per_node=6"} <= set(rows)
    rows = emit(*of_gpus(16, 16), "verl")["overrides.txt"].splitlines()
    assert {"trainer.nnodes=2", "trainer.n_gpus_per_node=8", "rollout.nnodes=2"} <= set(rows)


def test_nodes_out_of_service_hold_no_part_of_a_role() -> None:
    envelope, decision = of_gpus(12, 20, tp=1)  # 3 x 4 and 5 x 4 on four nodes, 2 x 6 and 5 x 4 on five
    inputs = cast("dict[str, Any]", copy.deepcopy(envelope.inputs))
    (pool,) = inputs["cluster"]["pools"]
    pool["nodes"], pool["out_of_service"] = 5, [4]
    rows = emit(envelope.model_copy(update={"inputs": inputs}), decision, "verl")["overrides.txt"].splitlines()
    assert {"rollout.nnodes=3", "rollout.n_gpus_per_node=4", "trainer.nnodes=5"} <= set(rows)
    pool["out_of_service"] = []
    rows = emit(envelope.model_copy(update={"inputs": inputs}), decision, "verl")["overrides.txt"].splitlines()
    assert {"rollout.nnodes=2", "rollout.n_gpus_per_node=6", "trainer.nnodes=5"} <= set(rows)


def test_half_a_node_each_is_one_node_of_both() -> None:
    document = yaml.safe_load(emit(*of_gpus(4, 4), "nemo-rl")["nemo-rl.yaml"])
    assert document["cluster"] == {"gpus_per_node": 8, "num_nodes": 1}
    rows = emit(*of_gpus(4, 4), "verl")["overrides.txt"].splitlines()
    assert {"trainer.nnodes=1", "trainer.n_gpus_per_node=4", "rollout.n_gpus_per_node=4"} <= set(rows)


def test_nemo_rl_takes_whole_nodes_or_shares_of_one() -> None:
    document = yaml.safe_load(emit(*of_gpus(2, 4), "nemo-rl")["nemo-rl.yaml"])
    assert document["cluster"] == {"gpus_per_node": 6, "num_nodes": 1}
    assert document["policy"]["generation"]["colocated"]["resources"] == {"gpus_per_node": 2, "num_nodes": 1}
    with pytest.raises(PlannerError, match="whole nodes of 8 GPUs, or parts of one"):
        emit(*of_gpus(2, 14), "nemo-rl")


def test_slime_and_areal_take_any_gpus_whose_engines_lie_on_one_node() -> None:
    script = emit(*of_gpus(2, 14, engine="sglang"), "slime")["launch-slime.sh"]
    assert "--rollout-num-gpus 2" in script
    assert yaml.safe_load(emit(*of_gpus(2, 14), "areal")["areal.yaml"])["cluster"] == {
        "n_nodes": 2,
        "n_gpus_per_node": 8,
    }
    with pytest.raises(PlannerError, match="an engine of 2 GPUs behind 15 straddles nodes"):
        emit(*of_gpus(2, 15, tp=1, engine="sglang"), "slime")
    assert "--rollout-num-gpus 2" in emit(*of_gpus(2, 13, tp=1, engine="sglang"), "slime")["launch-slime.sh"]


def test_roles_of_two_pools_lie_on_no_node_together() -> None:
    envelope, decision = of_gpus(2, 4)
    inputs = copy.deepcopy(envelope.inputs)
    pools = cast("dict[str, list[object]]", inputs["cluster"])["pools"]
    pools.append({"name": "h20", "gpu": "h20_sxm", "nodes": 1})
    roles = tuple(
        role.model_copy(update={"pool": "h20"}) if role.function == "rollout" else role for role in decision.roles
    )
    plan_of_two = (
        envelope.model_copy(update={"inputs": inputs}),
        decision.model_copy(update={"roles": roles}),
    )
    assert yaml.safe_load(emit(*plan_of_two, "areal")["areal.yaml"])["cluster"]["n_nodes"] == 2
    with pytest.raises(PlannerError, match="whole nodes of 8 GPUs"):
        emit(*plan_of_two, "nemo-rl")


@pytest.mark.parametrize(
    ("target", "changes", "what"),
    [
        ("slime", {}, "slime runs SGLang"),
        ("slime", {**APART, "staleness": 2, "engine": "sglang"}, "slime runs at most 1 ahead"),
        ("openrlhf", {"actor": {**MIXTURE, "pp": 2}}, "without pipeline and expert"),
        ("nemo-rl", RUNS["streaming"], "does not stream"),
        ("slime", {**RUNS["streaming"], "engine": "sglang"}, "does not stream"),
        ("areal", {"engine": "trtllm"}, "AReaL runs SGLang or vLLM"),
        ("nemo-rl", {"options": {"algorithm": "ppo"}}, "NeMo-RL has no `ppo`"),
        ("verl", {"options": {"prompts": 510}}, "510 prompts do not divide into 4"),
        ("areal", {"actor": {**MIXTURE, "ep": 3}}, "leave some out"),
    ],
)
def test_what_a_framework_cannot_run_is_refused(target: str, changes: dict[str, Any], what: str) -> None:
    with pytest.raises(PlannerError, match=what):
        emit(*plan(**changes), target)


def test_all_that_a_framework_cannot_run_is_refused_at_once() -> None:
    with pytest.raises(PlannerError) as refused:
        emit(*plan(engine="sglang", actor={**MIXTURE, "pp": 2}, synchrony="stream"), "openrlhf")
    error, told = refused.value, ("without pipeline and expert", "OpenRLHF runs vLLM", "does not stream")
    assert [text in error.what for text in told] == [True] * 3
    assert "`training_pp: [1]`" in error.hint
    assert "`synchrony: [synchronous, asynchronous]`" in error.hint
    assert error.where == "roles.actor"


def test_groups_of_unequal_replicas_are_refused() -> None:
    envelope, decision = plan()
    tail = decision.roles[0].model_copy(update={"name": "rollout-tail"})
    unequal = decision.model_copy(update={"roles": (*decision.roles, tail)})
    with pytest.raises(PlannerError, match="2 groups generate"):
        emit(envelope, unequal, "verl")


def test_a_name_that_hydra_would_read_as_grammar_is_quoted() -> None:
    envelope, decision = plan()
    named = json.loads(envelope.model_dump_json(by_alias=True, exclude_none=True))
    named["inputs"]["models"]["policy"] = {"name": "a,b'c"}
    text = emit(Envelope.model_validate(named), decision, "verl")["overrides.txt"]
    assert "actor_rollout_ref.model.path='a,b\\'c'" in text


def _package(name: str) -> Path:
    """Where an installed package lies, without running it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package {name} is not installed")
    return Path(spec.origin).parent


@pytest.mark.parametrize("run", [*RUNS, "served", "fp8"])
def test_verl_composes_the_overrides_and_refuses_a_wrong_key(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verl, hydra = _package("verl"), pytest.importorskip("hydra", reason="hydra-core is not installed")
    config, rows = verl_overrides(run)
    monkeypatch.chdir(verl.parent)  # verl's recipes find its configurations from there
    folder = next(path.parent for path in sorted(verl.rglob(f"{config}.yaml")))
    with hydra.initialize_config_dir(config_dir=str(folder), version_base=None):
        composed = hydra.compose(config, overrides=rows)
        assert composed.actor_rollout_ref.actor.megatron.tensor_model_parallel_size in (2, 4)
        with pytest.raises(Exception, match="ppo_mini_batch_sise"):
            hydra.compose(config, overrides=["actor_rollout_ref.actor.ppo_mini_batch_sise=1"])


@pytest.mark.parametrize("run", RUNS)
def test_areals_grammar_reads_the_backends(run: str) -> None:
    lark = pytest.importorskip("lark", reason="lark is not installed")
    tree = ast.parse((_package("areal") / "api" / "alloc_mode.py").read_text(encoding="utf-8"))
    grammar = next(
        node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "ALLOCATION_GRAMMAR"
    )
    parser = lark.Lark(grammar, parser="earley", ambiguity="explicit")
    document = yaml.safe_load(emit(*plan(**RUNS[run]), "areal")["areal.yaml"])
    for part in ("rollout", "actor", "ref"):
        parser.parse(document[part]["backend"])


def scored_apart(*parts: str, tp: int = 4, engine: str = "vllm", takes: str = "") -> tuple[Envelope, RlDecision]:
    """The plan with these parts on two engines each of nodes of their own, 16 samples in a batch.

    They are sent samples, and with `takes` the batches that training takes up.
    """
    envelope, decision = plan(engine=engine, **APART)
    sent = {"batch_samples": 16} | ({"takes": takes} if takes else {})
    own = {"parallelism": Parallelism(tp=tp), "replicas": 2, "limits": sent, "memory": None}
    actor = next(role for role in decision.roles if role.function == "actor")
    kept = [role for role in decision.roles if role.function not in parts]
    served = [actor.model_copy(update={"name": part, "function": part, **own}) for part in parts]
    return envelope, decision.model_copy(update={"roles": (*kept, *served)})


def test_verl_serves_a_reward_and_a_teacher_from_pools_of_their_own() -> None:
    rows = emit(*scored_apart("reward", "teacher"), "verl")["overrides.txt"].splitlines()
    assert {"reward.reward_model.enable_resource_pool=True", "reward.reward_model.nnodes=1"} <= set(rows)
    assert {"distillation.enabled=True", "distillation.n_gpus_per_node=8"} <= set(rows)
    assert "distillation.teacher_models.teacher_model.num_replicas=2" in rows


def test_areal_and_openrlhf_give_a_reference_gpus_of_its_own() -> None:
    text = emit(*scored_apart("reference", "teacher", takes="batches"), "areal")["areal.yaml"]
    assert "# AReaL starts the reference where `actor.kl_ctl` is above 0" in text
    document = yaml.safe_load(text)
    for scorer in (document["ref"], document["teacher"]["train"]):
        assert scorer["backend"] == "megatron:d2p1t4"
        assert scorer["scheduling_strategy"] == {"type": "separation"}
    assert document["cluster"]["n_nodes"] == 10
    script = emit(*scored_apart("reference", takes="batches"), "openrlhf")["launch-openrlhf.sh"]
    assert "OpenRLHF scores beside the log-probabilities of the actor" in script
    assert "--ref.num_nodes 1" in script
    assert "--train.colocate_actor_ref" not in script


def test_nemo_rl_and_slime_name_the_servers_that_score() -> None:
    document = yaml.safe_load(emit(*scored_apart("reward"), "nemo-rl")["nemo-rl.yaml"])
    assert document["env"]["reward_model"]["resources"] == {"gpus_per_node": 8, "num_nodes": 1}
    assert document["cluster"]["num_nodes"] == 9
    script = emit(*scored_apart("teacher", engine="sglang"), "slime")["launch-slime.sh"]
    assert "--opd-type sglang" in script
    assert '--rm-url "${TEACHER_URL}"' in script


@pytest.mark.parametrize(
    ("target", "parts", "what", "hint"),
    [
        ("verl", ("reference",), "verl gives the reference no GPUs of its own", "without `served` for the reference,"),
        ("nemo-rl", ("teacher",), "NeMo-RL gives the teacher no GPUs", "without the teacher,"),
        ("slime", ("reward", "teacher"), "slime asks one server", "the reward or the teacher"),
        ("openrlhf", ("teacher",), "OpenRLHF gives the teacher no GPUs", "without the teacher,"),
        ("areal", ("reward",), "AReaL gives the reward no GPUs", "without the reward,"),
    ],
)
def test_servers_that_a_framework_does_not_have_are_refused(
    target: str, parts: tuple[str, ...], what: str, hint: str
) -> None:
    """A part that the framework has beside the actor may score there; another is to be left out."""
    with pytest.raises(PlannerError, match=what) as refused:
        emit(*scored_apart(*parts, engine="sglang" if target == "slime" else "vllm"), target)
    assert hint in refused.value.hint


@pytest.mark.parametrize(
    ("target", "part", "takes", "what"),
    [
        ("verl", "teacher", "batches", "verl sends the teacher samples as they are generated"),
        ("nemo-rl", "reward", "batches", "NeMo-RL sends the reward samples"),
        ("slime", "reward", "batches", "slime sends the reward samples"),
        ("areal", "reference", "", "AReaL sends the reference whole batches"),
        ("openrlhf", "reward", "", "OpenRLHF sends the reward whole batches"),
    ],
)
def test_servers_are_sent_what_the_plan_was_priced_with(target: str, part: str, takes: str, what: str) -> None:
    with pytest.raises(PlannerError, match=what) as refused:
        emit(*scored_apart(part, engine="sglang" if target == "slime" else "vllm", takes=takes), target)
    assert f"takes: {'samples' if takes else 'batches'}" in str(refused.value.hint)


@pytest.mark.parametrize(("by", "environment"), [("rule", "math"), ("sandbox", "code")])
def test_workers_that_find_rewards_are_counted_where_a_framework_counts_them(by: str, environment: str) -> None:
    calls = {"reward_calls": {"by": by, "time": "1s", "workers": 48}}
    assert "reward.num_workers=48" in emit(*plan(options=calls), "verl")["overrides.txt"]
    document = yaml.safe_load(emit(*plan(options=calls), "nemo-rl")["nemo-rl.yaml"])
    assert document["env"] == {environment: {"num_workers": 48}}
    for target, file, engine in (
        ("areal", "areal.yaml", "vllm"),
        ("openrlhf", "launch-openrlhf.sh", "vllm"),
        ("slime", "launch-slime.sh", "sglang"),
    ):
        assert "the plan has 48 of them" in emit(*plan(options=calls, engine=engine), target)[file]


def test_slime_asks_a_served_reward_also_beside_a_teacher_that_megatron_runs() -> None:
    envelope, decision = scored_apart("reward", engine="sglang")
    actor = next(role for role in decision.roles if role.function == "actor")
    teacher = actor.model_copy(update={"name": "teacher", "function": "teacher"})
    taught = decision.model_copy(update={"roles": (*decision.roles, teacher)})
    script = emit(envelope, taught, "slime")["launch-slime.sh"]
    assert {"--opd-type megatron", "--rm-type remote_rm"} <= {row.strip(" \\") for row in script.splitlines()}


def in_fp8(engine: str = "vllm") -> tuple[Envelope, RlDecision]:
    """The plan with training and generation in fp8, scaled by blocks."""
    envelope, decision = plan(engine=engine, **APART)
    told = {"actor": {"precision": "fp8_block"}, "rollout": {"weights": "fp8_block"}}
    roles = [
        role.model_copy(update={"limits": {**role.limits, **told.get(role.function, {})}}) for role in decision.roles
    ]
    return envelope, decision.model_copy(update={"roles": tuple(roles)})


def test_formats_are_told_where_a_framework_has_them() -> None:
    document = yaml.safe_load(emit(*in_fp8(), "nemo-rl")["nemo-rl.yaml"])
    recipe = document["policy"]["megatron_cfg"]["fp8_cfg"]
    assert (recipe["fp8"], recipe["fp8_recipe"]) == ("e4m3", "blockwise")
    assert document["policy"]["generation"]["vllm_cfg"]["precision"] == "fp8"
    script = emit(*in_fp8("sglang"), "slime")["launch-slime.sh"]
    assert "--fp8-format e4m3" in script
    assert "convert_hf_to_fp8.py" in script
    with pytest.raises(PlannerError, match="AReaL does not generate in fp8_block"):
        emit(*in_fp8(), "areal")
    with pytest.raises(PlannerError, match="OpenRLHF does not train in fp8_block"):
        emit(*in_fp8(), "openrlhf")


@pytest.mark.parametrize(("weights", "able", "unable"), [("host", "nemo-rl", "verl"), ("drop", "verl", "nemo-rl")])
def test_engines_sleep_as_the_framework_lets_them(weights: str, able: str, unable: str) -> None:
    moved = {"engine_weights": weights, "engine_bytes": 1e9, "training_bytes": 1e9, "moved_s": 1.0}
    taken = {**moved, "host_bytes": 1e9, "host_capacity_bytes": 1e12}
    asked = plan(turns=taken, options={"engine_sleep": [weights]})
    assert emit(*asked, able)
    with pytest.raises(PlannerError, match=f"solve with `engine_sleep: .{'drop' if weights == 'host' else 'host'}"):
        emit(*asked, unable)
    if weights == "drop":
        assert "keeps weights of engines that sleep" in emit(*plan(turns=taken), "nemo-rl")["nemo-rl.yaml"]
