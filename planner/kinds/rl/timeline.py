"""An RL plan out in time: the phases of an iteration, and the first rollout of it sample by sample.

Rollouts are simulated again on the curves that the proof holds, with lengths drawn again by the seed.
"""

from collections.abc import Iterator, Sequence

from planner.documents.trace_events import Span
from planner.errors import PlannerError
from planner.kinds.rl.agents.stated import agentic_problem
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.fused_training import replayed
from planner.kinds.rl.names import LATE
from planner.kinds.rl.options import RlOptions
from planner.kinds.rl.planned import agentic_plan_of, plan_of
from planner.kinds.rl.proof import proven_problem
from planner.plan.schema import Envelope
from planner.problem.recorded import recorded_options, recorded_problem
from planner.rl.sample_spans import CHANGED, SampleSpan, agent_spans, sample_spans
from planner.rl.timeline import rows


def samples(envelope: Envelope, decision: RlDecision) -> list[SampleSpan]:
    """Turns of the samples of the first batch drawn; raises PlannerError for a plan without a proof to draw from."""
    problem = recorded_problem(envelope.inputs)
    options = recorded_options(problem, RlOptions)
    if problem is None or options is None:
        raise PlannerError("the problem in the plan is not valid", where="inputs", hint="run `planner check` on it")
    searched, curves = proven_problem(envelope, problem, options)
    plan = plan_of(decision, searched)
    if plan is None:
        raise PlannerError("the proof has no curve for the replicas of the plan", where="certificate.proof")
    if decision.fused_training is not None:
        searched, _ = replayed(searched, curves, plan, decision.fused_training)
    agents = agentic_plan_of(decision, searched)
    if agents is not None and options.agents is not None:
        return agent_spans(agentic_problem(searched, options.agents), agents)
    return sample_spans(searched, plan)


def span_replica(span: SampleSpan, decision: RlDecision) -> str:
    """`rollout 3`: the role of a span's replica and which of its replicas; what a cut sent elsewhere is said so."""
    if span.replica == CHANGED:
        return "after the change"
    roles = [role.name for role in decision.roles if role.function == "rollout" and role.name != LATE]
    return f"{roles[span.group]} {span.replica}"


def spans(envelope: Envelope, decision: RlDecision) -> Iterator[Span]:
    """Phases by the devices that roles share; then a process for every replica, a lane for each of its sequences.

    Raises PlannerError for a plan without phases.
    """
    if not decision.phases:
        raise PlannerError("the plan states no phases", where="decision.phases", hint="give a plan that was solved")
    yield from _phases(decision)
    try:
        drawn = samples(envelope, decision)
    except PlannerError:  # a plan that was stated and not solved has its phases alone
        return
    start_s = next((phase.start_s for phase in decision.phases if phase.name.startswith("generate")), 0.0)
    for span, lane in zip(drawn, _lanes(drawn, decision), strict=True):
        name = f"sample {span.sample}" + (f", turn {span.turn + 1}" if span.turn else "")
        figures: dict[str, int | float | str] = {
            "context_tokens": span.prompt_tokens,
            "output_tokens": span.output_tokens,
            "ends": "done" if span.finished else "cut off, or goes on elsewhere",
        }
        at_s = start_s + span.start_s
        yield Span(
            span_replica(span, decision), lane, name, at_s, span.end_s - span.start_s, f"slot {lane}", "sample", figures
        )


def _phases(decision: RlDecision) -> Iterator[Span]:
    """A process for the devices that roles share, a lane for every phase that may run beside others."""
    for row in rows(decision):
        for lane, phase in enumerate(row.phases):
            name = ", ".join(phase.roles) or "hand-over"
            figures = {"gpus": row.gpus}
            yield Span(row.label, lane, phase.name, phase.start_s, phase.duration_s or 0.0, name, "phase", figures)


def _lanes(drawn: Sequence[SampleSpan], decision: RlDecision) -> Iterator[int]:
    """The first lane of each span's replica that is free when it starts; spans come by replica and start."""
    free_s: dict[str, list[float]] = {}
    for span in drawn:
        ends = free_s.setdefault(span_replica(span, decision), [])
        lane = next((place for place, end_s in enumerate(ends) if end_s <= span.start_s), len(ends))
        ends[lane : lane + 1] = [span.end_s]
        yield lane
