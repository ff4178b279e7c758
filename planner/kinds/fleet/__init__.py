"""Plan kind `fleet`: one cluster, many jobs, a day."""

from planner.kinds.fleet.decision import FleetDecision
from planner.kinds.fleet.options import FleetOptions
from planner.kinds.fleet.reads import READS
from planner.kinds.registry import Kind
from planner.plan.restated import SOLVED_AGAIN

KIND = Kind(
    name="fleet",
    purpose="which jobs have which nodes of a cluster in which hours of a day",
    options=FleetOptions,
    decision=FleetDecision,
    reads=READS,
    proofs=(SOLVED_AGAIN,),
)
