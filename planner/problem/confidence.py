"""With which confidence limits are kept: as the problem states, or as is chosen where it does not say."""

from planner.problem.slo import SloSpec

BY_ESTIMATE = 0.5  # at which limits stand as they are


def confidence_of(slo: SloSpec, chosen: float | None) -> float | None:
    """The confidence that divides the limits of a workload; None where they stand as they are.

    One that the workload states counts before what was `chosen` for those that state none (`Resolved.confidence`,
    `certificate.confidence`).
    """
    if leaves_open(slo) and chosen != BY_ESTIMATE:
        return chosen
    return slo.confidence


def leaves_open(slo: SloSpec) -> bool:
    """Whether there are limits on times, and the workload does not say how sure they are to be kept."""
    return slo.confidence is None and slo.has_time_limits
