"""The decision of an RL plan read back as a plan on the curves of its problem."""

from math import inf

from planner.kinds.rl.agents.stated import agentic_plan
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.names import (
    BATCH_SAMPLES,
    BETWEEN_TURNS,
    GPUS,
    LATE,
    OFFLOADED,
    PRECISION,
    TAKES,
    WEIGHTS,
    training_label,
)
from planner.kinds.rl.stated import SYNCHRONOUS
from planner.plan.schema import Role
from planner.rl.agentic import AgenticPlan
from planner.rl.curves import Learner, Service, TrainingOption
from planner.rl.plan import Fusion, GenerationGroup, LateReplicas, RlPlan, TrainingChoice
from planner.rl.problem import RlProblem
from planner.rl.rollouts.rollout import RolloutPolicy
from planner.rl.services import apart


def plan_of(decision: RlDecision, searched: RlProblem) -> RlPlan | None:
    """The decision as a plan on the curves; None where it has roles that no curve is for, or a mode not asked for."""
    late = next((role for role in decision.roles if role.name == LATE), None) if decision.late_rollout else None
    groups = [_group(role, searched) for role in decision.roles if role.function == "rollout" and role is not late]
    ending = _group(late, searched) if late is not None else None
    moved = any(role.limits.get(BETWEEN_TURNS) == "host" for role in decision.roles)
    actors = (role for role in decision.roles if role.function == "actor")
    services = _services(decision, searched)
    suffix = OFFLOADED if moved else ""
    training = next((_training(role, searched, suffix, apart(services or ())) for role in actors), None)
    sync = {**SYNCHRONOUS, "asynchronous": "k_step_async"}[decision.synchrony]
    placements = {"disaggregated": ("disaggregated", "hybrid")}.get(
        decision.arrangement, (decision.arrangement, "hybrid")
    )
    keeps = decision.turns is not None and decision.turns.engine_weights == "host"
    mode = next(
        (
            mode
            for placement in placements
            for mode in searched.modes
            if (mode.placement, mode.sync, mode.staleness) == (placement, sync, decision.staleness)
            and mode.in_flight == (decision.in_flight_updates is not None)
            and mode.keeps == keeps
        ),
        None,
    )
    if mode is None or (training is None) == bool(searched.training) or not groups or None in groups:
        return None
    if services is None:
        return None
    if (decision.late_rollout is None) != (ending is None):
        return None
    fused = decision.fused_scoring
    fusion = Fusion(fused.threshold, fused.kept) if fused is not None else None
    whole = tuple(group for group in groups if group is not None)
    return RlPlan(
        mode,
        whole,
        training,
        decision.tail_share,
        fusion,
        _late(decision, ending),
        _policy(decision, searched),
        services,
    )


def agentic_plan_of(decision: RlDecision, searched: RlProblem) -> AgenticPlan | None:
    """The decision as a plan of agents; None as `plan_of`, and where it is no plan of agents."""
    plan = plan_of(decision, searched)
    if plan is None or decision.agents is None:
        return None
    return agentic_plan(plan, decision.dispatch, decision.priority, decision.move_threshold, decision.agents)


def _services(decision: RlDecision, searched: RlProblem) -> tuple[Service | Learner, ...] | None:
    """The servers of the decision, in the order of the problem; None where one is none of the problem's."""
    roles = {role.function: role for role in decision.roles if BATCH_SAMPLES in role.limits or GPUS in role.limits}
    chosen: list[Service | Learner] = []
    for service in searched.services:
        role = roles.get(service.part)
        if role is None and service.gpus:
            continue
        if role is not None and isinstance(service, Learner):
            limits, shape = role.limits, role.parallelism
            label = training_label(shape.cp, shape.ep, limits.get("recompute"))
            stated = (role.pool, limits.get(GPUS), shape.tp, shape.pp, label, shape.devices)
            option = service.option
            if stated != (option.pool, "own", option.tp, option.pp, option.label, option.gpus * service.dp):
                continue
        elif role is not None and isinstance(service, Service):
            limits = role.limits
            known = (role.pool, role.parallelism.devices, role.replicas, limits.get(BATCH_SAMPLES), limits.get(TAKES))
            handed = "batches" if service.whole else None
            if known != (service.pool, service.gpus, service.servers, service.batch, handed):
                continue
        chosen.append(service)
    return tuple(chosen) if roles.keys() <= {service.part for service in chosen} else None


def _policy(decision: RlDecision, searched: RlProblem) -> RolloutPolicy | None:
    """The policy of the problem that the decision names; one that nobody asked for is none of its policies."""
    threshold = inf if decision.move_threshold is None else decision.move_threshold
    wanted = (decision.priority == "longest_first", threshold)
    if not searched.policies and wanted == (False, inf):
        return None
    known = [policy for policy in searched.policies if (policy.longest_first, policy.move_threshold) == wanted]
    return known[0] if known else RolloutPolicy(True, *wanted)


def _late(decision: RlDecision, group: GenerationGroup | None) -> LateReplicas | None:
    return LateReplicas(decision.late_rollout.threshold, group) if decision.late_rollout and group is not None else None


def _group(role: Role, searched: RlProblem) -> GenerationGroup | None:
    shape = role.parallelism
    wanted = (role.pool, shape.tp, shape.pp, shape.ep, role.limits.get(WEIGHTS, ""))
    known = {
        (option.pool, option.tp, option.pp, option.ep, option.label): option for option in reversed(searched.generation)
    }
    return GenerationGroup(known[wanted], role.replicas) if wanted in known else None


def _training(role: Role, searched: RlProblem, suffix: str, served: str) -> TrainingChoice | None:
    """The option of the actor's role; `suffix` ends its label where other models lie in host memory, and others are
    `served` apart from it."""
    shape = role.parallelism
    gpus = shape.devices

    limits = role.limits
    label = training_label(shape.cp, shape.ep, limits.get("recompute"), limits.get(PRECISION, "bf16")) + suffix

    def matches(option: TrainingOption) -> bool:
        known = option.pool == role.pool and option.tp == shape.tp and option.pp == shape.pp
        known = known and option.apart == served
        return known and option.label in ("", label)

    option = next((option for option in searched.training if matches(option)), None)
    return TrainingChoice(option, gpus // option.gpus) if option is not None else None
