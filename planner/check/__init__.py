"""Static check of a plan: every claim that plan and catalogs alone can refute, without any solver."""

from pathlib import Path

from planner.check.certificate import certificate_findings
from planner.check.figures import figure_findings, memory_findings
from planner.check.inputs import (
    hardware_findings,
    model_findings,
    pools_of,
    problem_findings,
    reference_findings,
    side_file_findings,
)
from planner.check.legality import placement_findings
from planner.check.promises import cap_findings, slo_findings
from planner.kinds.registry import find_kind
from planner.plan.findings import Finding
from planner.plan.schema import Decision, Envelope


def check_plan(envelope: Envelope, decision: Decision, *, base: Path | None = None) -> list[Finding]:
    """One finding a rule and part, those of the kind last; `base` is the folder of the plan, for its side files."""
    kind = find_kind(envelope.kind)
    problem, findings = problem_findings(envelope, kind.options)
    if problem is not None:
        pools = pools_of(problem)
        findings += reference_findings(decision, problem)
        findings += [*hardware_findings(envelope, problem), *model_findings(envelope, problem)]
        placed = list(placement_findings(decision, pools))
        findings += [*memory_findings(decision, pools), *placed]
        if all(finding.ok for finding in placed) and all(block.pool in pools for block in decision.placement):
            findings += cap_findings(decision, problem)
        findings += slo_findings(envelope, problem)
    findings += [*side_file_findings(decision, base), *certificate_findings(envelope, kind.proofs)]
    findings += figure_findings(envelope, decision)
    return findings + kind.check(envelope, decision)
