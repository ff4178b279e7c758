"""Why no instance can have shapes that somebody asks for: the rules of model, node and engine that forbid them all."""

from collections.abc import Iterator
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.kinds.serve.options import RoleShapes, ServeOptions
from planner.kinds.serve.steady.engine_rules import handover_rule
from planner.kinds.serve.steady.search import ServeSetting, prepare
from planner.kinds.serve.steady.shapes import ShapeSpace, shape_space
from planner.models.architecture import Architecture, MoeFfn
from planner.problem.resolve import Resolved

_AXES = ("tp", "pp", "dp", "ep")
_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "colocated": ("colocated",),
    "disaggregated": ("prefill", "decode"),
    "attention-ffn": ("prefill",),
}


@dataclass(frozen=True, slots=True)
class _Held:
    """What a function is held to beside the axes of the whole problem."""

    function: str
    values: RoleShapes
    options: ServeOptions

    def space_options(self) -> ServeOptions:
        own = {axis: values for axis in _AXES if (values := getattr(self.values, axis)) is not None}
        return self.options.model_copy(update=own)


def rules_against(resolved: Resolved) -> tuple[str, ...]:
    """The rules that forbid every shape of every instance, or of a function that no plan is without; else none."""
    try:
        setting = prepare(resolved)
    except PlannerError as error:
        return (error.what,)
    if not any(space.shapes for space in setting.spaces.values()):
        arch = {key: pool_costs.costs.arch for key, pool_costs in setting.costs_of_pool.items()}
        return tuple(
            dict.fromkeys(rule for key, space in setting.spaces.items() for rule in _of_space(space, arch[key]))
        )
    held = {function: RoleShapes() for function in _needed(setting.options)} | dict(setting.options.roles)
    for function, values in held.items():
        rules = tuple(dict.fromkeys(_of_role(setting, _Held(function, values, setting.options))))
        if rules:
            return rules
    return ()


def _needed(options: ServeOptions) -> tuple[str, ...]:
    """Functions without which no plan is: those of the only mode, where there is one."""
    return _FUNCTIONS[options.modes[0]] if len(set(options.modes)) == 1 else ()


def _of_role(setting: ServeSetting, held: _Held) -> Iterator[str]:
    """The rules that forbid all shapes of a function; none where one of them can run."""
    rules: list[str] = []
    for key, pool_costs in setting.costs_of_pool.items():
        arch = pool_costs.costs.arch
        space = shape_space(arch, pool_costs.pool, setting.release, held.space_options())
        for shape in space.shapes:
            rule = handover_rule(held.function, shape, arch, setting.release) or _outside(
                setting.spaces[key], shape.degrees
            )
            if rule is None:
                return
            rules.append(rule)
        rules += _of_space(space, arch)
    yield from rules


def _of_space(space: ShapeSpace, arch: Architecture) -> Iterator[str]:
    """The rules of its shapes; where it has none at all, what keeps experts from being spread."""
    yield from space.pruned
    if space.shapes or space.forbidden:
        return
    experts = [layer.ffn.num_experts for layer in arch.layers if isinstance(layer.ffn, MoeFfn)]
    whole = any(count % ep == 0 for count in experts for ep in space.axes["ep"])
    yield "no tp x dp of these is a multiple of ep" if whole else "the experts do not divide"


def _outside(space: ShapeSpace, degrees: tuple[int, ...]) -> str | None:
    if any(shape.degrees == degrees for shape in space.shapes):
        return None
    listed = "; ".join(f"{axis} {', '.join(map(str, values))}" for axis, values in space.axes.items())
    return f"the values of all functions leave it out ({listed})"
