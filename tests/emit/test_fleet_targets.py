"""Plans of a day for schedulers: every phase and job, as the plan says, and the files of the jobs beside them."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.api import solve
from planner.cli.main import main
from planner.emit.registry import emit
from planner.kinds.registry import find_kind
from planner.plan.schema import Envelope
from planner.plan.store import plan_json

SERVE = {
    "kind": "serve",
    "models": {"m": {"name": "Qwen/Qwen3-8B"}},
    "workloads": [{"input_tokens": 512, "output_tokens": 64, "slo": {"ttft": {"p95": "1s"}}}],
    "options": {"modes": ["colocated"], "tp": [2], "pp": [1], "max_batch": [64], "chunk_tokens": [2048]},
}
DAY = {
    "kind": "fleet",
    "name": "day",
    "cluster": {"pools": [{"gpu": "h100_sxm", "nodes": 4, "gpus_per_node": 2}]},
    "options": {
        "window_s": 21600.0,
        "windows": 4,
        "jobs": [
            {"name": "chat", "problem": SERVE, "usd_per_unit": 0.01, "load": {"rates_per_s": [20, 150, 250, 90]}},
            {
                "name": "batch-work",
                "curve": [{"nodes": nodes, "units_per_hour": nodes} for nodes in (1, 2, 3)],
                "usd_per_unit": 9.0,
            },
        ],
    },
}


@pytest.fixture(scope="module")
def plan() -> Envelope:
    return solve(DAY)


def files(plan: Envelope, target: str) -> dict[str, str]:
    return emit(plan, find_kind("fleet").decision.model_validate(plan.decision), target)


def nodes(plan: Envelope) -> list[dict[str, int]]:
    windows: Any = plan.decision["windows"]
    return [window["nodes"] for window in windows]


def test_queues_hold_what_the_jobs_have_in_every_phase(plan: Envelope) -> None:
    made = files(plan, "fleet-kueue")
    assert len(nodes(plan)) > 2
    changes = [made[name] for name in made if name.startswith("changes/")]
    for text, wanted in zip(changes, nodes(plan), strict=True):
        quotas = {}
        for each in yaml.safe_load_all(text):
            (resource,) = each["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
            quotas[each["metadata"]["name"].removeprefix("day-")] = resource["nominalQuota"] // 2
            assert each["spec"]["cohortName"] == "day"
        assert quotas == wanted
    assert made["crontab"].count("kubectl apply") == len(changes)
    assert "0 6 * * *" in made["crontab"]


def test_a_service_scales_by_the_clock_to_the_copies_of_its_plan(plan: Envelope) -> None:
    made = files(plan, "fleet-kueue")
    (scaled,) = yaml.safe_load_all(made["scale-chat.yaml"])
    sets = [each for each in yaml.safe_load_all(made["jobs/chat-1/plan.yaml"]) if each["kind"] == "StatefulSet"]
    assert [each["metadata"]["name"] for each in sets] == [scaled["spec"]["scaleTargetRef"]["name"]]
    each = sets[0]["spec"]["replicas"]
    wanted = [row["chat"] * each for row in nodes(plan) if row["chat"]]
    assert [int(trigger["metadata"]["desiredReplicas"]) for trigger in scaled["spec"]["triggers"]] == wanted


def test_reservations_and_bounds_have_a_line_for_every_job_with_nodes(plan: Envelope) -> None:
    reserve = files(plan, "fleet-slurm")["reserve.sh"]
    wanted = [(name, count) for row in nodes(plan) for name, count in row.items() if count]
    lines = [line.split() for line in reserve.splitlines() if line.startswith("scontrol")]
    got = [(line[3].split("=")[1].rsplit("-", 2)[0], int(line[6].split("=")[1])) for line in lines]
    assert got == wanted
    bounds = {name: text for name, text in files(plan, "fleet-ray").items() if name.startswith("bounds/")}
    assert len(bounds) == sum(map(len, nodes(plan)))


def test_files_lie_in_folders_of_their_own(plan: Envelope, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(plan_json(plan))
    out = tmp_path / "launch"
    assert main(["emit", str(tmp_path / "plan.json"), "--target", "fleet-slurm", "-o", str(out)]) == 0
    assert (out / "jobs" / "chat-1").is_dir()
    assert main(["emit", str(tmp_path / "plan.json"), "--target", "vllm", "-o", str(out)]) == 2
