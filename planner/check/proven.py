"""Holds a certificate against a search made again: the bound, the counts of the search, and the next best plan.

A search is exact, so what it proves when it runs to its end is as much as any plan may state. Counts and next best plan
are held against those of the new search where both searches ended by themselves, with nothing left to find.
"""

from collections.abc import Iterator
from typing import Any

from planner.check.restated import differing
from planner.errors import Infeasible, PlannerError, Stopped
from planner.kinds.registry import Kind
from planner.plan.findings import Finding
from planner.plan.schema import Certificate, Envelope
from planner.problem.recorded import AtHand, resolved_again
from planner.progress import Limits

REL_TOL = 1e-6
COUNTED = ("axes", "candidates", "pruned", "next_best", "within")
"""What of a certificate is the search's own."""
EVIDENCE = ("groups", "periods")
"""What of a proof is the search's own beside its counts."""
_HINT = "solve again: the certificate is not one for this problem and plan"


def searched_again(kind: Kind, envelope: Envelope, hand: AtHand) -> Iterator[Finding]:
    """One finding for the bound and one for each part of the certificate, of a plan that states a bound.

    A search that starts from a plan which runs now is not made again: that plan is no input of this one.
    """
    stated = envelope.certificate
    if stated.bound is None or stated.proof.get("method") not in kind.searched or envelope.decision.get("running"):
        return
    try:
        digests = envelope.digests
        resolved = resolved_again(envelope.inputs, kind.options, hand, digests.profiles, stated.confidence)
        again = kind.solve(resolved, Limits())
    except (PlannerError, Infeasible, Stopped) as error:
        yield Finding("certificate.search", False, f"solved again, no plan was found: {error}", "certificate", _HINT)
        return
    if again.certificate.bound is not None:
        yield _bound(stated, again.certificate)
    if _closed(stated) and _closed(again.certificate):
        yield from _counts(_own(envelope), _own(again))


def _bound(stated: Certificate, again: Certificate) -> Finding:
    """No search proves a bound beyond the one that it comes to when it runs to its end."""
    bound, proven = stated.bound, again.bound
    assert bound is not None
    assert proven is not None
    beyond = proven - bound if stated.objective.sense == "maximize" else bound - proven
    right = beyond <= REL_TOL * max(abs(proven), 1e-9)
    what = f"solved again, nothing beyond {proven:.9g} is proven, the bound is {bound:.9g}"
    return Finding("certificate.search", right, what, "certificate.bound", _HINT)


def _closed(certificate: Certificate) -> bool:
    levels = (certificate, certificate.within)
    return certificate.stop_reason == "finished" and any(level and level.status == "optimal" for level in levels)


def _own(envelope: Envelope) -> dict[str, Any]:
    """What the search counted, and the trade-offs that it found, as JSON."""
    data = envelope.certificate.model_dump(mode="json", exclude_none=True)
    proof = data["proof"].items()
    proof = {name: part for name, part in proof if name in EVIDENCE or (isinstance(part, int) and name != "checksum")}
    return {**{name: data.get(name) for name in COUNTED}, "proof": proof, "frontier": envelope.decision.get("frontier")}


def _counts(stated: dict[str, Any], again: dict[str, Any]) -> Iterator[Finding]:
    for name, own in stated.items():
        rule = f"certificate.{'counts' if name == 'proof' else name}"
        where = f"decision.{name}" if name == "frontier" else f"certificate.{name}"
        places = list(differing(own, again[name], where))
        if not places:
            yield Finding(rule, True, "what the search gives again", where)
        for path, value, searched in places[:4]:
            yield Finding(rule, False, f"states {value}, solved again {searched}", path, _HINT)
