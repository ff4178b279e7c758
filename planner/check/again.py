"""Prices a plan again and says what comes of it, also where what it was priced with is not at hand.

Roles, their memory and their places hang on no rate. So without the calibration or the kernel tables of a plan they are
held against what other rates give, and all else is unverifiable.
"""

from collections.abc import Iterator
from dataclasses import replace

from pydantic import ValidationError

from planner.check.restated import HINT, differing, not_restated, plain, restated_findings, told
from planner.errors import PlannerError
from planner.kinds.registry import Kind
from planner.plan.findings import Finding, unverifiable
from planner.plan.restated import Restated, without_proof
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import CALIBRATION, INPUTS, AtHand, NotAtHand
from planner.schema.base import planner_error

TABLES = "digests.profiles"
OF_NO_RATE = ("roles", "placement")
OF_RATES = ("predictions", "certificate", "evidence", "digests", "decision")


def priced_again(
    kind: Kind, envelope: Envelope, decision: Decision, hand: AtHand, *, proof: bool
) -> tuple[Restated | None, list[Finding]]:
    """The plan stated again, where all that it rests on is at hand, and one finding for each thing that this says."""
    try:
        restated = kind.restate(envelope, decision, hand)
        _require_tables(envelope, restated.envelope)
    except NotAtHand as missing:
        return None, list(_without_rates(kind, envelope, decision, hand, missing))
    except PlannerError as error:
        return None, [Finding("restated.plan", False, error.what, error.where or "decision", HINT)]
    except ValidationError as error:
        what = planner_error(error, INPUTS).what
        return None, [Finding("restated.plan", False, f"the decision gives no figures: {what}", "decision", HINT)]
    return restated, list(restated_findings(envelope, decision, restated, proof=proof))


def _require_tables(stated: Envelope, again: Envelope) -> None:
    """Raises NotAtHand for kernel tables that the plan was priced with and the prices of today were not."""
    missing = sorted(set(stated.digests.profiles) - set(again.digests.profiles))
    if missing:
        what = f"kernel tables {missing[0][:19]}... are not at hand"
        raise NotAtHand(what, where=TABLES, hint="name them: `--profiles PATH`")


def _without_rates(
    kind: Kind, envelope: Envelope, decision: Decision, hand: AtHand, missing: NotAtHand
) -> Iterator[Finding]:
    """What hangs on no rate, where it is rates that are missing; all else is unverifiable."""
    if missing.where not in (TABLES, CALIBRATION):
        yield not_restated(missing.what, missing.where, missing.hint)
        return
    others = replace(hand, calibration=hand.calibration or "default")
    try:
        restated = kind.restate(without_proof(envelope), decision, others)
    except (PlannerError, ValidationError):
        yield not_restated(missing.what, missing.where, missing.hint)
        return
    again = type(decision).model_validate(restated.envelope.decision)
    stated, priced = (plain(envelope, own)["decision"] for own in (decision, again))
    places = [
        place for name in OF_NO_RATE for place in differing(stated.get(name), priced.get(name), f"decision.{name}")
    ]
    yield from told("decision", places)
    for section in OF_RATES:
        yield unverifiable(f"restated.{section}", missing.what, section, missing.hint)
