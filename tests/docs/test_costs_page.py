"""The page on costs names every operator that the code can produce, and no other."""

import re
from pathlib import Path

import pytest

from planner.costs.operators.backward import training_operators
from planner.costs.operators.forward import forward
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.evidence import Basis
from planner.models.library import find_model

TEXT = (Path(__file__).parent.parent.parent / "docs" / "costs.md").read_text(encoding="utf-8")
MODELS = (
    "meta-llama/Meta-Llama-3.1-8B",  # dense
    "facebook/opt-350m",  # an embedding of another width
    "Qwen/Qwen3-235B-A22B",  # experts
    "openai/gpt-oss-120b",  # windows
    "deepseek-ai/DeepSeek-V3",  # latent attention, shared experts
    "deepseek-ai/DeepSeek-V3.2",  # sparse attention
    "Qwen/Qwen3.5-397B-A17B",  # linear attention
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",  # Mamba-2
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",  # experts in a projected space
)
SHAPES = (Shards.of(2, 2, 4, 1, 8), Shards.of(2, 2, 4, 8, 1), Shards.of(8, 2, 1, 1, 8))
MIXED = Work.of(100.0, 1.0, 10.0, 5.0, 100.0)


def _produced(name: str) -> set[str]:
    return {op.name for shards in SHAPES for op in forward(find_model(name), shards, MIXED)}


def _table_rows() -> set[str]:
    """Names in the first column of the table of forward operators."""
    section = TEXT.split("## Operators of a forward step")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize("name", MODELS)
def test_every_operator_of_a_model_stands_on_the_page(name: str) -> None:
    assert _produced(name) <= _table_rows()


def test_the_page_names_no_operator_that_nothing_produces() -> None:
    produced = set().union(*(_produced(name) for name in MODELS))
    assert _table_rows() - produced == {"output_gate"}  # of latent attention with a gate, which no priced model has


def test_the_operators_of_training_stand_on_the_page() -> None:
    operators = training_operators(find_model(MODELS[0]), Shards.of(8), Work.prefill(64.0)).forward
    assert all(f"`{op.name}`" in TEXT for op in operators)


def test_every_basis_of_a_price_stands_on_the_page() -> None:
    assert all(f"`{basis.name.lower()}`" in TEXT for basis in Basis)
