"""The one stream of requests of a workflow problem, which all its forms have."""

from dataclasses import dataclass

from planner.kinds.workflow.options import WorkflowOptions
from planner.problem.resolve import Resolved
from planner.problem.schema import WorkloadSpec


@dataclass(frozen=True, slots=True)
class OneStream:
    """A problem with one workload at a rate."""

    resolved: Resolved
    options: WorkflowOptions

    @property
    def workload(self) -> WorkloadSpec:
        return self.resolved.workloads[0].spec

    @property
    def rate_per_s(self) -> float:
        assert self.workload.load is not None
        assert self.workload.load.rate_per_s is not None
        return self.workload.load.rate_per_s
