"""Answers to seeded problems of every kind are those that were frozen: status, objective, bound, decision, findings.

A quick share of `make snapshots`. What changes costs or the search on purpose freezes them anew:
`python benchmarks/snapshots.py --freeze`.
"""

import json

import pytest
import snapshots

FROZEN = json.loads(snapshots.FROZEN.read_text())
SLOW = {"train-7", "train-8"}  # stages and replicas across pools: tests/kinds/train/test_train_pools.py has small ones
NAMES = [f"{kind}-{seed}" for kind in snapshots.DRAWN for seed in range(12)]
EXAMPLES = ["serve-step3-attention-ffn.yaml", "experts-deepseek-v3-ep32.yaml"]


@pytest.mark.parametrize("name", [*(name for name in NAMES if name not in SLOW), *EXAMPLES])
def test_the_answer_is_the_frozen_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(snapshots.ROOT)
    assert snapshots.answer(name) == FROZEN[name]
