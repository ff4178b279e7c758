"""Host memory in which prefixes are kept: carried to every engine in its own unit, or refused with the reason."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import yaml
from cluster_read import READERS, ReadPod
from emit_plans import QWEN, Case, RolePlan
from test_cluster_targets import ENGINES_OF, built, files_of

from planner.emit.registry import emit
from planner.errors import PlannerError

GB = 10**9
KEEPS: dict[str, Any] = {"max_batch": 16, "chunk_tokens": 4096, "prefix_caching": "on", "host_cache_bytes": 64 * GB}
WHOLE = Case((RolePlan(degrees={"tp": 4}, limits=KEEPS),), {"default": {"name": QWEN}})
APART = Case(
    (RolePlan("prefill", degrees={"tp": 4}, limits=KEEPS), RolePlan("decode", degrees={"tp": 4})),
    {"default": {"name": QWEN}},
)


def words(case: Case, target: str, engine: str, role: str) -> tuple[str, ...]:
    return READERS[target](files_of(case, target, engine))[role].pods[0].argv


@pytest.mark.parametrize("target", [each for each in ENGINES_OF if each not in ("disaggregatedset", "dynamo")])
def test_vllm_is_told_what_all_ranks_of_a_core_keep(target: str) -> None:
    argv = words(WHOLE, target, "vllm", "plan-colocated")
    size = float(argv[argv.index("--kv-offloading-size") + 1])
    assert size * 2**30 == pytest.approx(4 * 64 * GB)


@pytest.mark.parametrize("target", ["kubernetes", "lws", "docker-compose", "disaggregatedset", "llm-d"])
def test_vllm_keeps_prefixes_beside_the_connector_and_not_in_its_place(target: str) -> None:
    argv = words(APART, target, "vllm", "plan-prefill")
    assert "--kv-offloading-size" not in argv
    told = json.loads(argv[argv.index("--kv-transfer-config") + 1])
    transfer, host = told["kv_connector_extra_config"]["connectors"]
    assert (told["kv_connector"], transfer["kv_connector"]) == ("MultiConnector", "NixlConnector")
    assert host["kv_connector_extra_config"] == {"cpu_bytes_to_use": 4 * 64 * GB}
    decode = words(APART, target, "vllm", "plan-decode")
    assert json.loads(decode[decode.index("--kv-transfer-config") + 1])["kv_connector"] == "NixlConnector"


def test_dynamo_has_its_block_manager_keep_prefixes_of_vllm() -> None:
    argv, environment = pod(WHOLE, "dynamo", "vllm", "plan-colocated")
    assert "--kv-offloading-size" not in argv
    own = {
        "kv_connector": "DynamoConnector",
        "kv_connector_module_path": "kvbm.vllm_integration.connector",
        "kv_role": "kv_both",
    }
    assert json.loads(argv[argv.index("--kv-transfer-config") + 1]) == own
    assert float(environment["DYN_KVBM_CPU_CACHE_GB"]) == 64.0
    argv, environment = pod(with_limits(APART, {**KEEPS, **DISKS}), "dynamo", "vllm", "plan-prefill")
    told = json.loads(argv[argv.index("--kv-transfer-config") + 1])
    assert (told["kv_connector"], told["kv_connector_module_path"]) == ("PdConnector", own["kv_connector_module_path"])
    first, transfer = told["kv_connector_extra_config"]["connectors"]
    assert (first, transfer["kv_connector"]) == (own, "NixlConnector")
    assert float(environment["DYN_KVBM_DISK_CACHE_GB"]) == 500.0
    assert not [name for name in environment if name.startswith("LMCACHE_")]
    decode, _ = pod(APART, "dynamo", "vllm", "plan-decode")
    assert json.loads(decode[decode.index("--kv-transfer-config") + 1])["kv_connector"] == "NixlConnector"


def test_sglang_is_told_whole_gigabytes_of_a_rank() -> None:
    argv = words(WHOLE, "lws", "sglang", "plan-colocated")
    assert argv[argv.index("--hicache-size") + 1] == "64"
    assert "--enable-hierarchical-cache" in argv
    small = replace(WHOLE, roles=(replace(WHOLE.roles[0], limits={**KEEPS, "host_cache_bytes": GB - 1}),))
    with pytest.raises(PlannerError, match="whole GB"):
        files_of(small, "lws", "sglang")


def test_tensorrt_llm_is_told_bytes_of_a_rank() -> None:
    data = yaml.safe_load(emit(*built(WHOLE, "trtllm"), "tensorrt-llm")["config-colocated.yaml"])
    assert data["kv_cache_config"]["host_cache_size"] == 64 * GB
    assert data["kv_cache_config"]["enable_block_reuse"] is True


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_host_memory_of_an_engine_that_keeps_no_prefixes_is_refused(engine: str) -> None:
    limits = {name: value for name, value in KEEPS.items() if name != "prefix_caching"}
    case = replace(WHOLE, roles=(replace(WHOLE.roles[0], limits=limits),))
    with pytest.raises(PlannerError, match="would keep prefixes"):
        files_of(case, "lws", engine)


SHARED: dict[str, Any] = {**KEEPS, "host_cache_bytes": 8 * GB, "prefix_store": "shared"}
POOLED: dict[str, Any] = {**KEEPS, "pool_cache_bytes": 2000 * GB, "prefix_store": "shared"}
DISKS: dict[str, Any] = {**KEEPS, "ssd_cache_bytes": 500 * GB}


def with_limits(case: Case, limits: dict[str, Any]) -> Case:
    first, *rest = case.roles
    return replace(case, roles=(replace(first, limits=limits), *rest))


def pod(case: Case, target: str, engine: str, role: str) -> tuple[tuple[str, ...], dict[str, str]]:
    read = READERS[target](files_of(case, target, engine))[role].pods[0]
    return read.argv, read.environment


@pytest.mark.parametrize("target", [each for each in ENGINES_OF if each not in ("disaggregatedset", "ray-serve")])
def test_vllm_lends_host_memory_to_a_store_where_engines_share_it(target: str) -> None:
    files = files_of(with_limits(WHOLE, SHARED), target, "vllm")
    read = READERS[target](files)["plan-colocated"].pods[0]
    assert "--kv-offloading-size" not in read.argv
    told = json.loads(read.argv[read.argv.index("--kv-transfer-config") + 1])
    assert told == {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}
    store = store_of(target, read, files)
    assert store["global_segment_size"] == 8 * GB
    assert store["mode"] == "embedded"
    assert not [name for name in read.environment if name.startswith("LMCACHE_")]


def store_of(target: str, read: ReadPod, files: Mapping[str, str]) -> dict[str, Any]:
    """The file that the engine's variable names, from where the target puts it."""
    folder, _, name = read.environment["MOONCAKE_CONFIG_PATH"].rpartition("/")
    assert folder == ("/etc/planner" if target == "kserve" else "")
    texts = read.files
    if target == "kserve":
        documents = list(yaml.safe_load_all(files["plan.yaml"]))
        (texts,) = (each["data"] for each in documents if each["kind"] == "ConfigMap")
        template = next(each for each in documents if each["kind"] == "LLMInferenceService")["spec"]["template"]
        assert {"name": "files", "mountPath": folder, "readOnly": True} in template["containers"][0]["volumeMounts"]
    if target == "docker-compose":
        texts = {each: text for each, text in files.items() if each.endswith(".json")}
    store: dict[str, Any] = json.loads(texts[name])
    return store


def test_vllm_reads_a_pool_beside_the_connector_that_hands_caches_over() -> None:
    only = {name: value for name, value in POOLED.items() if name != "host_cache_bytes"}
    files = files_of(with_limits(APART, only), "lws", "vllm")
    read = READERS["lws"](files)["plan-prefill"].pods[0]
    told = json.loads(read.argv[read.argv.index("--kv-transfer-config") + 1])["kv_connector_extra_config"]["connectors"]
    assert [each["kv_connector"] for each in told] == ["NixlConnector", "MooncakeStoreConnector"]
    store = store_of("lws", read, files)
    assert (store["mode"], store["global_segment_size"]) == ("standalone-store", 0)
    assert store["master_server_address"] == "mooncake-master:50051"
    with pytest.raises(PlannerError, match="Mooncake store"):
        files_of(with_limits(WHOLE, POOLED), "ray-serve", "vllm")


def test_a_script_starts_beside_the_file_of_its_store() -> None:
    files = emit(*built(with_limits(WHOLE, SHARED), "vllm"), "vllm")
    assert json.loads(files["mooncake-colocated.json"])["global_segment_size"] == 8 * GB
    assert "MOONCAKE_CONFIG_PATH=mooncake-colocated.json" in files["launch-node-00.sh"]
    assert 'cd -- "$(dirname' in files["launch-node-00.sh"]


def test_vllm_keeps_prefixes_in_host_memory_of_its_own_before_a_pool() -> None:
    own = {**KEEPS, "pool_cache_bytes": 2000 * GB}
    argv, environment = pod(with_limits(WHOLE, own), "lws", "vllm", "plan-colocated")
    assert json.loads(argv[argv.index("--kv-transfer-config") + 1])["kv_connector"] == "LMCacheConnectorV1"
    assert environment["LMCACHE_REMOTE_URL"] == "mooncakestore://mooncake-master:50051/"
    assert environment["LMCACHE_LOCAL_CPU"] == "True"


def test_vllm_keeps_prefixes_on_an_ssd_of_its_own() -> None:
    _, environment = pod(with_limits(WHOLE, DISKS), "lws", "vllm", "plan-colocated")
    assert float(environment["LMCACHE_MAX_LOCAL_DISK_SIZE"]) == 500.0
    assert float(environment["LMCACHE_MAX_LOCAL_CPU_SIZE"]) == 64.0
    with pytest.raises(PlannerError, match="several engines to share"):
        files_of(with_limits(WHOLE, {**DISKS, "prefix_store": "shared"}), "lws", "vllm")


def test_sglang_has_a_store_behind_its_host_memory() -> None:
    argv, environment = pod(with_limits(WHOLE, SHARED), "lws", "sglang", "plan-colocated")
    assert argv[argv.index("--hicache-storage-backend") + 1] == "mooncake"
    assert "--hicache-size" not in argv
    assert environment["MOONCAKE_GLOBAL_SEGMENT_SIZE"] == str(8 * GB)
    argv, environment = pod(with_limits(WHOLE, DISKS), "lws", "sglang", "plan-colocated")
    assert argv[argv.index("--hicache-storage-backend") + 1] == "file"
    assert "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR" in environment


@pytest.mark.parametrize("limits", [SHARED, POOLED, DISKS])
def test_tensorrt_llm_refuses_all_but_host_memory_of_its_own(limits: dict[str, Any]) -> None:
    with pytest.raises(PlannerError, match="host memory of its own alone"):
        emit(*built(with_limits(WHOLE, limits), "trtllm"), "tensorrt-llm")
