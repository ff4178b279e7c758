"""Plans back in the formats of the files that `planner solve` takes."""

from planner.emit.registry import EmitTarget
from planner.interchange.experts_placement import placement_files
from planner.interchange.rl_agentic import agentic_plan_files
from planner.interchange.rl_plan import rl_plan_files
from planner.kinds.rl.decision import RlDecision
from planner.plan.schema import Decision, Envelope


def _rl_files(envelope: Envelope, decision: Decision) -> dict[str, str]:
    assert isinstance(decision, RlDecision)
    return rl_plan_files(envelope, decision) if decision.agents is None else agentic_plan_files(envelope)


TARGETS = (
    EmitTarget(
        "experts-placement",
        "the layout as `phy2log` and `quota`, as benchmarks of expert layouts score it",
        ("experts",),
        placement_files,
    ),
    EmitTarget(
        "rl-plan",
        "placement, synchrony, replicas and training, as benchmarks of RL planning score them",
        ("rl",),
        _rl_files,
    ),
)
