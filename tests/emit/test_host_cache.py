"""Host memory in which prefixes are kept: carried to every engine in its own unit, or refused with the reason."""

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml
from cluster_read import READERS
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


@pytest.mark.parametrize("target", [target for target, engines in ENGINES_OF.items() if target != "disaggregatedset"])
def test_vllm_is_told_what_all_ranks_of_a_core_keep(target: str) -> None:
    argv = words(WHOLE, target, "vllm", "plan-colocated")
    size = float(argv[argv.index("--kv-offloading-size") + 1])
    assert size * 2**30 == pytest.approx(4 * 64 * GB)


@pytest.mark.parametrize("target", ["kubernetes", "lws", "docker-compose", "dynamo", "disaggregatedset", "llm-d"])
def test_vllm_keeps_prefixes_beside_the_connector_and_not_in_its_place(target: str) -> None:
    argv = words(APART, target, "vllm", "plan-prefill")
    assert "--kv-offloading-size" not in argv
    told = json.loads(argv[argv.index("--kv-transfer-config") + 1])
    transfer, host = told["kv_connector_extra_config"]["connectors"]
    assert (told["kv_connector"], transfer["kv_connector"]) == ("MultiConnector", "NixlConnector")
    assert host["kv_connector_extra_config"] == {"cpu_bytes_to_use": 4 * 64 * GB}
    decode = words(APART, target, "vllm", "plan-decode")
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
