"""What keeps a model from every instance, whatever the limits: the rules that forbid its shapes, and the options."""

from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np

from planner.costs.operators.work import Shards
from planner.costs.serving.memory import weight_bytes
from planner.documents.units import format_si
from planner.errors import Conflict
from planner.kinds.serve.options import ServeOptions
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.search import ServeSetting, shape_spaces

NARROWING = ("tp", "pp", "dp", "ep", "max_gpus_per_instance", "roles", "without", "modes")
"""Options that leave shapes out."""


def holds_every_model(setting: ServeSetting, candidates: Collection[Candidate]) -> bool:
    """Whether every model that is asked for has an instance."""
    return {workload.model for workload in setting.resolved.workloads} <= {each.model for each in candidates}


def nothing_runs(setting: ServeSetting, listed: Callable[[ServeSetting], Collection[Candidate]]) -> Conflict:
    """No allowed shape holds a model, on however many GPUs; and the options without which one does on those at hand.

    `setting` has no limit but these GPUs; `listed` are the candidates of a setting.
    """
    models = ", ".join(sorted({architecture.name for architecture in setting.resolved.models.values()}))
    pools = ", ".join(pool.node.accelerator.display_name for pool in setting.resolved.pools)
    least = min((_weights_beside_room(setting, key) for key in setting.spaces), default=(0.0, 0.0))
    heavy = f"weights of {format_si(least[0], 'B')} a GPU, {format_si(least[1], 'B')} may be used" if least[0] else ""
    forbidding = [space.pruned for space in setting.spaces.values() if not space.shapes]
    reasons = list(dict.fromkeys([*([heavy] if heavy else ()), *(rule for rules in forbidding for rule in rules)]))
    told = f": {'; '.join(reasons)}" if reasons else ""
    names = _excluding(setting, listed)
    allowed = f" that {' and '.join(f'`{name}`' for name in names)} of `options` allow{'s' * (len(names) == 1)}"
    limit = f"{models} fits no {'' if names else 'allowed '}shape{allowed if names else ''} on {pools}{told}"
    return {"limit": limit, "nearest": f"without {' and '.join(f'`{name}`' for name in names)}" if names else ""}


def _excluding(setting: ServeSetting, listed: Callable[[ServeSetting], Collection[Candidate]]) -> tuple[str, ...]:
    """The first option without which every model has an instance, or all that are given; none where these do not do."""
    given = tuple(name for name in NARROWING if name in setting.options.model_fields_set)
    for names in (*((name,) for name in given), given):
        wider = _without(setting, names)
        if names and holds_every_model(wider, listed(wider)):
            return names
    return ()


def _without(setting: ServeSetting, names: Collection[str]) -> ServeSetting:
    """The setting with these options as they are when nobody gives them."""
    usual = {name: ServeOptions.model_fields[name].get_default(call_default_factory=True) for name in names}
    options = setting.options.model_copy(update=usual)
    spaces = shape_spaces(setting.costs_of_pool, setting.release, options)
    return replace(setting, options=options, spaces=spaces, priced={})


def _weights_beside_room(setting: ServeSetting, key: tuple[str, int]) -> tuple[float, float]:
    """Weights of a device under the shape that has fewest of them, and what plans may use of it; 0 where they fit."""
    costs, shapes = setting.costs_of_pool[key], setting.spaces[key].shapes
    if not shapes:
        return 0.0, costs.room_bytes
    columns = np.array([shape.all_degrees for shape in shapes], np.float64).T
    least = float(weight_bytes(costs.costs.arch, Shards.of(*columns)).min())
    return (least if least > costs.room_bytes else 0.0), costs.room_bytes
