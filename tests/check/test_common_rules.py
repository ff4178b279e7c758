"""Every rule common to all kinds: a plan broken in one way fails that rule and no other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.check import check_plan
from planner.check.certificate import certificate_findings
from planner.documents.files import sha256_text
from planner.kinds.registry import find_kind
from planner.plan.findings import Finding
from planner.plan.schema import Envelope

Failing = Callable[..., set[str]]
Edited = Callable[..., dict[str, Any]]
OTHER = "sha256:" + "0" * 64
DEVICE_BYTES = 143771 * 2.0**20  # of an H200, the pool of the plan
PREFILL, DECODE = "decision.placement.0", "decision.placement.1"

BROKEN: list[tuple[str, str, dict[str, Any]]] = [
    ("schema.inputs", "serve", {"inputs.workloads.0.share": -1.0}),
    ("schema.inputs", "serve", {"inputs.options": {"tp": [0]}}),
    ("schema.references", "serve", {"decision.roles.1.pool": "h100", "decision.placement.1.pool": "h100"}),
    ("schema.references", "train", {"decision.roles.0.model": "llama"}),
    ("digest.problem", "serve", {"digests.problem": OTHER}),
    ("digest.models", "serve", {"digests.models.chat": OTHER}),
    ("digest.models", "place", {"digests.models.llama": ...}),
    ("digest.hardware", "serve", {"digests.hardware.h200": OTHER}),
    ("memory.parts", "serve", {"decision.roles.1.memory.kv_cache_bytes": 150e9}),
    ("memory.capacity", "serve", {"decision.roles.1.memory.capacity_bytes": 160e9}),
    ("placement.ranks", "serve", {f"{DECODE}.axes.0.size": 1}),
    ("placement.ranks", "train", {"decision.placement": []}),
    ("placement.axes", "serve", {f"{DECODE}.axes.1.name": "lane"}),
    ("placement.axes", "train", {"decision.placement.0.axes.1.size": 8, "decision.placement.0.axes.2.size": 128}),
    ("placement.pool", "serve", {f"{DECODE}.pool": "h100"}),
    ("placement.range", "serve", {f"{DECODE}.first_device": 8}),
    ("placement.service", "serve", {"inputs.cluster.pools.0.out_of_service": [1]}),
    ("placement.service", "serve", {"inputs.cluster.pools.0.out_of_service": ["node-a"]}),
    ("placement.exclusive", "serve", {f"{DECODE}.first_device": 0}),
    ("placement.exclusive", "train", {"decision.placement.0.axes.1.stride": 0}),
    ("placement.exclusive", "rl", {"decision.phases.2.roles": ["actor", "reference"]}),
    ("placement.tp_domain", "serve", {f"{DECODE}.first_device": 6, f"{DECODE}.axes.0.stride": 4}),
    ("limits.gpus", "serve", {"inputs.limits.gpus": 11}),
    ("limits.price", "serve", {"inputs.limits": {"usd_per_hour": 45.0}}),
    ("limits.price", "train", {"inputs.limits": {"usd_per_hour": 1e9}}),
    ("slo.ttft", "serve", {"predictions.0.value": 1.01}),
    ("slo.ttft", "serve", {"predictions.0.metric": "queue_s"}),
    ("slo.tpot", "serve", {"predictions.1.value": 0.021}),
    ("slo.latency", "place", {"predictions.0.value": 5.1}),
    ("slo.attainment", "place", {"predictions.1.value": 0.98}),
    ("slo.rate", "serve", {"predictions.2.value": 5.9, "inputs.objective": {"minimize": "gpus"}}),
    ("arithmetic.shares", "serve", {"decision.routing.0.share": 0.5, "decision.routing.1.share": 0.5}),
    ("arithmetic.shares", "serve", {"decision.routing.1.share": 0.9}),
    ("arithmetic.evidence", "serve", {"evidence.basis": {"analytical": 0.5, "measured": 0.4}}),
    ("arithmetic.interval", "serve", {"predictions.0.interval": [0.7, 0.9]}),
    ("arithmetic.objective", "serve", {"predictions.3.value": 500.0}),
    ("certificate.gap", "serve", {"certificate.bound": 600.0}),
    ("certificate.gap", "serve", {"certificate.bound": 600.0, "certificate.gap": 0.2}),
    ("certificate.gap", "serve", {"certificate.gap": 0.0}),
    ("certificate.bound", "train", {"certificate.bound": 12.6, "certificate.gap": 1.0}),
    ("certificate.status", "serve", {"certificate.status": "infeasible"}),
    ("certificate.status", "serve", {"certificate.status": "optimal"}),
    ("digest.side_files", "serve", {"decision.side_files.queue": {"path": "queue.npz", "digest": OTHER}}),
]


@pytest.mark.parametrize(("rule", "kind", "edits"), BROKEN)
def test_a_plan_broken_in_one_way_fails_that_rule_alone(
    rule: str, kind: str, edits: dict[str, Any], edited_plan: Edited, tmp_path: Path
) -> None:
    envelope = Envelope.model_validate(edited_plan(kind, edits))
    decision = find_kind(kind).decision.model_validate(envelope.decision)
    findings = check_plan(envelope, decision, base=tmp_path)
    failed = [finding for finding in findings if finding.verdict == "failed"]
    assert {finding.rule for finding in failed} - {"restated.plan"} == {rule}
    assert all(finding.what and finding.where and finding.hint for finding in failed)


@pytest.mark.parametrize(("relative", "fails"), [(5e-10, False), (2e-9, True)])
def test_memory_may_exceed_its_capacity_by_rounding_alone(
    relative: float, fails: bool, edited_plan: Edited, failing_rules: Failing
) -> None:
    role = "decision.roles.1"
    memory = edited_plan("serve", {})["decision"]["roles"][1]["memory"]
    used = sum(value for part, value in memory.items() if part != "capacity_bytes")
    over = {f"{role}.memory.capacity_bytes": used / (1.0 + relative)}
    assert failing_rules("serve", over) == ({"memory.parts"} if fails else set())
    whole = {f"{role}.memory.capacity_bytes": DEVICE_BYTES * (1.0 + relative)}
    assert failing_rules("serve", whole) == ({"memory.capacity"} if fails else set())


def test_a_problem_of_another_kind_is_named(failing_rules: Failing) -> None:
    assert "schema.kind" in failing_rules("serve", {"inputs.kind": "train"})


def test_out_of_service_nodes_may_be_stepped_over(failing_rules: Failing) -> None:
    moved = {
        "inputs.cluster.pools.0.nodes": 3,
        "inputs.cluster.pools.0.node_names": ["a", "b", "c"],
        "inputs.cluster.pools.0.out_of_service": ["b"],
        f"{PREFILL}.axes.0.stride": 16,
        f"{DECODE}.axes.0.stride": 16,
    }
    assert failing_rules("serve", moved) == set()


def test_a_group_larger_than_a_node_fills_whole_nodes(failing_rules: Failing) -> None:
    wide = {
        "inputs.cluster.pools.0.nodes": 4,
        "inputs.cluster.pools.0.node_names": ...,
        "decision.roles.1.parallelism.tp": 16,
        "decision.roles.1.replicas": 1,
        f"{DECODE}.first_device": 16,
        f"{DECODE}.axes": [{"name": "tp", "size": 16, "stride": 1}],
        "inputs.limits.gpus": 32,
    }
    assert failing_rules("serve", wide) == set()
    assert failing_rules("serve", {**wide, f"{DECODE}.first_device": 12}) == {"placement.tp_domain"}


def test_a_percentile_answered_from_a_mean_is_approximate(edited_plan: Edited) -> None:
    envelope = Envelope.model_validate(edited_plan("serve"))
    decision = find_kind("serve").decision.model_validate(envelope.decision)
    slo = {finding.where: finding for finding in check_plan(envelope, decision) if finding.rule.startswith("slo.")}
    assert "(judged by the mean)" in slo["workloads.chat.slo.ttft.p95"].what
    assert "(judged by the mean)" not in slo["workloads.chat.slo.tpot.mean"].what


def test_what_the_catalogs_do_not_know_is_skipped_and_says_so(edited_plan: Edited) -> None:
    edits = {"inputs.models.chat": {"config": "my-model"}, "inputs.cluster.pools.0.gpu": "h999"}
    envelope = Envelope.model_validate(edited_plan("serve", edits))
    decision = find_kind("serve").decision.model_validate(envelope.decision)
    findings = check_plan(envelope, decision)
    skipped = {finding.rule for finding in findings if finding.skipped}
    assert {"digest.models", "digest.hardware", "memory.capacity", "serve.experts"} <= skipped
    assert not [finding for finding in findings if finding.verdict == "failed"]


def test_a_side_file_is_the_one_that_the_plan_names(edited_plan: Edited, tmp_path: Path) -> None:
    side = {"decision.side_files.queue": {"path": "queue.txt", "digest": sha256_text("1 2 3")}}
    envelope = Envelope.model_validate(edited_plan("serve", side))
    decision = find_kind("serve").decision.model_validate(envelope.decision)

    def judged(base: Path | None) -> Finding:
        findings = check_plan(envelope, decision, base=base)
        return next(finding for finding in findings if finding.rule == "digest.side_files")

    assert judged(None).skipped
    assert "cannot read" in judged(tmp_path).what
    (tmp_path / "queue.txt").write_text("1 2 3")
    assert judged(tmp_path).ok
    (tmp_path / "queue.txt").write_text("1 2 4")
    assert not judged(tmp_path).ok


@pytest.mark.parametrize("proof", [{"method": "dual_tree"}, {"method": "dual_tree", "tree": {}, "mix": {}}, {}])
def test_an_optimal_claim_without_a_whole_proof_fails(edited_plan: Edited, proof: dict[str, Any]) -> None:
    certificate = {
        "claim": "optimal over one variable",
        "status": "optimal",
        "objective": {"metric": "gpus", "sense": "minimize", "value": 4.0},
        "bound": 4.0,
        "gap": 0.0,
        "proof": proof,
    }
    plan = edited_plan("serve", {"certificate": certificate})
    findings = list(certificate_findings(Envelope.model_validate(plan)))
    assert [finding.rule for finding in findings if not finding.ok] == ["certificate.proof"]
