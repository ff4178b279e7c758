"""The shared instances, solved and scored by the scorer that comes with them."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from planner.experts.instance import solve_instance
from planner.interchange.experts_instance import read_instance

SHARED = Path(__file__).parent.parent.parent.parent / "shared" / "data" / "experts"
pytestmark = pytest.mark.skipif(not (SHARED / "score.py").exists(), reason="the shared instances are not here")


@pytest.fixture(scope="module")
def score() -> ModuleType:
    spec = importlib.util.spec_from_file_location("score", SHARED / "score.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("name", "mean", "worst"),
    [
        ("shared_1_dsv3_prefill_ep32", 1.001, 1.002),
        ("shared_2_dsv3_decode_ep72", 1.002, 1.003),
        ("shared_3_qwen235_ep16", 1.0006, 1.002),
        ("shared_4_qwen235_hetero24", 1.001, 1.0012),
        ("shared_6_rt_dsv3_ep32", 1.0015, 1.003),
        ("shared_7_rt_qwen235_ep16_k1", 1.015, 1.05),
    ],
)
def test_layouts_are_valid_as_balanced_as_stated_and_near_their_bounds(
    score: ModuleType, name: str, mean: float, worst: float
) -> None:
    placement = solve_instance(read_instance(SHARED / f"{name}.npz"))
    meta, arrays = score.load_instance(str(SHARED / f"{name}.npz"))
    scored = score.score(meta, arrays, placement.expert_P, placement.quota_P)
    assert scored["imb"]["mean"] <= mean
    assert scored["imb"]["worst"] <= worst
    assert scored["imb"]["mean"] == pytest.approx(float(placement.imbalance.mean()), abs=1e-4)
    assert scored["lower_bound"]["mean"] == pytest.approx(float(placement.bound.mean()), abs=1e-3)


def test_a_token_visits_few_nodes_and_the_balance_to_expect_is_near_that_found(score: ModuleType) -> None:
    """On the half of the tokens that the layout was not planned on."""
    path = SHARED / "extra_affinity_shared.npz"
    placement = solve_instance(read_instance(path))
    scored = score.score(*score.load_instance(str(path)), placement.expert_P)
    assert scored["nodes_per_token"] <= 4.23
    assert scored["nodes_per_token"] == pytest.approx(placement.facts["nodes_per_token"], abs=0.05)
    assert scored["imb"]["mean"] == pytest.approx(placement.facts["fresh_imbalance"], abs=0.02)
