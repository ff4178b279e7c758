"""Checks of workflow plans: a choice for every stage of the problem, with the roles that its serving plan has."""

from collections import Counter
from collections.abc import Iterator

from planner.errors import PlannerError
from planner.kinds.workflow.decision import WorkflowDecision
from planner.kinds.workflow.nested import plan_place, roles_of, serving_plan
from planner.kinds.workflow.options import WorkflowOptions
from planner.kinds.workflow.schedules.rules import schedule_rules
from planner.plan.findings import Finding
from planner.plan.schema import Envelope
from planner.problem.recorded import recorded_options, recorded_problem
from planner.solvers.workflow.image_pools import MAY_BE_LEFT_OUT
from planner.solvers.workflow.image_pools import STAGES as IMAGE_STAGES
from planner.solvers.workflow.speech_pools import STAGES as SPEECH_STAGES


def check(envelope: Envelope, decision: WorkflowDecision) -> list[Finding]:
    """One finding a rule and stage."""
    findings = [*_roles(decision)]
    options = recorded_options(recorded_problem(envelope.inputs), WorkflowOptions)
    if options is None:
        return findings
    if not options.stages:
        return [*findings, *_stages(decision, _pools(options, decision))]
    findings += _stages(decision, {stage.name for stage in options.stages})
    scheduled = schedule_rules(options, decision) if all(finding.ok for finding in findings) else ()
    return [*findings, *scheduled, *_served(decision), *_carried(decision), *_orders(decision, options)]


def _pools(options: WorkflowOptions, decision: WorkflowDecision) -> set[str]:
    """Stages of pools: of images those that the plan has, and prefill and decode."""
    if options.speech is not None:
        return set(SPEECH_STAGES)
    encoding = {choice.stage for choice in decision.stages} & set(IMAGE_STAGES)
    return encoding | (set(IMAGE_STAGES) - MAY_BE_LEFT_OUT)


def _roles(decision: WorkflowDecision) -> Iterator[Finding]:
    """Every role is of one stage, and stages with a serving plan have roles."""
    owned = Counter(role for choice in decision.stages for role in choice.roles)
    names = [role.name for role in decision.roles]
    strange = sorted(set(owned) ^ set(names)) or sorted(role for role, count in owned.items() if count > 1)
    what = f"role `{strange[0]}` is of no stage, or of several, or is none" if strange else "every role is of a stage"
    yield Finding("workflow.roles", not strange, what, "stages", "name every role in one stage")


def _served(decision: WorkflowDecision) -> Iterator[Finding]:
    """Stages with a serving plan, and no others, have a limit and roles."""
    for choice in decision.stages:
        right = (choice.plan is not None) == bool(choice.roles) == (choice.limit_s is not None)
        what = f"{len(choice.roles)} roles, {'a' if choice.plan is not None else 'no'} serving plan"
        hint = "give a served stage plan, limit and roles, and others none"
        yield Finding("workflow.served", right, what, f"stages.{choice.stage}", hint)


def _carried(decision: WorkflowDecision) -> Iterator[Finding]:
    """Serving plans inside the plan are plans, whose roles are those of their stage."""
    roles = {role.name: role for role in decision.roles}
    for choice in decision.stages:
        if choice.plan is None:
            continue
        try:
            _, serving = serving_plan(choice)
        except PlannerError as error:
            yield Finding("workflow.plan", False, error.what, error.where, error.hint)
            continue
        own, stated = {role.name: role for role in roles_of(choice.stage, serving)}, set(choice.roles)
        unlike = sorted(name for name in own.keys() | stated if own.get(name) != roles.get(name))
        what = f"its role `{unlike[0]}` differs from that of the plan" if unlike else "its roles are those of the plan"
        yield Finding("workflow.plan", not unlike, what, plan_place(choice), "state the same role in both")


def _orders(decision: WorkflowDecision, options: WorkflowOptions) -> Iterator[Finding]:
    """Stages beyond GPU memory move every cluster once, and no others state an order."""
    chosen = {choice.stage: choice for choice in decision.stages}
    for stage in options.stages:
        choice = chosen.get(stage.name)
        option = next((row for row in stage.options or () if choice is not None and row.name == choice.option), None)
        clusters = () if option is None or option.latency.transfers is None else option.latency.transfers.clusters
        stated = () if choice is None else choice.transfer_order
        if clusters or stated:
            right = sorted(stated) == sorted(cluster.name for cluster in clusters)
            what = (
                f"the order has {len(stated)} of {len(clusters)} clusters, each once" if right else "is no such order"
            )
            hint = "name every cluster of the option once"
            yield Finding("workflow.transfers", right, what, f"stages.{stage.name}.transfer_order", hint)


def _stages(decision: WorkflowDecision, asked: set[str]) -> Iterator[Finding]:
    chosen = Counter(choice.stage for choice in decision.stages)
    wrong = sorted(set(chosen) ^ asked) or sorted(stage for stage, count in chosen.items() if count > 1)
    what = f"stage `{wrong[0]}` is chosen {chosen[wrong[0]]} times, or is none" if wrong else "each stage chosen once"
    yield Finding("workflow.stages", not wrong, what, "stages", "choose one option for every stage of the problem")
