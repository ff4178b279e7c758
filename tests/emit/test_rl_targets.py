"""RL plans leave for each framework with its own keys: what the plan decided is there, and its parsers accept it."""

import ast
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.rl.decision import RlDecision
from planner.plan.schema import Envelope

PLAN = Path(__file__).parents[1] / "plans" / "rl.json"
MIXTURE = {"tp": 2, "pp": 1, "dp": 8, "cp": 1, "ep": 8, "moe_tp": 1, "vpp": 1}


def plan(**changes: Any) -> tuple[Envelope, RlDecision]:  # noqa: ANN401
    """The hand-written colocated plan with parts of its decision exchanged; `engine` and `actor` reach its roles."""
    document = json.loads(PLAN.read_text(encoding="utf-8"))
    decision = document["decision"]
    engine, shape = changes.pop("engine", None), changes.pop("actor", None)
    for role in decision["roles"]:
        if role["function"] == "rollout" and engine:
            role["engine"]["name"] = engine
        if role["function"] == "actor" and shape:
            role["parallelism"] = shape
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
    files = emit(*plan(**RUNS[run]), "verl")
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


@pytest.mark.parametrize(
    ("target", "changes", "what"),
    [
        ("slime", {}, "slime runs SGLang"),
        ("slime", {**APART, "staleness": 2, "engine": "sglang"}, "at most one rollout ahead"),
        ("openrlhf", {"actor": {**MIXTURE, "pp": 2}}, "without pipeline and expert"),
        ("nemo-rl", RUNS["streaming"], "does not stream"),
        ("nemo-rl", {"options": {"algorithm": "ppo"}}, "NeMo-RL has no `ppo`"),
        ("verl", {"options": {"prompts": 510}}, "510 prompts do not divide into 4"),
        ("areal", {"actor": {**MIXTURE, "ep": 3}}, "leave some out"),
    ],
)
def test_what_a_framework_cannot_run_is_refused(target: str, changes: dict[str, Any], what: str) -> None:
    with pytest.raises(PlannerError, match=what):
        emit(*plan(**changes), target)


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


@pytest.mark.parametrize("run", RUNS)
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
