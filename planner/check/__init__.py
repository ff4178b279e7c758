"""Check of a plan against its inputs: every claim that can be judged without solving the problem again."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue, ValidationError

from planner.check.again import priced_again
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
from planner.check.proven import searched_again
from planner.check.restated import not_restated
from planner.errors import PlannerError
from planner.kinds.registry import Kind, find_kind
from planner.plan.findings import FAILED, NOT_JUDGED, Finding, unverifiable
from planner.plan.restated import Restated
from planner.plan.schema import Decision, Envelope
from planner.problem.reads import unread_fields
from planner.problem.recorded import INPUTS, AtHand
from planner.problem.schema import Problem


def check_plan(
    envelope: Envelope,
    decision: Decision,
    *,
    base: Path | None = None,
    hand: AtHand | None = None,
    proof: bool = False,
) -> list[Finding]:
    """One finding a rule and part: those common to all kinds, those of the kind, then the plan priced again.

    `base` is the folder of the plan, for its side files; `hand` says where the files of its problem are, that folder
    where absent. Plans that it holds are judged too. With `proof` bound and next best plan are derived again too, which
    takes a search for some kinds.
    """
    hand = hand or AtHand((base,) if base is not None else ())
    kind = find_kind(envelope.kind)
    problem, findings = problem_findings(envelope, kind.options)
    if problem is not None:
        findings += _unread(kind, envelope, problem)
        pools = pools_of(problem)
        findings += reference_findings(decision, problem)
        findings += [*hardware_findings(envelope, problem), *model_findings(envelope)]
        placed = list(placement_findings(decision, pools))
        findings += [*memory_findings(decision, pools), *placed]
        if all(finding.ok for finding in placed) and all(block.pool in pools for block in decision.placement):
            findings += cap_findings(decision, problem)
    findings += side_file_findings(decision, base)
    findings += certificate_findings(envelope, kind.proofs, proof=proof)
    findings += figure_findings(envelope, decision)
    findings += kind.check(envelope, decision)
    restated, priced = _restated(kind, envelope, decision, hand, findings, proof)
    if problem is not None:
        findings += _promised(envelope, problem, restated)
    findings += priced
    if proof and kind.solvable and not _unpriced(kind, findings):
        findings += kind.prove(envelope, decision, hand)
        findings += searched_again(kind, envelope, hand) if restated is not None else ()
    for place, part in decision.parts().items():
        findings += _part(place, part, hand, proof=proof)
    return findings


def _part(place: str, part: Mapping[str, JsonValue], hand: AtHand, *, proof: bool) -> Iterator[Finding]:
    """The findings of a plan that another one holds, at their places in that one."""
    try:
        envelope = Envelope.model_validate(part)
        decision = find_kind(envelope.kind).decision.model_validate(envelope.decision)
    except (ValidationError, PlannerError) as error:
        yield Finding("schema.part", False, f"is no plan: {error}", place, "solve again")
        return
    for finding in check_plan(envelope, decision, hand=hand, proof=proof):
        yield replace(finding, where=f"{place}.{finding.where}" if finding.where else place)


def _unread(kind: Kind, envelope: Envelope, problem: Problem) -> Iterator[Finding]:
    """What the recorded problem sets although no plan of its kind depends on it; nobody could have solved it."""
    if kind.solvable and envelope.certificate.status != "stated":
        for error in unread_fields(kind.reads, problem, INPUTS):
            yield Finding("inputs.read", False, error.what, error.where.replace(": ", "."), error.hint)


def _restated(
    kind: Kind, envelope: Envelope, decision: Decision, hand: AtHand, findings: Sequence[Finding], proof: bool
) -> tuple[Restated | None, list[Finding]]:
    """The plan stated again, where it can be, and what it says of the plan."""
    if not kind.solvable or envelope.certificate.status == "stated":
        return None, [not_restated("it was written, not solved", "certificate.status", "solve its problem")]
    if _unpriced(kind, findings):
        what = "not judged: the figures of a plan whose inputs or ranks are not in order"
        return None, [Finding("restated.plan", True, what, "decision", skipped=True)]
    return priced_again(kind, envelope, decision, hand, proof=proof)


def _unpriced(kind: Kind, findings: Iterable[Finding]) -> bool:
    """Whether a rule fails without which there are no figures to price: its problem is another, or its ranks none."""
    failed = [finding.rule for finding in findings if finding.verdict == FAILED]
    beneath = ("schema.", "placement.", f"{kind.name}.", "digest.problem")
    return any(rule.startswith(beneath) for rule in failed)


def _promised(envelope: Envelope, problem: Problem, restated: Restated | None) -> Iterator[Finding]:
    """The limits of the problem, judged by the predictions as they were derived again."""
    if restated is not None:
        yield from slo_findings(restated.envelope, problem)
        return
    for finding in slo_findings(envelope, problem):
        if finding.verdict in (FAILED, NOT_JUDGED):
            yield finding
        else:
            yield unverifiable(finding.rule, f"by its own statement {finding.what}", finding.where)
