"""Cache bytes and operations of one decoded token against the published tables of Step-3 (arXiv:2507.19427).

The paper's tables 2 to 6 count, for nine models and two lengths, what the attention of one token reads and computes,
and what the matrices beside it do. They are a count by other hands, so the agreement of all of them holds the layers of
the catalog, Step-3's factorised attention and Llama 4's chunks among them.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from planner.costs.operators.forward import forward
from planner.costs.operators.kernels import (
    BatchedGemm,
    DecodeAttention,
    Experts,
    Gemm,
    Operator,
    Recurrence,
    bytes_per,
    demand,
)
from planner.costs.operators.work import Shards, Work
from planner.models.library import find_model
from planner.models.precision import with_precision

CASES = Path(__file__).resolve().parents[3] / "shared" / "data" / "serving" / "step3_cost_cases.csv"
CONTEXTS = {"8k": 8192, "32k": 32768}

# model of the table: (catalog name, format of its cache: the slopes of the table tell two models in bf16)
MODELS = {
    "DSv3": ("DeepSeek-V3", "fp8"),
    "Kimi_K2": ("Kimi-K2-Instruct", "fp8"),
    "Qwen3_MoE": ("Qwen3-235B-A22B", "fp8"),
    "Qwen3_32B": ("Qwen3-32B", "fp8"),
    "Llama4_M": ("Llama-4-Maverick", "bf16"),
    "MM_M1": ("MiniMax-M1", "bf16"),
    "ERNIE_4.5": ("ERNIE-4.5-300B-A47B", "fp8"),
    "Pangu_Pro": ("Pangu-Pro-MoE-72B", "fp8"),
    "Step-3": ("Step-3", "fp8"),
}

# (model, quantity): by how much of the published figure we differ on purpose.
DIFFERENT = {
    # The paper counts values as wide as keys in the latent space, 576; they are 512 wide.
    ("DSv3", "attn_flop"): 0.06,
    ("Kimi_K2", "attn_flop"): 0.06,
    # The paper reads half a chunk of Llama 4's cache on average, as we do, and yet computes over whole chunks.
    ("Llama4_M", "attn_flop"): 0.38,
    # The update of a linear layer's state has another number of products there.
    ("MM_M1", "attn_flop"): 0.07,
}
ROUNDING = 0.006  # three digits are printed


@pytest.fixture(scope="module")
def published() -> dict[tuple[str, str], dict[str, float]]:
    if not CASES.exists():
        pytest.skip(f"no published cost cases at {CASES}")
    columns = {"kv_bytes": "kv_bytes_per_tok", "attn_flop": "attn_flop_per_tok"}
    columns |= {"linear_flop": "linear_flop_per_tok", "ffn_flop": "ffn_flop_per_tok"}
    with CASES.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return {(r["model"], r["context"]): {ours: float(r[theirs]) for ours, theirs in columns.items()} for r in rows}


def _part(op: Operator) -> str:
    """The column of the table that an operator belongs to; empty for what the paper leaves out."""
    match op:
        case DecodeAttention() | Recurrence():
            return "attn_flop"
        case Experts():
            return "ffn_flop"
        case Gemm() if op.name.startswith(("ffn", "shared_expert")):
            return "ffn_flop"
        case Gemm() if op.name in ("logits", "router"):
            return ""
        case Gemm() | BatchedGemm():
            return "linear_flop"
        case _:
            return ""


def _cache_bytes(op: Operator) -> float:
    match op:
        case DecodeAttention():
            queries = 2.0 * op.heads * (op.head_dim + op.v_head_dim)
            return float((demand(op).size_bytes - op.sequences * queries)[0])
        case Recurrence():
            return float(demand(op).size_bytes[0])
        case _:
            return 0.0


def _one_token(model: str, context: int) -> dict[str, float]:
    name, cache = MODELS[model]
    arch = with_precision(find_model(name), None, cache)
    demands = dict.fromkeys(("kv_bytes", "attn_flop", "linear_flop", "ffn_flop"), 0.0)
    for op in _computes(forward(arch, Shards.of(1), Work.decode(1, context))):
        count = float(np.ravel(op.count)[0])
        demands["kv_bytes"] += count * _cache_bytes(op)
        if part := _part(op):
            demands[part] += count * float(demand(op).flop[0])
    return demands


def _computes(operators: list[Operator]) -> Iterator[Gemm | BatchedGemm | DecodeAttention | Recurrence | Experts]:
    for op in operators:
        if isinstance(op, Gemm | BatchedGemm | DecodeAttention | Recurrence | Experts):
            yield op


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("model", MODELS)
def test_one_decoded_token_costs_what_is_published(
    published: dict[tuple[str, str], dict[str, float]], model: str, context: str
) -> None:
    ours = _one_token(model, CONTEXTS[context])
    for quantity, figure in published[model, context].items():
        allowed = DIFFERENT.get((model, quantity), ROUNDING)
        assert ours[quantity] == pytest.approx(figure, rel=allowed), quantity


def test_the_tables_name_no_model_that_is_not_compared_with_them(
    published: dict[tuple[str, str], dict[str, float]],
) -> None:
    assert {model for model, _ in published} == set(MODELS)


def test_step_3_reads_its_cache_once_for_all_its_heads() -> None:
    # arXiv:2507.19427, section 4: keys and values of one head of 256 in 61 layers, one byte a value.
    assert _one_token("Step-3", 8192)["kv_bytes"] == 8192 * 61 * 2 * 256 * bytes_per("fp8")
