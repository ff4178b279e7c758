"""Memory beside devices for prefixes: what is emitted of it is read again, what is not said is named, plans have it."""

import json
from pathlib import Path
from typing import Any

import pytest
from emit_plans import QWEN, Case, RolePlan
from test_cluster_targets import ENGINES_OF, built, files_of

from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.importing.files import read_files
from planner.importing.plans.any_kind import plan_of_reading, problem_of_reading
from planner.importing.plans.question import Question
from planner.importing.records import Reading
from planner.importing.registry import Artifact, read_artifact
from planner.kinds.serve.options import ServeDecision

GB = 10**9
KEEPS: dict[str, Any] = {"max_batch": 16, "chunk_tokens": 4096, "prefix_caching": "on"}
HOST, SSD = {"host_cache_bytes": 8 * GB}, {"ssd_cache_bytes": 500 * GB}
POOL = {"pool_cache_bytes": 2000 * GB}
SHARED = {"prefix_store": "shared"}
OWN = "host_bytes_per_gpu"
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("vllm", HOST, {OWN: 8 * GB}),
    ("vllm", {**HOST, **SHARED}, {OWN: 8 * GB, "shared": True}),
    ("vllm", {**POOL, **SHARED}, {"pool": True}),
    ("vllm", {**HOST, **POOL}, {OWN: 8 * GB, "pool": True}),
    ("vllm", {**HOST, **SSD}, {OWN: 8 * GB, "ssd_bytes_per_gpu": 500 * GB}),
    ("sglang", HOST, {OWN: 8 * GB}),
    ("sglang", {**HOST, **SHARED}, {OWN: 8 * GB, "shared": True}),
    ("sglang", {**POOL, **SHARED}, {"pool": True}),
    ("trtllm", HOST, {OWN: 8 * GB}),
]
SCRIPTS = {"trtllm": "tensorrt-llm"}


def written(folder: Path, target: str, engine: str, limits: dict[str, Any]) -> Reading | None:
    """What is read of a plan with these limits; None where the target refuses them."""
    case = Case((RolePlan(degrees={"tp": 4}, limits={**KEEPS, **limits}),), {"default": {"name": QWEN}})
    try:
        scripts = SCRIPTS.get(engine, engine) == target
        files = emit(*built(case, engine), target) if scripts else files_of(case, target, engine)
    except PlannerError:
        return None
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return read_files([str(folder)], {})


@pytest.mark.parametrize(("engine", "limits", "tiers"), CASES)
def test_tiers_that_are_emitted_are_read_again(
    tmp_path: Path, engine: str, limits: dict[str, Any], tiers: dict[str, Any]
) -> None:
    targets = [SCRIPTS.get(engine, engine), *(target for target, engines in ENGINES_OF.items() if engine in engines)]
    if "pool" in tiers or "shared" in tiers:
        targets = [each for each in targets if each != "llm-d"]  # Kustomize makes the file of the store
    readings = {target: written(tmp_path / target, target, engine, limits) for target in targets}
    told = {target: reading.fields["roles"] for target, reading in readings.items() if reading is not None}
    assert len(told) >= min(len(targets), 3)
    assert {t: [role.get("prefix_tiers") for role in roles] for t, roles in told.items()} == {t: [tiers] for t in told}


@pytest.mark.parametrize(
    ("command", "tiers"),
    [
        ("sglang serve --model-path M --enable-hierarchical-cache", {"unread": ["--hicache-ratio"]}),
        (
            "sglang serve --model-path M --enable-hierarchical-cache --hicache-size 30 --hicache-storage-backend nixl",
            {OWN: 30 * GB, "unread": ["the store of `--hicache-storage-backend nixl`"]},
        ),
        ("sglang serve --model-path M --hicache-size 30", None),
        (
            "LMCACHE_CONFIG_FILE=a.yaml LMCACHE_REMOTE_URL=redis://u:secret@h:1 vllm serve M --kv-transfer-config "
            '\'{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}\'',
            {"unread": ["LMCACHE_CONFIG_FILE", "the store of LMCACHE_REMOTE_URL, redis"]},
        ),
        (
            "DYN_KVBM_CPU_CACHE_GB=20 python3 -m dynamo.vllm --model M --kv-transfer-config "
            '\'{"kv_connector": "DynamoConnector", "kv_role": "kv_both"}\'',
            {OWN: 20 * GB},
        ),
        (
            'vllm serve M --kv-transfer-config \'{"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}\'',
            {"unread": ["the store that MOONCAKE_CONFIG_PATH names"]},
        ),
        ("vllm serve M --kv-offloading-size lots", {"unread": ["--kv-offloading-size"]}),
        ("vllm serve M", None),
    ],
)
def test_what_a_launch_does_not_say_of_its_tiers_is_named(command: str, tiers: dict[str, Any] | None) -> None:
    (role,) = read_artifact(Artifact(command + "\n", "serve.sh", {})).fields["roles"]
    read = role.get("prefix_tiers")
    if tiers is None:
        assert read is None
        return
    assert {name: value for name, value in read.items() if name != "unread"} == {
        name: value for name, value in tiers.items() if name != "unread"
    }
    pairs = zip(read.get("unread", []), tiers.get("unread", []), strict=True)
    assert all(text.startswith(start) for text, start in pairs)


@pytest.fixture
def pooled(tmp_path: Path) -> Reading:
    reading = written(tmp_path / "emitted", "vllm", "vllm", {**POOL, **SHARED})
    assert reading is not None
    rows = [f"{second},c{second % 4},{600 * (1 + second // 4)},50" for second in range(20)]
    (tmp_path / "talks.csv").write_text("arrival_s,conversation_id,input_tokens,output_tokens\n" + "\n".join(rows))
    return reading


def asked(folder: Path, cache: str | None, cluster: str = "gpu=h100,nodes=1,price=2USD/h") -> Question:
    trace = f"{{trace: {folder / 'talks.csv'}}}"
    return Question.of(f"input={trace},output={trace},rate=0.5/s", "ttft.p95=2s", cluster, cache=cache)


PRICED = "pool.size=20GB,pool.usd_per_gb_hour=0.01,pool.bandwidth=20GB/s"


def test_a_pool_that_is_read_is_a_tier_of_the_problem_and_bought_by_the_plan(tmp_path: Path, pooled: Reading) -> None:
    problem = problem_of_reading(pooled, asked(tmp_path, PRICED))
    (tier,) = problem["cache"]["tiers"]
    assert (tier["name"], tier["unit"], tier["max_units"]) == ("pool", "20GB", 1)
    plan, notes = plan_of_reading(pooled, asked(tmp_path, PRICED))
    decision = ServeDecision.model_validate(plan.decision)
    assert decision.cache is not None
    assert [(each.name, each.units, each.size_bytes) for each in decision.cache.tiers] == [("pool", 1, 20.0 * GB)]
    assert decision.roles[0].limits["pool_cache_bytes"] == 20 * GB
    assert plan.certificate.objective.value == pytest.approx(4 * 2.0 + 0.2)
    assert not [note for note in notes if "left out" in note]
    again = tmp_path / "again"
    again.mkdir()
    for name, text in emit(plan, decision, "vllm").items():
        (again / name).write_text(text)
    roles = [reading.fields["roles"][0] for reading in (read_files([str(again)], {}), pooled)]
    assert roles[0]["prefix_tiers"] == roles[1]["prefix_tiers"]
    assert json.loads(json.dumps(problem)) == problem


def test_tiers_that_nothing_prices_are_left_out_and_a_note_says_so(tmp_path: Path, pooled: Reading) -> None:
    _, notes = plan_of_reading(pooled, asked(tmp_path, None))
    assert any("a pool are left out" in note and "--cache" in note for note in notes)


@pytest.mark.parametrize(
    ("cache", "what", "hint"),
    [
        ("pool.size=20GB", "not all known", "pool.bandwidth"),
        ("pool.usd_per_gb_hour=0.01,pool.bandwidth=20GB/s", "not all known", "pool.size"),
        (f"{PRICED},host.size=3GB", "no tier `host`", "it has pool"),
        ("pool.size", "NAME=VALUE", "pool.size=512GB"),
    ],
)
def test_tiers_of_which_too_little_or_too_much_is_said_are_refused(
    tmp_path: Path, pooled: Reading, cache: str, what: str, hint: str
) -> None:
    with pytest.raises(PlannerError, match=what) as refused:
        plan_of_reading(pooled, asked(tmp_path, cache))
    assert hint in str(refused.value.hint)


def test_memory_of_several_engines_own_is_no_tier_that_all_share(tmp_path: Path) -> None:
    script = "vllm serve Qwen/Qwen3-8B --port 1 --kv-offloading-size 8 &\n" * 2
    reading = read_artifact(Artifact(script, "serve.sh", {}))
    (tmp_path / "talks.csv").write_text("arrival_s,conversation_id,input_tokens,output_tokens\n0,a,600,50\n")
    with pytest.raises(PlannerError, match="memory of their own"):
        plan_of_reading(reading, asked(tmp_path, "host.usd_per_gb_hour=0.01,host.bandwidth=20GB/s"))
