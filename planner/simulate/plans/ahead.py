"""Which engines of a plan form a step while the one before it runs: by the engine's release, or as the problem says."""

import math

from planner.engines.load import release_of
from planner.plan.schema import Role
from planner.problem.schema import EngineSpec
from planner.simulate.fleet.operation_spec import OperationSpec


def forms_ahead(engine: EngineSpec) -> bool:
    """Whether the scheduler of an engine does, by its release where nobody says otherwise."""
    if engine.async_scheduling is not None:
        return engine.async_scheduling
    rule = release_of(engine.name, engine.version).asynchronous
    return rule is not None and rule.default


def simulated_ahead(role: Role, operation: OperationSpec, *, queueing: str, migration_period_s: float) -> bool:
    """Whether what a role is simulated with goes together with steps that are formed ahead (`Fleet` names the rest)."""
    operated = bool(operation.changes) or operation.control is not None or operation.elastic is not None
    return role.parallelism.pp == 1 and not operated and queueing != "feedback" and migration_period_s == math.inf
