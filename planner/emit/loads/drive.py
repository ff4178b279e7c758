"""Load that a generator must send to match the plan's workload: rate or concurrency, lengths, number of requests."""

from dataclasses import dataclass
from statistics import fmean, pstdev

from planner.emit.serving.checkpoints import published_name
from planner.errors import PlannerError
from planner.plan.schema import Envelope
from planner.problem.schema import (
    Lengths,
    MomentLengths,
    Problem,
    ShapeLengths,
    TraceLengths,
    UniformLengths,
    WorkloadSpec,
)
from planner.problem.shapes import find_shape


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Lengths as generators take them: even between low and high, else around a mean."""

    mean: int
    deviation: int = 0
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Drive:
    """One workload: an open stream at `rate_per_s`, or `concurrency` clients in a closed loop."""

    workload: str
    model: str  # the name that the engine serves it by
    input: TokenCounts
    output: TokenCounts
    rate_per_s: float | None
    concurrency: int | None
    arrival_cv: float = 1.0


def drive_of(envelope: Envelope, problem: Problem) -> Drive:
    """The load of the plan's one workload; without a load of its own, the rate that the plan promises.

    Raises PlannerError for several workloads and for lengths that the plan does not carry.
    """
    if len(problem.workloads) != 1:
        raise PlannerError(
            f"the plan has {len(problem.workloads)} workloads, one can be driven",
            where="inputs.workloads",
            hint="run a load generator of your own, and judge its report with `--report`",
        )
    return workload_drive(envelope, problem, problem.workloads[0])


def workload_drive(envelope: Envelope, problem: Problem, workload: WorkloadSpec) -> Drive:
    """The load of one workload of the plan; raises PlannerError for what generators cannot send."""
    if workload.prefix_hits:
        raise PlannerError(
            f"the prompts of load generators share nothing, and `{workload.name}` states `prefix_hits`",
            where="inputs.workloads",
            hint="run a load generator of your own, and judge its report with `--report`",
        )
    if workload.images is not None or workload.audio_s is not None:
        raise PlannerError(
            f"load generators send text alone, and requests of `{workload.name}` bring images or sounds",
            where="inputs.workloads",
            hint="run a load generator of your own, and judge its report with `--report`",
        )
    rate, concurrency, arrival_cv = _load(workload, envelope)
    return Drive(
        workload=workload.name,
        model=published_name(problem.models[problem.model_of(workload)]),
        input=counts(workload.input_tokens, "input_tokens"),
        output=counts(workload.output_tokens, "output_tokens"),
        rate_per_s=rate,
        concurrency=concurrency,
        arrival_cv=arrival_cv,
    )


def _load(workload: WorkloadSpec, envelope: Envelope) -> tuple[float | None, int | None, float]:
    load = workload.load
    if load is not None:
        return load.rate_per_s, load.concurrency, load.arrival_cv
    for prediction in envelope.predictions:
        if prediction.metric == "requests_per_s" and prediction.of in (workload.name, "") and prediction.value > 0:
            return prediction.value, None, 1.0
    raise PlannerError(
        f"workload `{workload.name}` has no load, and the plan predicts no `requests_per_s` for it",
        where="inputs.workloads",
        hint="solve a problem whose workload has a `load`",
    )


def counts(lengths: Lengths, name: str) -> TokenCounts:
    """Lengths as generators take them; raises PlannerError for those of a trace."""
    if isinstance(lengths, int):
        return TokenCounts(lengths)
    if isinstance(lengths, UniformLengths):
        spread = (lengths.high - lengths.low) / 12**0.5
        return TokenCounts(round((lengths.low + lengths.high) / 2), round(spread), lengths.low, lengths.high)
    if isinstance(lengths, MomentLengths):
        return TokenCounts(round(lengths.mean), round(lengths.mean * lengths.cv))
    if isinstance(lengths, ShapeLengths):
        tokens = find_shape(lengths.shape).lengths(name)
        return TokenCounts(round(fmean(tokens)), round(pstdev(tokens)))
    assert isinstance(lengths, TraceLengths)
    raise PlannerError(
        f"the lengths come from the trace `{lengths.trace}`, which the plan does not carry",
        where=f"inputs.workloads.0.{name}",
        hint="replay the trace with a load generator of your own, and judge its report with `--report`",
    )
