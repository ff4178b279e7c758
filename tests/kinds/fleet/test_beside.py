"""Elastic and opportunistic jobs of a day, and days on several pools: best, checked, told and launched."""

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.api import solve
from planner.check import check_plan
from planner.cli.main import main
from planner.emit.registry import emit
from planner.errors import Infeasible, PlannerError
from planner.explain.explanation import explain_plan
from planner.kinds.registry import find_kind
from planner.plan.findings import passed
from planner.plan.schema import Envelope
from planner.plan.store import plan_json

CASES = Path(__file__).parents[3].parent / "shared" / "data" / "cases"


def day(*pools: tuple[str, int], gpus_per_node: int = 1, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    own = [{"gpu": "h100_sxm", "name": name, "nodes": nodes, "gpus_per_node": gpus_per_node} for name, nodes in pools]
    return {"kind": "fleet", "cluster": {"pools": own}, "options": options}


def curve(*rates: float) -> list[dict[str, Any]]:
    return [{"nodes": nodes, "units_per_hour": rate} for nodes, rate in enumerate(rates, 1)]


def findings(envelope: Envelope, edit: Callable[[dict[str, Any]], None] = lambda decision: None) -> list[Any]:
    data = envelope.model_dump(mode="json", by_alias=True)
    edit(data["decision"])
    edited = Envelope.model_validate(data)
    return check_plan(edited, find_kind("fleet").decision.model_validate(edited.decision), proof=True)


def broken(envelope: Envelope, edit: Callable[[dict[str, Any]], None]) -> set[str]:
    return {each.rule for each in findings(envelope, edit) if each.verdict == "failed"}


CHAT = {
    "name": "chat",
    "curve": curve(100, 200),
    "usd_per_unit": 1.0,
    "usd_per_missing": 2.0,
    "load": {"rates_per_s": [0.01, 0.05, 0.02], "levels": [1.0, 1.1]},
    "shared": {"busy": "60%", "free_memory": "10GB"},
}
BATCH = {"name": "batch", "curve": curve(5, 9), "usd_per_unit": 6.0, "start_up": "20min", "restarts": "job"}
TEXT = {"name": "text", "workers": 3, "worker_s": {"b": 1.0}, "most_workers": {"b": 2}, "usd_per_hour": 25}
VISION = {"name": "vision", "workers": 4, "worker_s": {"a": 1.0, "b": 2.0}, "usd_per_hour": 40, "least_speed": 0.2}
ELASTIC = {"start_up": "5min", "jobs": [VISION, TEXT]}
TUNE = {"name": "tune", "gpus": 2, "usd_per_gpu_hour": 2, "busy": "50%", "memory": "8GB", "contention": {"chat": 0.06}}
EVAL = {"name": "eval", "gpus": 1, "usd_per_gpu_hour": 1, "busy": "90%", "memory": "20GB", "contention": 0.01}
OPPORTUNISTIC = {"most_loss": "4%", "rates": [0.25, 0.5, 1.0], "jobs": [TUNE, EVAL]}


@pytest.fixture(scope="module")
def plan() -> Envelope:
    jobs = [CHAT, BATCH]
    return solve(day(("a", 3), ("b", 3), windows=3, jobs=jobs, elastic=ELASTIC, opportunistic=OPPORTUNISTIC))


def test_a_day_with_jobs_beside_production_passes_its_check_and_its_proof(plan: Envelope) -> None:
    assert passed(findings(plan))
    decision: Any = plan.decision
    assert {each["job"] for each in decision["beside"]} == {"vision", "text", "tune", "eval"}
    own = {each["job"]: each["usd"] for each in decision["beside"]}
    elastic = next(each for each in decision["days"] if each["job"] == "elastic")
    assert elastic["usd"] == pytest.approx(own["vision"] + own["text"])
    (beside,) = [row.value for row in plan.predictions if row.metric == "opportunistic_usd"]
    assert beside == pytest.approx(own["tune"] + own["eval"]) != 0.0


@pytest.mark.parametrize(
    ("edit", "rule"),
    [
        (lambda d: d["windows"][0]["elastic"]["vision"].update(speed=2.0), "fleet.elastic_speed"),
        (lambda d: d["windows"][0]["elastic"]["vision"]["gpus"].update(a=9), "fleet.elastic_gpus"),
        (lambda d: d["windows"][0]["elastic"].pop("vision"), "fleet.elastic_speed"),
        (lambda d: d["opportunistic"][0]["runs"][0].update(rate=1.0), "fleet.opportunistic"),
        (lambda d: d["opportunistic"][0]["runs"][0]["gpus"].update(chat=9), "fleet.opportunistic"),
        (lambda d: d["opportunistic"][0]["losses"].update(chat=0.0), "fleet.opportunistic"),
        (lambda d: d["opportunistic"].pop(), "fleet.opportunistic"),
        (lambda d: d["windows"][0]["pools"].update(chat={"a": 9}), "fleet.plans"),
        (lambda d: d["windows"][0]["pools"]["elastic"].update(a=9), "fleet.nodes"),
        (lambda d: d["beside"][0].update(usd=9e9), "restated.decision"),
        (lambda d: d["changes"][0]["moves"].pop(), "fleet.moves"),
        (lambda d: d["changes"][0]["moves"].reverse(), "fleet.moves"),
        (lambda d: d["changes"][0].update(lost_usd=9e9), "restated.decision"),
    ],
)
def test_what_is_not_true_of_jobs_beside_production_fails(
    plan: Envelope, edit: Callable[[dict[str, Any]], None], rule: str
) -> None:
    assert rule in broken(plan, edit)


def test_an_explanation_tells_what_jobs_beside_production_have_and_what_they_cost(plan: Envelope) -> None:
    told = [fact.what for fact in explain_plan(plan, find_kind("fleet").decision.model_validate(plan.decision)).facts]
    assert any(what.startswith("`vision` has") and "never less than" in what for what in told)
    assert any(what.startswith("`chat` loses up to") and "4 % are allowed" in what for what in told)
    assert any("an hour of a node of b is worth" in what for what in told)
    assert any(what.startswith("one node of a more all day") for what in told)


def test_nodes_that_jobs_always_have_are_told_by_pool() -> None:
    """Four nodes are left with one fewer of `a`, where a job always has both."""
    bound = {"name": "bound", "curve": [{"nodes": 2, "units_per_hour": 5}], "pools": ["a"], "least_nodes": 2}
    jobs = [{**bound, "usd_per_unit": 1}, BATCH]
    plan = solve(day(("a", 2), ("b", 3), windows=2, jobs=jobs))
    told = explain_plan(plan, find_kind("fleet").decision.model_validate(plan.decision), "bound")
    assert any(fact.what.startswith("without `bound` the nodes are worth") for fact in told.facts)
    everything = explain_plan(plan, find_kind("fleet").decision.model_validate(plan.decision)).facts
    assert "one node of a fewer all day: jobs always have more" in {fact.what for fact in everything}
    with pytest.raises(Infeasible) as raised:
        solve(day(("a", 2), ("b", 3), windows=2, jobs=[jobs[0], {**jobs[0], "name": "other"}]))
    assert raised.value.conflict[0]["limit"] == "least_nodes: bound 2, other 2"


def test_files_hold_every_gpu_once_with_its_workers_and_rates(plan: Envelope) -> None:
    made = emit(plan, find_kind("fleet").decision.model_validate(plan.decision), "fleet-slurm")
    decision: Any = plan.decision
    for phase, window in zip(decision["phases"], decision["windows"], strict=True):
        label = phase["name"].replace(":", "-")
        jobs = json.loads(made[f"elastic/{label}.json"])["jobs"]
        gpus = [(gpu["pool"], gpu["node"], gpu["gpu"]) for job in jobs for gpu in job["gpus"]]
        assert len(gpus) == len(set(gpus))
        for job in jobs:
            run = window.get("elastic", {}).get(job["job"], {"gpus": {}})
            assert len(job["gpus"]) == sum(run["gpus"].values())
            workers = sorted(worker for gpu in job["gpus"] for worker in gpu["workers"])
            assert workers == list(range(len(workers)))
        for job, pools in window["pools"].items():
            for pool, nodes in pools.items():
                line = f"ReservationName={job}-{pool}-{label} "
                assert any(line in row and f"NodeCnt={nodes} " in row for row in made["reserve.sh"].splitlines())
    shared = [json.loads(text) for name, text in made.items() if name.startswith("opportunistic/")]
    first = decision["opportunistic"][0]["runs"]
    assert [(run["job"], len(run["gpus"])) for run in shared[0]["jobs"]] == [
        (run["job"], sum(run["gpus"].values())) for run in first
    ]
    rate = {run["job"]: f"{100 * run['rate']:.0f}" for run in first}
    assert all(run["environment"]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == rate[run["job"]] for run in shared[0]["jobs"])


def test_what_is_lost_at_a_change_is_what_starts_up_meanwhile() -> None:
    chat = {**CHAT, "curve": curve(100, 200, 300), "start_up": "6min", "shared": None}
    chat["load"] = {"rates_per_s": [0.02, 0.06]}
    batch = {"name": "batch", "curve": curve(5, 9, 12), "usd_per_unit": 6.0}
    made: Any = solve(day(("a", 4), windows=2, jobs=[chat, batch])).decision
    (change,) = made["changes"]
    was, now = (window["nodes"] for window in made["windows"])
    moves = [(move["job"], move["action"]) for move in change["moves"]]
    arriving = now["chat"] - was["chat"]
    assert arriving > 0
    assert sorted(moves) == [("batch", "drop")] * (was["batch"] - now["batch"]) + [("chat", "bring")] * arriving
    assert change["lost_node_hours"] == pytest.approx(arriving * 0.1)
    assert change["lost_usd"] == pytest.approx((216 - 100 * was["chat"]) * 0.1 * 3.0)
    assert change["moved_bytes"] == 0.0


def test_queues_have_a_flavor_for_every_pool(plan: Envelope) -> None:
    import yaml

    made = emit(plan, find_kind("fleet").decision.model_validate(plan.decision), "fleet-kueue")
    objects = list(yaml.safe_load_all(made["queues.yaml"]))
    flavors = [each["metadata"]["name"] for each in objects if each["kind"] == "ResourceFlavor"]
    assert len(flavors) == 2
    windows: Any = plan.decision["windows"]
    window = windows[0]
    for queue in (each for each in objects if each["kind"] == "ClusterQueue"):
        (group,) = queue["spec"]["resourceGroups"]
        quotas = {each["name"]: each["resources"][0]["nominalQuota"] for each in group["flavors"]}
        assert list(quotas) == flavors
        job = next(job for job in window["nodes"] if queue["metadata"]["name"].endswith(f"-{job}"))
        assert sum(quotas.values()) == window["nodes"][job]


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not here")
def test_the_cases_of_elastic_and_of_opportunistic_jobs_are_solved_as_problems() -> None:
    case = json.loads((CASES / "fleet_elastic_20.json").read_text())
    jobs = [
        {
            **{key: job[key] for key in ("name", "workers", "worker_s", "most_workers", "reference_s")},
            "usd_per_hour": job["weight"],
            "least_speed": case["least_speed"],
        }
        for job in case["jobs"]
    ]
    pools = list(zip(case["types"], case["gpus"], strict=True))
    assert solve(day(*pools, windows=1, elastic={"jobs": jobs})).certificate.objective.value == pytest.approx(2.5012366)
    case = json.loads((CASES / "fleet_share_16.json").read_text())
    hosts = [
        {
            "name": f"p{index}",
            "curve": curve(1),
            "usd_per_unit": 1,
            "least_nodes": 1,
            "shared": {"busy": gpu["busy"], "free_memory": f"{gpu['free_gb']}GB", "like": gpu["kind"]},
        }
        for index, gpu in enumerate(case["gpus"])
    ]
    beside = {
        "most_loss": case["production_loss"],
        "rates": case["rates"],
        "overload_loss": case["over_loss"],
        "spill_loss": case["spill_loss"],
        "spill_slowdown": case["spill_slow"],
        "jobs": [
            {
                "name": job["name"],
                "gpus": job["gang"],
                "usd_per_gpu_hour": job["weight"],
                "memory": f"{job['memory_gb']}GB",
                **{key: job[key] for key in ("busy", "contention")},
            }
            for job in case["jobs"]
        ],
    }
    solved = solve(day(("a", 16), windows=1, jobs=hosts, opportunistic=beside))
    assert [row.value for row in solved.predictions if row.metric == "opportunistic_usd"] == pytest.approx([18.4584676])


def drawn(seed: int) -> dict[str, Any]:
    """Two jobs on two pools for two windows, one of which may run on one pool alone."""
    draw = random.Random(seed)
    jobs: list[dict[str, Any]] = []
    for name in ("x", "y"):
        points = [
            {"nodes": nodes, "units_per_hour": draw.randint(1, 9) * nodes, "pool": pool}
            for pool in ("a", "b")
            for nodes in (1, 2)
        ]
        for pool in ("a", "b"):
            own = [point for point in points if point["pool"] == pool]
            own[1]["units_per_hour"] = max(point["units_per_hour"] for point in own)
        job = {"name": name, "curve": points, "usd_per_unit": draw.randint(1, 3), "start_up_s": 1800.0}
        jobs.append(job | {"restarts": draw.choice(["nodes", "job"]), "nodes_before": draw.randint(0, 2)})
    if draw.random() < 0.5:
        jobs[0]["pools"] = [draw.choice(["a", "b"])]
        jobs[0]["curve"] = [point for point in jobs[0]["curve"] if point["pool"] == jobs[0]["pools"][0]]
    return day(("a", draw.randint(1, 3)), ("b", draw.randint(1, 2)), windows=2, jobs=jobs)


def best_on_two_pools(problem: dict[str, Any]) -> float:
    """Over every pool and number of nodes of every job and window, half an hour of which starts up after a change."""
    there = {pool["name"]: pool["nodes"] for pool in problem["cluster"]["pools"]}
    jobs = problem["options"]["jobs"]
    states = [[("", 0), *((point["pool"], point["nodes"]) for point in job["curve"])] for job in jobs]
    rows = [
        row
        for row in itertools.product(*states)
        if all(sum(nodes for pool, nodes in row if pool == name) <= free for name, free in there.items())
    ]

    def usd(job: dict[str, Any], was: tuple[str, int], now: tuple[str, int]) -> float:
        rate = {("", 0): 0.0, **{(point["pool"], point["nodes"]): point["units_per_hour"] for point in job["curve"]}}
        early = rate[now]
        if was != now:
            kept = min(was[1], now[1]) if was[0] == now[0] else 0
            fitting = [value for (pool, nodes), value in rate.items() if pool == now[0] and nodes <= kept]
            early = max(fitting, default=0.0) if job["restarts"] == "nodes" else 0.0
        return float(job["usd_per_unit"] * 0.5 * (early + rate[now]))

    def before(job: dict[str, Any]) -> tuple[str, int]:
        pool = job.get("pools", ["a"])[0]
        return (pool, job["nodes_before"]) if job["nodes_before"] else ("", 0)

    best: float = max(
        sum(usd(job, before(job), first[k]) + usd(job, first[k], second[k]) for k, job in enumerate(jobs))
        for first, second in itertools.product(rows, repeat=2)
    )
    return best


def test_a_day_on_two_pools_is_worth_what_the_best_of_all_is() -> None:
    for seed in range(30):
        problem = drawn(seed)
        certificate = solve(problem).certificate
        assert certificate.objective.value == pytest.approx(best_on_two_pools(problem)), seed
        assert certificate.bound is not None
        assert certificate.bound >= best_on_two_pools(problem) - 1e-6


@pytest.mark.parametrize(
    ("problem", "what"),
    [
        (day(("a", 2), windows=2), "a day without jobs"),
        (day(("a", 2), windows=2, jobs=[{**BATCH, "pools": ["c"]}]), "no pool is called `c`"),
        (day(("a", 2), windows=3, jobs=[BATCH], opportunistic=OPPORTUNISTIC), "no job leaves anything"),
        (day(("a", 2), windows=2, elastic={"jobs": [VISION, VISION]}), "two elastic jobs"),
        (
            day(("a", 2), windows=3, jobs=[CHAT], opportunistic={"jobs": [{**TUNE, "contention": {"talk": 0.1}}]}),
            "is listed for `talk`",
        ),
        (
            day(("a", 2), windows=3, jobs=[CHAT], opportunistic={"jobs": [{**TUNE, "contention": {}}]}),
            "is not listed for `chat`",
        ),
        (day(("a", 2), windows=3, jobs=[CHAT]), "without `opportunistic` jobs"),
        (day(("a", 2), windows=2, elastic={"jobs": [{**TEXT, "most_workers": {"a": 1}}]}), "on which it has no step"),
        (day(("a", 2), windows=2, elastic=ELASTIC), "no pool is called `b`"),
        (day(("a", 2), windows=2, elastic={**ELASTIC, "start_up": "2h"}), "start up for a window"),
        (day(("a", 2), windows=2, jobs=[{**BATCH, "name": "elastic"}], elastic=ELASTIC), "called `elastic`"),
        (
            day(("a", 2), ("b", 2), windows=3, jobs=[CHAT], opportunistic={"jobs": [{**TUNE, "gpus": 999}]}),
            "`tune` runs on 999 GPUs together",
        ),
    ],
)
def test_what_cannot_be_planned_beside_production_is_refused(problem: dict[str, Any], what: str) -> None:
    with pytest.raises(PlannerError, match=what) as raised:
        solve(problem)
    assert "options" in raised.value.where
    assert raised.value.hint


def test_least_speeds_that_no_gpus_give_say_what_they_do_give() -> None:
    job = {"name": "vision", "workers": 8, "worker_s": {"a": 1.0}, "reference_s": 1.0, "usd_per_hour": 1}
    with pytest.raises(Infeasible) as raised:
        solve(day(("a", 2), windows=1, elastic={"jobs": [{**job, "least_speed": 0.9}]}))
    assert "0.25 alone on all GPUs" in raised.value.conflict[0]["nearest"]
    both = [{**job, "least_speed": 0.2}, {**job, "name": "more", "least_speed": 0.2}]
    with pytest.raises(Infeasible) as raised:
        solve(day(("a", 2), windows=1, elastic={"jobs": both}))
    assert "together" in raised.value.conflict[0]["limit"]


def test_problems_of_jobs_name_files_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    (tmp_path / "jobs").mkdir()
    rows = "\n".join(f"{second},{300 + 7 * second},{20 + second}" for second in range(60))
    (tmp_path / "jobs" / "requests.csv").write_text(f"arrival_s,input_tokens,output_tokens\n{rows}\n")
    serve = {
        "kind": "serve",
        "models": {"m": {"name": "Qwen/Qwen3-8B"}},
        "workloads": [
            {
                "input_tokens": {"trace": "requests.csv"},
                "output_tokens": {"trace": "requests.csv"},
                "slo": {"ttft": {"p95": "1s"}},
            }
        ],
        "options": {"modes": ["colocated"], "tp": [1], "pp": [1], "max_batch": [64], "chunk_tokens": [2048]},
    }
    (tmp_path / "jobs" / "chat.yaml").write_text(yaml.safe_dump(serve))
    chat = {"name": "chat", "problem": "jobs/chat.yaml", "usd_per_unit": 1, "load": {"rates_per_s": [1.0, 2.0]}}
    (tmp_path / "day.yaml").write_text(yaml.safe_dump(day(("a", 2), windows=2, jobs=[chat])))
    made = solve(tmp_path / "day.yaml")
    (tmp_path / "plan.json").write_text(plan_json(made))
    monkeypatch.chdir(tmp_path)
    assert main(["check", "plan.json", "--level", "proof", "--inputs", "jobs"]) == 0
