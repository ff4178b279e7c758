"""Verifies a training plan's bound: derives the space again, and searches it for a better plan.

The search runs again with the stated bound as the value to beat. It opens whatever may hold a better plan, by bounds
that it derives from the problem and the costs alone, so that it ends without one exactly where the bound holds.
"""

from collections.abc import Iterator

from planner.kinds.train.evaluation.evaluate import Evaluation
from planner.kinds.train.figures import REPRICED_TOL, agree
from planner.kinds.train.job import TrainJob, jobs_of
from planner.kinds.train.plan.certificate import METHOD, axes_of, in_metric
from planner.kinds.train.search.search import SearchResult
from planner.kinds.train.solve import best_plan
from planner.plan.findings import Finding
from planner.plan.schema import Certificate, Envelope
from planner.problem.recorded import INPUTS, recorded_problem
from planner.problem.resolve import resolve
from planner.progress import Limits

_HINT = "solve again: the certificate is not one for this problem and plan"
_WHERE = "certificate"


def proof_findings(envelope: Envelope, priced: Evaluation) -> Iterator[Finding]:
    """One finding a rule: objective, space, bound; none for plans that prove nothing."""
    certificate, problem = envelope.certificate, recorded_problem(envelope.inputs)
    if certificate.proof.get("method") != METHOD or certificate.bound is None or problem is None:
        return
    jobs = jobs_of(resolve(problem, INPUTS))
    job = jobs[0]
    value, stated = in_metric(job, priced.objective), certificate.objective.value
    right = stated is not None and agree(stated, value)
    what = f"states the objective {stated}, the decision gives {value:.6g}"
    yield Finding("certificate.objective", right, what, f"{_WHERE}.objective", _HINT)
    cutoff = in_metric(job, certificate.bound) * (1.0 - REPRICED_TOL)
    result = best_plan(jobs, Limits(), cutoff)
    yield from _space(certificate, job, result)
    holds = result.best is None and result.bound >= cutoff * (1.0 - REPRICED_TOL)
    what = f"no plan of the axes beats the bound {certificate.bound:.6g}"
    if not holds:
        better = in_metric(job, result.bound if result.value is None else result.value)
        what = f"the bound {certificate.bound:.6g} does not hold: searched again, {better:.6g} is not ruled out"
    yield Finding("certificate.proof", holds, what, f"{_WHERE}.bound", _HINT)


def _space(certificate: Certificate, job: TrainJob, result: SearchResult) -> Iterator[Finding]:
    """Axes and number of candidates are those of the problem."""
    right = certificate.axes == axes_of(job, result) and certificate.candidates == result.tally.candidates
    what = f"states {certificate.candidates} candidates on its axes, the problem has {result.tally.candidates}"
    yield Finding("certificate.space", right, what, f"{_WHERE}.axes", _HINT)
