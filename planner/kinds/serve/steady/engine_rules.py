"""What the rules of an engine's release leave of the space of serving plans."""

import itertools
from collections.abc import Mapping

from planner.engines.formats import runs_on, unloadable, weight_formats
from planner.engines.handover import CacheTraits, Side, Way, ways, why_apart
from planner.engines.release import Release
from planner.engines.settings import require_setting
from planner.errors import PlannerError
from planner.kinds.serve.options import RoleShapes, ServeOptions
from planner.kinds.serve.steady.points import PoolCosts
from planner.kinds.serve.steady.shapes import InstanceShape, ShapeSpace
from planner.models.architecture import Architecture, MoeFfn
from planner.plan.records import BY_NUMBER
from planner.problem.resolve import Resolved


def side_of(shape: InstanceShape) -> Side:
    """What a shape's cache is cut by."""
    return Side(shape.tp, shape.pp)


def handover_rule(function: str, shape: InstanceShape, arch: Architecture, release: Release) -> str | None:
    """The rule by which no cache goes from or to a prefill or decode role of `shape`; None where one can.

    Searched are prefill shapes that can hand over to decode in one stage, on one rank or on as many or twice as many
    as they have, and decode shapes that can take caches from as many ranks in one stage.
    """
    own = side_of(shape)
    pairs = {
        "prefill": [(own, Side(tp, 1)) for tp in (1, own.tp, 2 * own.tp)],
        "decode": [(Side(own.tp, 1), own)],
    }.get(function, [])
    rules = [why_apart(release, *pair, CacheTraits.of(arch)) for pair in pairs]
    return None if not rules or None in rules else next(rule.why for rule in rules if rule is not None)


def ways_of_models(
    release: Release,
    costs_of_pool: Mapping[tuple[str, int], PoolCosts],
    spaces: Mapping[tuple[str, int], ShapeSpace],
) -> dict[str, tuple[Way, ...]]:
    """By model, how the engine's connectors join the prefill shapes of its spaces with the decode shapes of them."""
    by_model: dict[str, tuple[Way, ...]] = {}
    for model in dict.fromkeys(model for model, _ in costs_of_pool):
        arch = next(pool_costs.costs.arch for (name, _), pool_costs in costs_of_pool.items() if name == model)
        shapes = [shape for (name, _), space in spaces.items() if name == model for shape in space.shapes]
        sides = {
            function: {side_of(s) for s in shapes if handover_rule(function, s, arch, release) is None}
            for function in ("prefill", "decode")
        }
        by_model[model] = ways(release, sides["prefill"], sides["decode"], CacheTraits.of(arch))
    return by_model


def require_loadable(release: Release, costs_of_pool: Mapping[tuple[str, int], PoolCosts], where: str) -> None:
    """Raises PlannerError where the engine does not run on a GPU of the pools, or not the weights of a model there."""
    for (model, _), pool_costs in costs_of_pool.items():
        gpu = pool_costs.pool.node.accelerator
        if not runs_on(release.engine, gpu):
            raise PlannerError(
                f"{release.title} does not run on {gpu.display_name}",
                where="engine.name",
                hint="plan vLLM or SGLang there, or leave that pool out",
            )
        for precision in sorted(weight_formats(pool_costs.costs.arch)):
            rule = unloadable(release, precision, gpu)
            if rule is not None:
                raise PlannerError(
                    f"{release.name} has no kernel for {precision} weights on {gpu.display_name} (compute capability"
                    f" {gpu.compute_capability}, wanted {rule.loads_from})",
                    where=f"{where}.{model}" if where else f"models.{model}",
                    hint="plan `weights: bf16` there, or leave that pool out",
                )


def require_experts(
    resolved: Resolved, options: ServeOptions, costs_of_pool: Mapping[tuple[str, int], PoolCosts]
) -> None:
    """Refuses experts placed by load, and data- and expert-parallel sizes other than 1, where no model has experts."""
    models = {model: pool_costs.costs.arch for (model, _), pool_costs in costs_of_pool.items()}
    if any(isinstance(layer.ffn, MoeFfn) for arch in models.values() for layer in arch.layers):
        return
    stated: dict[tuple[str, ...], ServeOptions | RoleShapes] = {
        (): options,
        **{("roles", name): shapes for name, shapes in options.roles.items()},
    }
    for path, axis in itertools.product(stated, ("dp", "ep")):
        values = getattr(stated[path], axis)
        if values is not None and 1 not in values:
            raise PlannerError(
                f"{', '.join(f'`{model}`' for model in models)} without experts: instances have {axis} 1",
                where=resolved.where(("options", *path, axis)),
                hint="leave it out: more replicas serve more requests, and `tp` splits dense layers",
            )
    if _places(options):
        raise PlannerError(
            f"{', '.join(f'`{model}`' for model in models)} without experts: none can be copied, or placed by load",
            where=resolved.where(("options", "redundant_experts")),
            hint="leave it out",
        )


def require_balancer(resolved: Resolved, options: ServeOptions) -> None:
    """Refuses experts placed by load where the release of the problem's engine is known to place none."""
    if _places(options):
        engine = resolved.problem.engine
        try:
            require_setting(engine.name, "redundant_experts", engine.version)
        except PlannerError as error:
            where = resolved.where(("options", "redundant_experts"))
            raise PlannerError(error.what, where=where, hint=error.hint) from None


def _places(options: ServeOptions) -> bool:
    return any(copies != BY_NUMBER for copies in options.searched_copies)
