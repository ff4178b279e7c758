"""Whether the proof of a training plan holds: its space derived again, and its bound, by searching for what beats it.

The search runs again with the stated bound as the value to beat. It opens whatever may hold a better plan, by bounds
that it derives from the problem and the costs alone, so that it ends without one exactly where the bound holds.
"""

from collections.abc import Iterator

from planner.kinds.train.evaluation.evaluate import Evaluation
from planner.kinds.train.job import Job, jobs_of
from planner.kinds.train.plan.certificate import METHOD, axes_of, in_metric
from planner.kinds.train.search.search import Found
from planner.kinds.train.solve import best_plan
from planner.plan.findings import Finding
from planner.plan.schema import Certificate, Envelope
from planner.problem.recorded import INPUTS, recorded_problem
from planner.problem.resolve import resolve
from planner.progress import Limits

REL_TOL = 1e-6
_HINT = "solve again: the certificate is not one for this problem and plan"
_WHERE = "certificate"


def proof_findings(envelope: Envelope, priced: Evaluation) -> Iterator[Finding]:
    """One finding a rule: objective, space, bound; none for plans that prove nothing."""
    certificate, problem = envelope.certificate, recorded_problem(envelope.inputs)
    if certificate.proof.get("method") != METHOD or certificate.bound is None or problem is None:
        return
    jobs = jobs_of(resolve(problem, INPUTS))
    job = jobs[0]
    weight = priced.choice.num_gpus if job.per_gpu else 1
    value, stated = in_metric(job, priced.step_s * weight), certificate.objective.value
    right = stated is not None and abs(stated - value) <= REL_TOL * value
    what = f"states the objective {stated}, the decision gives {value:.6g}"
    yield Finding("certificate.objective", right, what, f"{_WHERE}.objective", _HINT)
    beaten = in_metric(job, certificate.bound) * (1.0 - REL_TOL)
    found = best_plan(jobs, Limits(), beaten)
    yield from _space(certificate, job, found)
    holds = found.best is None and found.bound >= beaten * (1.0 - REL_TOL)
    what = f"no plan of the axes beats the bound {certificate.bound:.6g}"
    if not holds:
        better = in_metric(job, found.bound if found.value is None else found.value)
        what = f"the bound {certificate.bound:.6g} does not hold: searched again, {better:.6g} is not ruled out"
    yield Finding("certificate.proof", holds, what, f"{_WHERE}.bound", _HINT)


def _space(certificate: Certificate, job: Job, found: Found) -> Iterator[Finding]:
    """Axes and number of candidates are those of the problem."""
    right = certificate.axes == axes_of(job, found) and certificate.candidates == found.tally.candidates
    what = f"states {certificate.candidates} candidates on its axes, the problem has {found.tally.candidates}"
    yield Finding("certificate.space", right, what, f"{_WHERE}.axes", _HINT)
