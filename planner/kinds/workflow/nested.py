"""The serving plans that stages of a workflow plan carry, and what the plan calls their roles."""

from pydantic import ValidationError

from planner.kinds.registry import find_kind
from planner.kinds.workflow.decision import StageChoice
from planner.plan.schema import Decision, Envelope, Role
from planner.schema.base import Path, planner_error


def plan_place(choice: StageChoice) -> str:
    """Where the serving plan of a stage stands."""
    return f"decision.stages.{choice.stage}.plan"


def serving_plan(choice: StageChoice) -> tuple[Envelope, Decision]:
    """The serving plan of a stage; raises PlannerError with the place of what makes it none."""
    under: Path = ()
    try:
        envelope, under = Envelope.model_validate(choice.plan), ("decision",)
        return envelope, find_kind("serve").decision.model_validate(envelope.decision)
    except ValidationError as error:
        raise planner_error(error, lambda path: ".".join(map(str, (plan_place(choice), *under, *path)))) from None


def roles_of(stage: str, serving: Decision) -> tuple[Role, ...]:
    """Roles of the serving plan of a stage, by names that say whose they are."""
    return tuple(role.model_copy(update={"name": role_name(stage, role.name)}) for role in serving.roles)


def role_name(stage: str, role: str) -> str:
    """How the plan calls a role of the serving plan of a stage."""
    return f"{stage}-{role}"
