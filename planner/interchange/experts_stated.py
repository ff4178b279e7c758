"""Problems of kind `experts` as what verbs on recorded loads ask about: loads, ranks, model and GPUs."""

from collections.abc import Mapping

from planner.errors import PlannerError
from planner.experts.instance import ExpertsInstance
from planner.interchange.formats import states_problem
from planner.kinds.experts.setting import INSTANCES, ExpertsSetting, read_setting
from planner.load.problems import load_problem


def setting_of(path: str, flags: Mapping[str, object]) -> ExpertsSetting | None:
    """A problem of kind `experts` with its loads, None for files of loads; PlannerError for flags that it states."""
    if not states_problem(path):
        return None
    refuse_stated("a problem", flags)
    resolved = load_problem(path)
    if resolved.problem.kind != "experts":
        raise PlannerError(
            f"is a problem of kind `{resolved.problem.kind}`", where=path, hint="name one of kind `experts`, or loads"
        )
    return read_setting(resolved)


def refuse_stated(what: str, flags: Mapping[str, object]) -> None:
    """Raises PlannerError for the first flag that is given though the file states it."""
    extra = [flag for flag, value in flags.items() if value is not None]
    if extra:
        raise PlannerError(f"{what} says so itself", where=extra[0], hint=f"leave {extra[0]} out")


def instance_of_problem(setting: ExpertsSetting) -> ExpertsInstance:
    """What the problem lays out; its windows where copies are planned in steps of their own."""
    if setting.options.policy in INSTANCES:
        return setting.instance
    load_WLE = setting.loads.load_WLE
    return ExpertsInstance(
        name=setting.resolved.problem.name,
        kind="drift" if len(load_WLE) > 1 else "static",
        array=load_WLE if len(load_WLE) > 1 else load_WLE[0],
        ranks=setting.ranks,
        num_experts=load_WLE.shape[2],
        groups=setting.options.groups,
        expert_bytes=setting.expert_bytes,
    )
