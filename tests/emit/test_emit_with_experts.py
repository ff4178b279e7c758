"""A serving plan and a layout of its experts in one launch: the map in force, or a refusal with both numbers."""

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster_read import READERS
from emit_plans import DEEPSEEK, QWEN, Case, RolePlan, colocated
from emit_runs import Stage
from test_cluster_targets import COLOCATED, IMAGES, OPTIONS, built

from planner.cli.main import main
from planner.emit.registry import LayoutPlan, emit
from planner.errors import PlannerError
from planner.kinds.experts.decision import ExpertsDecision
from planner.plan.schema import Envelope, Memory
from planner.plan.store import plan_json

WIDE = colocated(1, 4, DEEPSEEK, dp=32, ep=32)
SPLIT = Case(
    (RolePlan("prefill", 1, {"dp": 32, "ep": 32}), RolePlan("decode", 1, {"dp": 32, "ep": 32})),
    {"default": {"name": DEEPSEEK}},
    nodes=8,
)


@pytest.mark.parametrize(("target", "engine"), [pair for pair in COLOCATED if pair != ("docker-compose", "trtllm")])
def test_every_pod_of_a_cluster_has_the_map_where_its_command_looks_for_it(
    target: str, engine: str, layout: Callable[..., LayoutPlan]
) -> None:
    secret = "ranks" if engine == "trtllm" and target in ("kubernetes", "lws") else None
    options = replace(OPTIONS.get(target, IMAGES), ssh_secret=secret)
    files = emit(*built(WIDE, engine), target, [layout()], options)
    pods = READERS[target](files)["plan-colocated"].pods
    assert len(pods) == 4
    for pod in pods:
        told = " ".join(pod.argv)
        if engine == "trtllm":
            told = yaml.safe_load(pod.files["config-colocated.yaml"])["moe_config"]["load_balancer"]
        assert [name for name in pod.files if name in told and name not in ("mpi.sh", "config-colocated.yaml")]


@pytest.fixture
def layout(edited_plan: Callable[..., dict[str, Any]]) -> Callable[..., LayoutPlan]:
    def read(edits: dict[str, Any] | None = None, role: str | None = None) -> LayoutPlan:
        equal = {f"decision.layouts.{part}.quota": None for part in (0, 1)}
        envelope = Envelope.model_validate(edited_plan("experts", {**equal, **(edits or {})}))
        return LayoutPlan("layout.json", role, envelope, ExpertsDecision.model_validate(envelope.decision))

    return read


def flags(text: str, program: str) -> dict[str, str]:
    """Flags of the only command of a script, by name."""
    (command,) = re.findall(rf"^.*{program}.*&$", text.replace("\\\n", " "), re.MULTILINE)
    words = shlex.split(command.removesuffix("&"))
    return {name: value for name, value in zip(words, [*words[1:], ""], strict=True) if name.startswith("--")}


def test_sglang_starts_from_the_planned_map(layout: Callable[..., LayoutPlan]) -> None:
    plan = layout()
    files = emit(*WIDE.build(), "sglang", [plan])
    rows = json.loads(files["expert-location.json"])["physical_to_logical_map"]
    assert isinstance(plan.decision, ExpertsDecision)
    assert rows[3] == list(plan.decision.layouts[0].expert_of_slot)
    for node in range(4):
        given = flags(files[f"launch-node-0{node}.sh"], "python3 -m sglang")
        assert given["--init-expert-location"] == "expert-location.json"
        assert int(given["--ep-num-redundant-experts"]) == len(rows[3]) - 256 == 32
        assert given["--ep-dispatch-algorithm"] == "dynamic"
        assert "--enable-eplb" not in given


def test_vllm_starts_from_the_planned_map_or_not_at_all_and_the_script_says_which(
    layout: Callable[..., LayoutPlan],
) -> None:
    files = emit(*WIDE.build(), "vllm", [layout()])
    text = files["launch-node-00.sh"]
    config = json.loads(flags(text, "vllm serve")["--eplb-config"])
    assert config == {
        "num_redundant_experts": 32,
        "initial_mapping_path": "expert-mapping.jsonl",
        "disable_online_rebalancing": True,
    }
    assert json.loads(files["expert-mapping.jsonl"])["num_slots"] == 288
    assert "--enable-expert-parallel" in flags(text, "vllm serve")
    assert "#41141 on. Version 0.33 is without it: it refuses initial_mapping_path and does not start" in text
    assert "9 slots on each of 32 ranks" in text


def test_a_plan_without_layouts_is_emitted_as_before(layout: Callable[..., LayoutPlan]) -> None:
    files = emit(*WIDE.build(), "vllm")
    assert "--enable-eplb" not in "".join(files.values())
    assert files == emit(*WIDE.build(), "vllm", [])


def test_the_file_is_found_wherever_the_script_is_started(layout: Callable[..., LayoutPlan], tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    case = colocated(1, 1, DEEPSEEK, dp=8, ep=8)
    eight = {"decision.roles.0.parallelism": {"dp": 8, "ep": 8, "tp": 1}, "decision.slots_per_rank": [36]}
    for name, text in emit(*case.build(), "sglang", [layout(eight)]).items():
        (tmp_path / name).write_text(text)
    subprocess.run(["bash", tmp_path / "launch-node-00.sh"], cwd="/", env=stage.environment(), check=True)
    (call,) = stage.calls()
    assert call.environment["PWD"] == str(tmp_path)


def test_each_role_may_start_from_a_layout_of_its_own(layout: Callable[..., LayoutPlan]) -> None:
    turned = {"decision.layouts.0.expert_of_slot": list(reversed(range(256))) + list(range(32))}
    files = emit(*SPLIT.build(), "sglang", [layout(role="decode"), layout(turned, role="prefill")])
    assert flags(files["launch-node-00.sh"], "python3 -m sglang")["--init-expert-location"] == "expert-location-1.json"
    assert flags(files["launch-node-04.sh"], "python3 -m sglang")["--init-expert-location"] == "expert-location-0.json"
    assert files["expert-location-0.json"] != files["expert-location-1.json"]
    shared = emit(*SPLIT.build(), "sglang", [layout()])
    assert {name for name in shared if name.startswith("expert")} == {"expert-location.json"}


def test_layouts_that_do_not_agree_with_the_plan_are_refused_with_both_numbers(
    layout: Callable[..., LayoutPlan],
) -> None:
    def refused(case: Case, *layouts: LayoutPlan) -> str:
        with pytest.raises(PlannerError) as error:
            emit(*case.build(), "sglang", layouts)
        return error.value.what

    eight = colocated(1, 1, DEEPSEEK, dp=8, ep=8)
    assert "its experts lie on ep 8 ranks, those of the layout on 32" in refused(eight, layout())
    qwen = colocated(1, 4, "Qwen/Qwen3-235B-A22B", dp=32, ep=32)
    assert "it serves `Qwen/Qwen3-235B-A22B`, the layout is of `deepseek-ai/DeepSeek-V3`" in refused(qwen, layout())
    assert "no role of the plan spreads experts" in refused(colocated(1, 1, QWEN, tp=1), layout())
    assert "2 layouts fit it" in refused(WIDE, layout(), layout())
    assert "no role `decode` spreads experts" in refused(WIDE, layout(role="decode"))
    assert "no role starts from this layout" in refused(SPLIT, layout(), layout(role="prefill"), layout(role="decode"))
    used = Memory(weights_bytes=100e9, kv_cache_bytes=20e9, capacity_bytes=122e9)
    full = replace(WIDE, roles=(replace(WIDE.roles[0], memory=used),))
    assert "has 9 slots a rank, the plan 8: 2.55 GB more, where 2.00 GB are left" in refused(full, layout())


def test_the_verb_takes_layouts_by_role(
    layout: Callable[..., LayoutPlan],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("planner.check.sound.require_sound", lambda *plan: [])  # these are written by hand
    envelope, _ = SPLIT.build()
    objective = envelope.certificate.objective.model_copy(update={"value": 1.0})
    certificate = envelope.certificate.model_copy(update={"objective": objective})
    (tmp_path / "plan.json").write_text(plan_json(envelope.model_copy(update={"certificate": certificate})))
    (tmp_path / "layout.json").write_text(plan_json(layout().envelope))
    paths = [str(tmp_path / name) for name in ("plan.json", "layout.json", "launch")]
    command = ["emit", paths[0], "--target", "sglang", "--experts", paths[1], "-o", paths[2]]
    assert main(command) == 0, capsys.readouterr().err
    assert (tmp_path / "launch" / "expert-location.json").is_file()
    assert main([*command[:4], "--experts", f"prefill={paths[1]}", "--experts", f"decode={paths[1]}"]) == 0
    assert main([*command[:4], "--experts", paths[0]]) == 2
    assert "is a plan of kind `serve`, not of expert layouts" in capsys.readouterr().err


@pytest.mark.parametrize(("copies", "refused"), [(32, False), (64, True)])
def test_a_layout_has_the_copies_that_its_role_was_planned_with(
    layout: Callable[..., LayoutPlan], copies: int, refused: bool
) -> None:
    role = replace(WIDE.roles[0], limits={**WIDE.roles[0].limits, "redundant_experts": copies})
    plan = replace(WIDE, roles=(role,)).build()
    if refused:
        with pytest.raises(PlannerError, match="the layout has 32 redundant experts, the plan 64"):
            emit(*plan, "sglang", [layout()])
        return
    told = flags(emit(*plan, "sglang", [layout()])["launch-node-00.sh"], "python3 -m sglang")
    assert told["--ep-num-redundant-experts"] == "32"
    assert "--enable-eplb" not in told
