"""Expert layouts in force from the start of a serving plan: which role starts from which, and whether they agree.

A layout is a plan of its own (kind `experts`). It belongs to a role where both are about one model on as many ranks,
and where the role has memory left for the copies; anything else is refused with both numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.documents.units import format_si
from planner.emit.documents import plan_title
from planner.emit.experts import read_rows
from planner.emit.registry import LayoutPlan
from planner.emit.serving.instances import EngineInstance
from planner.errors import PlannerError, did_you_mean
from planner.experts.forms import LaunchRows, files_of, find_form
from planner.experts.step_time import expert_bytes
from planner.problem.recorded import recorded_model, recorded_problem
from planner.problem.schema import Problem

WHERE = "--experts"


@dataclass(frozen=True, slots=True)
class PlacedExperts:
    """The layout that a role starts from, and the file that holds it."""

    title: str  # of its plan
    rows: LaunchRows
    file: str
    text: str

    @property
    def says(self) -> str:
        """The layout in one line, for whoever reads the script."""
        slots, experts = self.rows.expert_LP.shape[1], self.rows.layers.num_experts
        each = f"{slots // self.rows.ranks} slots on each of {self.rows.ranks} ranks"
        return f"{self.title}: {experts} experts in {each}, from {self.file}"


def place_experts(
    form: str, problem: Problem, instances: Sequence[EngineInstance], layouts: Sequence[LayoutPlan]
) -> dict[str, PlacedExperts]:
    """By role that spreads experts, the layout that it starts from in files of the engine `form`.

    Raises PlannerError for a role that none of `layouts` fits, and for a layout that fits no role.
    """
    if not layouts:
        return {}
    roles = {instance.role.name: instance for instance in instances if instance.role.parallelism.ep > 1}
    if not roles:
        raise PlannerError(
            "no role of the plan spreads experts over ranks", where=WHERE, hint="emit it without layouts"
        )
    for layout in layouts:
        if layout.role is not None and layout.role not in roles:
            hint = did_you_mean(layout.role, list(roles), otherwise=f"experts are spread by {', '.join(roles)}")
            raise PlannerError(f"no role `{layout.role}` spreads experts", where=WHERE, hint=hint)
    rows = [_rows(layout) for layout in layouts]
    chosen = {name: _chosen(instance, problem, layouts, rows) for name, instance in roles.items()}
    unused = [layouts[index].source for index in range(len(layouts)) if index not in chosen.values()]
    if unused:
        raise PlannerError("no role starts from this layout", where=f"{WHERE} {unused[0]}", hint="leave it out")
    files = _files(form, rows)
    placed = {}
    for name, index in chosen.items():
        _require_as_planned(roles[name], rows[index])
        _require_room(roles[name], problem, rows[index])
        placed[name] = PlacedExperts(plan_title(layouts[index].envelope), rows[index], *files[index])
    return placed


def _rows(layout: LayoutPlan) -> LaunchRows:
    if layout.envelope.kind != "experts":
        raise PlannerError(
            f"is a plan of kind `{layout.envelope.kind}`, not of expert layouts",
            where=f"{WHERE} {layout.source}",
            hint="make one with `planner solve` on a problem of `kind: experts`",
        )
    return read_rows(layout.envelope, layout.decision)


def _chosen(
    instance: EngineInstance, problem: Problem, layouts: Sequence[LayoutPlan], rows: Sequence[LaunchRows]
) -> int:
    """The index of the layout that is meant for a role: named for it, or the only one of its model and ranks."""
    role = instance.role
    named = [index for index, layout in enumerate(layouts) if layout.role == role.name]
    meant = named or [index for index, layout in enumerate(layouts) if layout.role is None]
    model = _model_name(problem, role.model)
    others = [
        _model_name(recorded_problem(layouts[i].envelope.inputs), layouts[i].decision.roles[0].model) for i in meant
    ]
    of_model = [index for index, other in zip(meant, others, strict=True) if other == model]
    if not of_model:
        told = f"the layout is of `{others[0]}`" if others else "there is no layout for it"
        raise instance.refuse(f"it serves `{model}`, {told}", "give a layout of the role's own model")
    fitting = [index for index in of_model if rows[index].ranks == role.parallelism.ep]
    if not fitting:
        raise instance.refuse(
            f"its experts lie on ep {role.parallelism.ep} ranks, those of the layout on {rows[of_model[0]].ranks}",
            f"plan the layout with `ep: {role.parallelism.ep}`, or the role with ep {rows[of_model[0]].ranks}",
        )
    if len(fitting) > 1:
        raise instance.refuse(
            f"{len(fitting)} layouts fit it", f"say which: `{WHERE} {role.name}={layouts[fitting[0]].source}`"
        )
    if role.parallelism.moe_tp > 1 or role.parallelism.pp > 1:
        raise instance.refuse(
            f"layouts are of whole experts on all ranks, it has moe_tp {role.parallelism.moe_tp} and "
            f"pp {role.parallelism.pp}",
            "plan with moe_tp 1 and pp 1",
        )
    return fitting[0]


def _model_name(problem: Problem | None, key: str | None) -> str:
    """What tells models apart: their name in the catalog, else as the problem gives it."""
    if problem is None:
        return str(key)
    key = next(iter(problem.models)) if key is None and len(problem.models) == 1 else key
    model = recorded_model(problem, key)
    if model is not None:
        return model.name
    spec = problem.models.get(str(key))
    return str(spec.name or spec.config) if spec is not None else str(key)


def _require_as_planned(instance: EngineInstance, rows: LaunchRows) -> None:
    """Refuses a layout with other copies than the role was planned with, where it was planned with any."""
    planned = instance.role.limits.get("redundant_experts")
    if planned is not None and planned != rows.num_redundant:
        raise instance.refuse(
            f"the layout has {rows.num_redundant} redundant experts, the plan {planned}",
            "plan the layout with as many slots, or the role with as many copies",
        )


def _require_room(instance: EngineInstance, problem: Problem, rows: LaunchRows) -> None:
    """Refuses copies beyond those of the plan that the role has no memory for."""
    role, model = instance.role, recorded_model(problem, instance.role.model or next(iter(problem.models)))
    if role.memory is None or model is None:
        return
    held = rows.layers.num_experts + int(role.limits.get("redundant_experts", 0))
    slots, planned = rows.expert_LP.shape[1] // rows.ranks, math.ceil(held / rows.ranks)
    more = (slots - planned) * len(rows.expert_LP) * expert_bytes(model)
    left = role.memory.capacity_bytes - role.memory.used_bytes
    if more > left:
        raise instance.refuse(
            f"the layout has {slots} slots a rank, the plan {planned}: {format_si(more, 'B')} more, where "
            f"{format_si(max(left, 0.0), 'B')} are left",
            f"plan the layout with `slots_per_rank: {planned}`, or the role with a smaller batch",
        )


def _files(form: str, rows: Sequence[LaunchRows]) -> Mapping[int, tuple[str, str]]:
    """By layout, the name and the text of the file that an engine starts from; numbered where there are several."""
    name = find_form(form).layout
    stem, dot, suffix = name.partition(".")
    names = [name if len(rows) == 1 else f"{stem}-{index}{dot}{suffix}" for index in range(len(rows))]
    return {index: (names[index], files_of(form, part)[name]) for index, part in enumerate(rows)}
