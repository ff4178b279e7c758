"""What explanations say of the chance that each limit on time holds (`planner.costs.serving.chances`)."""

from collections import Counter
from collections.abc import Iterator, Sequence

from planner.costs.serving.chances import Sure, chances_of, chances_together, costs_of
from planner.explain.facts import Fact
from planner.plan.schema import Decision, Envelope


def chance_facts(envelope: Envelope, decision: Decision) -> Iterator[Fact]:
    """One fact a limit of a serving plan, and one of all of a workload that has several."""
    calibration = None if envelope.evidence.beliefs else costs_of(envelope)
    if isinstance(calibration, str):
        yield Fact("note", calibration)
        return
    if calibration is not None and calibration.digest != envelope.digests.calibration:
        yield Fact("note", "the costs have changed since the plan: how sure its limits are is by those of today")
    chances = list(chances_of(envelope, decision))
    for sure in chances:
        name = sure.prediction.metric.removesuffix("_s")
        what = f"`{sure.workload}` keeps its limit on {sure.prediction.statistic} {name} with {sure.chance:.0%}"
        what += f", {sure.basis}" if sure.basis else ""
        yield Fact("limit", what, (sure.workload, name), figures={"chance": sure.chance})
    yield from together_facts(chances)


def together_facts(chances: Sequence[Sure]) -> Iterator[Fact]:
    """How sure a workload keeps all of its limits, where it has several."""
    limits = Counter(sure.workload for sure in chances)
    for workload, chance in chances_together(chances).items():
        if limits[workload] > 1:
            what = f"all limits of `{workload}` hold with {chance:.0%}"
            yield Fact("limit", what, (workload, "slo"), figures={"chance": chance})
