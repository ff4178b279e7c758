"""Contradictions that stand in what an artifact says, without a cost model: ranks against GPUs, sides against sides."""

import re
from collections.abc import Mapping
from typing import Any

from planner.importing.flags import limit_findings


def findings_of(fields: Mapping[str, Any]) -> list[str]:
    """The findings on a serving deployment; those of training and RL are made where their launcher is read."""
    if fields.get("kind") != "serve":
        return []
    roles = fields["roles"]
    findings = [text for role in roles for text in _ranks(role, fields.get("engine"))]
    findings += [text for role in roles for text in limit_findings(fields.get("engine"), role)]
    sides = {role["role"] for role in roles}
    if len(sides & {"prefill", "decode"}) == 1 and "colocated" not in sides:
        findings.append(f"partial: only the {sides.pop()} side is in this file")
    findings += _disagreements(roles)
    total = [
        role["replicas"] * role["gpus_per_replica"] for role in roles if role["replicas"] and role["gpus_per_replica"]
    ]
    if fields.get("gpus") and len(total) == len(roles) and sum(total) > fields["gpus"]:
        findings.append(f"the roles need {sum(total)} GPUs, the file gives {fields['gpus']}")
    return findings


def _ranks(role: Mapping[str, Any], engine: object) -> list[str]:
    """More ranks than GPUs, or GPUs without a rank."""
    tp, pp, dp, gpus = role["tp"], role["pp"], role["dp"], role["gpus_per_replica"]
    if not (tp and pp and gpus):
        return []
    degrees = {"tp": tp, "pp": pp}
    if engine == "vllm" and dp:
        degrees["dp"] = dp
    ranks = 1
    for degree in degrees.values():
        ranks *= degree
    if ranks == gpus or (engine == "sglang" and dp and ranks * dp == gpus):
        return []
    asked = " x ".join(f"{key} {degree}" for key, degree in degrees.items() if degree > 1) or "tp 1"
    named = f"{role['role']}: " if role["role"] != "colocated" else ""
    if ranks > gpus:
        return [f"{named}{asked} needs {ranks} GPUs, a replica is given {gpus}"]
    return [f"{named}{asked} uses {ranks} of {gpus} GPUs of a replica"]


def _disagreements(roles: list[Mapping[str, Any]]) -> list[str]:
    """What prefill and decode must have alike and have not."""
    by_side = {role["role"]: role for role in roles}
    if not {"prefill", "decode"} <= by_side.keys():
        return []
    left, right = (_kept(by_side[side]["kv_dtype"]) for side in ("prefill", "decode"))
    return [f"prefill keeps its cache as {left}, decode as {right}"] if left != right else []


def _kept(kv_dtype: str | None) -> str:
    """A format of caches; `fp8` is that with four bits of exponent."""
    return {None: "the model has it", "fp8": "fp8_e4m3"}.get(kv_dtype, str(kv_dtype))


_RUNS = re.compile(r"partial: |serves several models| is ignored | spans | uses \d+ of | cancel each other")


def blocks(finding: str) -> bool:
    """Whether the artifact cannot start with it: all but parts, flags that are ignored, spans and idle GPUs."""
    return _RUNS.search(finding) is None
