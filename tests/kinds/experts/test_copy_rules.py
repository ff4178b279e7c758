"""Copies in every micro-batch: rules of UltraEP as options, and what is gained net of planning and sending."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.api import solve
from planner.documents.read import given_document
from planner.errors import PlannerError
from planner.experts.ranks import make_ranks
from planner.experts.step_time import MoeCosts
from planner.experts.steps import CopyRules
from planner.experts.worth import PLAN_LAYER_S, CopiesWorth, copies_worth, in_micro_batches
from planner.hardware.cluster import Pool
from planner.load.problems import resolve_document
from planner.models.library import find_model
from planner.plan.schema import Envelope

MODEL = "Qwen/Qwen3-30B-A3B"
RANKS = make_ranks(8, 17, ranks_per_node=8, home_slots=16)
LOADS = np.stack([np.random.default_rng(seed).permutation(1e5 / np.arange(1, 129) ** 0.8) for seed in range(4)])[
    :, None
]


def plan(folder: Path, **options: Any) -> Envelope:  # noqa: ANN401
    np.savez(folder / "loads.npz", load=np.repeat(LOADS, 48, axis=1))
    document = {
        "schema": "planner.problem/1",
        "kind": "experts",
        "models": {"m": {"name": MODEL}},
        "cluster": {"pools": [{"gpu": "h200", "nodes": 1}]},
        "objective": {"minimize": "imbalance"},
        "options": {"ep": 8, "slots_per_rank": 17, "loads": str(folder / "loads.npz"), **options},
    }
    return solve(resolve_document(given_document(document, "problem"), folder))


def predicted(envelope: Envelope) -> dict[str, float]:
    return {row.metric: row.value for row in envelope.predictions if row.statistic == "mean"}


def worth(pool: Pool, rules: CopyRules, tokens: float) -> CopiesWorth:
    costs = MoeCosts(find_model(MODEL), pool, 8, tokens)
    return copies_worth(in_micro_batches(LOADS, tokens, 8, 8), RANKS, rules, costs)


def test_a_plan_says_what_copies_gain_net_of_planning_and_sending(tmp_path: Path) -> None:
    many = predicted(plan(tmp_path, policy="realtime", micro_batch_tokens=16384))
    few = predicted(plan(tmp_path, policy="realtime", micro_batch_tokens=64))
    for told in (many, few):
        assert told["net_gain"] == pytest.approx(1.0 - told["micro_batch_s"] / told["micro_batch_in_order_s"])
        assert told["copies_planned_s"] == pytest.approx(48 * PLAN_LAYER_S)
        assert told["copies_sent_s"] > 0
    assert many["net_gain"] > 0 > few["net_gain"]
    assert "net_gain" not in predicted(plan(tmp_path))


def test_larger_chunks_send_no_more_copies_and_balance_less(tmp_path: Path) -> None:
    pool = plan_pool(tmp_path)
    free, chunks = (worth(pool, CopyRules(least), 4096.0) for least in (0.0, 4096.0))
    assert chunks.sent_s <= free.sent_s
    assert chunks.balanced_s > free.balanced_s
    assert chunks.in_order_s == free.in_order_s


def test_copies_in_smaller_domains_balance_no_better(tmp_path: Path) -> None:
    pool = plan_pool(tmp_path)
    steps = [worth(pool, CopyRules(domain=domain), 4096.0).balanced_s for domain in (8, 4, 2, 1)]
    assert steps == sorted(steps)
    assert steps[-1] == pytest.approx(worth(pool, CopyRules(), 4096.0).in_order_s)


def plan_pool(folder: Path) -> Pool:
    problem = given_document(
        {
            "schema": "planner.problem/1",
            "kind": "experts",
            "models": {"m": {"name": MODEL}},
            "cluster": {"pools": [{"gpu": "h200", "nodes": 1}]},
            "objective": {"minimize": "imbalance"},
            "options": {"ep": 8, "slots_per_rank": 17},
        },
        "problem",
    )
    return resolve_document(problem, folder).pools[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_chunk_tokens": 1024}, "policy `static` plans no copies in micro-batches"),
        ({"relays": 0}, "policy `static` plans no copies in micro-batches"),
        ({"policy": "realtime", "copy_domain": 3}, "domains of 3 ranks do not divide ep 8"),
    ],
)
def test_rules_that_nothing_follows_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(PlannerError, match=said):
        plan(tmp_path, **options)
