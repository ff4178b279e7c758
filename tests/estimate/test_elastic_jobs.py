"""Training plans as elastic jobs, and the verb that shares idle GPUs out to them."""

import json
from pathlib import Path

import pytest
from train_problems import problem

from planner.cli.main import main
from planner.documents.read import given_document
from planner.errors import PlannerError
from planner.estimate.elastic import elastic_job
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.solve import solve
from planner.load.problems import resolve_document
from planner.plan.schema import Envelope
from planner.plan.store import plan_json
from planner.progress import Limits


@pytest.fixture(scope="module")
def plan() -> Envelope:
    """Eight workers of two GPUs each."""
    search = {"tp": 2, "cp": 1, "pp": 1, "dp": 8, "micro_batch": 1, "zero_stage": 1, "recompute": "full"}
    data = problem("Qwen/Qwen2.5-3B", global_batch=32, search=search)
    return solve(resolve_document(given_document(data, "problem"), Path()), Limits())


def test_a_worker_takes_what_a_replica_takes_on_each_kind_of_gpu(plan: Envelope) -> None:
    decision = TrainDecision.model_validate(plan.decision)
    job = elastic_job(plan, decision, ["h100_sxm", "a100_sxm"])
    assert (job.tasks, job.group) == (8, 2)
    assert job.task_s["a100_sxm"] > 1.5 * job.task_s["h100_sxm"]
    step_s = plan.certificate.objective.value
    assert step_s is not None
    alone = elastic_job(plan, decision, ["h100_sxm"])
    assert alone.task_s["h100_sxm"] == job.task_s["h100_sxm"]
    assert alone.task_s["h100_sxm"] + alone.more_s == pytest.approx(step_s, rel=0.15)
    assert job.more_s >= alone.more_s  # the slowest kind of GPU is waited for
    with pytest.raises(PlannerError, match="all weights and states"):
        elastic_job(plan, decision, ["l4"])


def test_idle_gpus_go_to_the_jobs_that_make_most_of_them(
    plan: Envelope, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan_json(plan), encoding="utf-8")
    arguments = ["faults", "elastic", str(path), str(path), "--gpus", "h100_sxm=8,a100_sxm=16"]
    assert main([*arguments, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "planner.faults_elastic/1"
    assert answer["status"] == "optimal"
    assert answer["speed"] == pytest.approx(answer["bound"])
    assert sum(row["workers"] for job in answer["jobs"] for row in job["runs"]) == 8 * len(answer["jobs"])
    for name, most in (("h100_sxm", 8), ("a100_sxm", 16)):
        assert sum(row["gpus"] for job in answer["jobs"] for row in job["runs"] if row["gpu"] == name) <= most
    assert main(arguments) == 0
    assert "workers" in capsys.readouterr().out


def test_gpus_are_named_with_their_number(plan: Envelope, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan_json(plan), encoding="utf-8")
    assert main(["faults", "elastic", str(path), "--gpus", "h100_sxm"]) == 2
