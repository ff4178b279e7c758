"""A machine that tests can run on as hardware of the catalog, small models, and plans for them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rank_forks import FORKS

from planner.execute.ranks import launch

HARDWARE = """
accelerators:
  bench_cpu:
    display_name: One core of the machine that runs the tests
    memory: 8GiB
    memory_bandwidth: 10GB/s
    peak: {bf16: 0.05TFLOPS, fp32: 0.05TFLOPS}
    launch_latency: 1us
    power: 10W
    compute_capability: "0.0"
nodes:
  bench_cpu_node:
    accelerator: bench_cpu
    num_gpus: 4
    scale_up: {kind: pcie, size: 4, bandwidth: 1GB/s, latency: 20us}
    host: {link_bandwidth: 10GB/s, memory: 16GB}
    fabric: hdr200
"""
MODELS = """
tests/dense:
  source: nowhere
  hidden_size: 128
  vocab_size: 1024
  tied_embeddings: false
  max_context_tokens: 4096
  blocks:
    dense:
      mixer: {grouped_query: {num_heads: 8, num_kv_heads: 4, head_dim: 16, v_head_dim: 16, qk_norm: true}}
      ffn: {dense: {intermediate_size: 384}}
  layers: [{times: 4, of: [dense]}]
tests/moe:
  source: nowhere
  hidden_size: 128
  vocab_size: 1024
  tied_embeddings: false
  max_context_tokens: 4096
  blocks:
    moe:
      mixer: {grouped_query: {num_heads: 8, num_kv_heads: 4, head_dim: 16, v_head_dim: 16}}
      ffn: {experts: {num_experts: 8, top_k: 2, intermediate_size: 128}}
  layers: [{times: 2, of: [moe]}]
tests/latent:
  source: nowhere
  hidden_size: 128
  vocab_size: 1024
  tied_embeddings: false
  max_context_tokens: 4096
  blocks:
    latent:
      mixer: {latent: {num_heads: 8, q_lora_rank: 32, kv_lora_rank: 24, qk_nope_head_dim: 16, qk_rope_head_dim: 8,
          v_head_dim: 16}}
      ffn: {dense: {intermediate_size: 384}}
  layers: [{times: 2, of: [latent]}]
"""
POOL = {"name": "bench", "gpu": "bench_cpu", "nodes": 4, "out_of_service": [], "oversubscription": 1.0}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog of a user who has the machine and the models above; ranks inherit it."""
    catalog = tmp_path / "catalog"
    for folder, text in (("hardware", HARDWARE), ("models", MODELS)):
        (catalog / folder).mkdir(parents=True)
        (catalog / folder / "bench.yaml").write_text(text)
    monkeypatch.setenv("PLANNER_CATALOG", str(catalog))
    monkeypatch.delenv("PLANNER_PROFILES", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def forked_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of this machine are forks of a process that has imported torch."""
    monkeypatch.setattr(launch, "_start", FORKS.start)


@pytest.fixture
def bench_plan(bench: None, tmp_path: Path, edited_plan: Callable[..., dict[str, Any]]) -> Callable[..., Path]:
    """A hand-written plan for that machine as a file: roles by name with their degrees, of one model."""

    def write(kind: str, degrees: dict[str, dict[str, int]], model: str = "tests/dense", **edits: Any) -> Path:  # noqa: ANN401
        plan = edited_plan(kind, {"inputs.cluster.pools": [POOL]})
        key = next(iter(plan["inputs"]["models"]))
        plan["inputs"]["models"][key] = {"name": model}
        plan["inputs"]["options"] |= edits.get("options", {})
        for load in plan["inputs"]["workloads"]:
            load |= {"input_tokens": 96, "output_tokens": 32}
        roles = [role for role in plan["decision"]["roles"] if role["name"] in degrees]
        axes = [("replica", 1), *((axis, 0) for axis in ("pp", "dp", "cp", "tp"))]
        blocks = []
        for role in roles:
            role["parallelism"] |= {"tp": 1, "pp": 1, "dp": 1, "vpp": 1, **degrees[role["name"]]}
            role |= {"pool": "bench", "replicas": 1}
            role["limits"] |= {"chunk_tokens": 96, "max_batch": 4, "max_context_tokens": 128}
            sizes = [(axis, size or role["parallelism"][axis]) for axis, size in axes]
            strides = {axis: _stride(sizes, index) for index, (axis, _) in enumerate(sizes)}
            laid = [{"name": axis, "size": size, "stride": strides[axis]} for axis, size in sizes]
            blocks.append({"role": role["name"], "pool": "bench", "first_device": 0, "axes": laid})
        plan["decision"] |= {"roles": roles, "placement": blocks, "routing": [], **edits.get("decision", {})}
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(plan))
        return path

    return write


def _stride(sizes: list[tuple[str, int]], index: int) -> int:
    stride = 1
    for _, size in sizes[index + 1 :]:
        stride *= size
    return stride
