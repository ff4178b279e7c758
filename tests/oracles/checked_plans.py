"""Small solved plans of every kind, as JSON, with the folder of the files that they name."""

from pathlib import Path
from typing import Any

import numpy as np
from static_level import solve

from planner.check import check_plan
from planner.kinds.registry import find_kind
from planner.plan.findings import Finding
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand

Plan = dict[str, Any]
POOL = {"pools": [{"gpu": "h100", "gpus": 8}]}
SMALL: dict[str, Plan] = {
    "serve": {
        "models": {"m": {"name": "Qwen/Qwen3-8B", "weights": "fp8", "kv_cache": "fp8"}},
        "workloads": [
            {"name": "chat", "input_tokens": 2000, "output_tokens": 300, "slo": {"ttft": "1s", "tpot": "20ms"}}
        ],
        "objective": {"maximize": "goodput_per_gpu"},
        "options": {"tp": [1, 2], "pp": [1], "max_batch": [16, 64]},
    },
    "train": {
        "models": {"m": {"name": "Qwen/Qwen3-8B"}},
        "objective": {"minimize": "step_time"},
        "options": {"global_batch": 16, "sequence_tokens": 4096, "search": {"cp": 1, "vpp": [1, 2], "micro_batch": 1}},
    },
    "rl": {
        "models": {"policy": {"name": "Qwen/Qwen3-8B"}},
        "workloads": [{"input_tokens": 512, "output_tokens": {"mean": 800, "cv": 0.5}}],
        "objective": {"minimize": "iteration_time"},
        "options": {"algorithm": "grpo", "prompts": 16, "samples_per_prompt": 8, "generation_tp": [1, 2]},
    },
    "experts": {
        "models": {"m": {"name": "Qwen/Qwen3-30B-A3B"}},
        "objective": {"minimize": "imbalance"},
        "options": {"ep": 8, "slots_per_rank": 18},
    },
}


def problem(kind: str, folder: Path) -> Plan:
    """The problem of a kind; recorded loads are written into `folder`."""
    data = {"schema": "planner.problem/1", "kind": kind, "cluster": POOL, **SMALL[kind]}
    if kind == "experts":
        path = folder / "loads.npz"
        loads = np.random.default_rng(0).lognormal(0.0, 0.8, (1, 48, 128)) * 1000.0
        np.savez(path, load=loads)
        data["options"] = {**data["options"], "loads": str(path)}
    return data


def solved(kind: str, folder: Path) -> Plan:
    """The plan of that problem, as JSON."""
    return solve(problem(kind, folder)).model_dump(mode="json", by_alias=True, exclude_none=True)


def findings_of(plan: Plan, folder: Path | None, *, proof: bool = False) -> list[Finding]:
    """What the check says of it, with the files of `folder` at hand."""
    envelope = Envelope.model_validate(plan)
    decision = find_kind(envelope.kind).decision.model_validate(envelope.decision)
    return check_plan(envelope, decision, hand=AtHand(() if folder is None else (folder,)), proof=proof)


def by_verdict(plan: Plan, folder: Path | None, verdict: str, *, proof: bool = False) -> set[str]:
    """The rules with that verdict."""
    return {finding.rule for finding in findings_of(plan, folder, proof=proof) if finding.verdict == verdict}
