"""What the engines of a plan are made from: its problem and models, the policies around it, and what drafts."""

import math
from dataclasses import dataclass, field

import numpy as np

from planner.costs.operators.work import Shards
from planner.costs.rates.calibration import Calibration
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.serving.speculation import Drafter
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.models.architecture import Architecture
from planner.plan.schema import Role
from planner.problem.schema import Problem
from planner.simulate.fleet.operation_spec import OperationSpec
from planner.simulate.fleet.shared_grids import SharedGrids
from planner.simulate.requests.stream import Requests


@dataclass(frozen=True, slots=True)
class Policies:
    """The rules between instances, and those of the engine where they are to differ from its own."""

    routing: str | None = None  # that of the plan, or where it states none to the least loaded
    decode_routing: str | None = None
    queueing: str | None = None  # that of the plan, or first come first served
    engine_policy: str | None = None
    preemption: str = "recompute"
    prefix_caching: bool = False
    migration_period_s: float = math.inf  # Llumnix's live migration; never
    crowded_below: float = 2.0  # freeness: blocks a sequence
    spare_above: float = 16.0
    operation: OperationSpec | None = None


@dataclass(frozen=True, slots=True)
class Drafts:
    """What an engine drafts with, and how many tokens of a sequence in a step that decodes."""

    drafter: Drafter | None
    tokens: int

    def kv_bytes(self, shards: Shards, tokens: float) -> float:
        """The drafter's cache of one sequence of so many tokens, on one device."""
        if self.drafter is None:
            return 0.0
        return float(self.drafter.kv_bytes(shards, tokens, np.array([max(self.tokens, 1.0)]))[0])


NO_DRAFTS = Drafts(None, 0)


@dataclass(frozen=True, slots=True)
class FleetSetting:
    """What the engines of a role are made from; step times are for requests as long as `requests`."""

    problem: Problem
    arch: Architecture
    pools: dict[str, Pool]
    calibration: Calibration
    profiles: tuple[str, ...]
    requests: Requests
    policies: Policies
    crossing: bool = False  # caches move between pools, over their fabrics
    drafter: Drafter | None = None  # of the plan's own drafts
    grids: SharedGrids = field(default_factory=SharedGrids)
    spread_gpus: int | None = None  # that clients are spread over, where own runs are taken at their share

    def drafts(self, role: Role) -> "Drafts":
        """Those that the operation asks for, or else the plan's own."""
        asked = self.policies.operation.speculation if self.policies.operation is not None else None
        if asked is not None:
            drafter = Drafter("stated", asked.acceptance, step_s=asked.draft_step_s)
            return Drafts(drafter, 0 if role.function == "prefill" else asked.draft_tokens)
        own = int(role.limits.get("draft_tokens", 0))
        if own and self.drafter is None:
            raise PlannerError(
                f"role `{role.name}` has {own} drafts, and the problem of the plan no drafter",
                where="options.speculation",
                hint="check the plan: `planner check PLAN`",
            )
        return Drafts(self.drafter if own else None, 0 if role.function == "prefill" else own)

    @property
    def overheads(self) -> EngineOverheads:
        """What the engine adds to its kernels."""
        return self.calibration.engine(self.problem.engine.name, self.problem.engine.version, self.arch.name)
