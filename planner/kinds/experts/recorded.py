"""What an expert layout is made for, read from the file that the problem names: loads, or the choices of tokens.

Shape suffixes: W window or micro-batch, T micro-batch, L layer, S source rank, E expert, N token, K choice.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.experts.instance import row_loads
from planner.experts.model_layers import ModelLayers, layers_of
from planner.experts.ranks import require_loads
from planner.experts.readers import Loads, opened, read_loads
from planner.kinds.experts.decision import ExpertsOptions
from planner.models.architecture import Architecture
from planner.schema.base import Where

ARRAYS = {"micro_batches": "src", "affinity": "topk_ids"}
"""Arrays that policies of finer records read, where the problem names none."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """Loads [W, L, E], and what they were counted from: tokens by source rank [W, L, S, E], or choices [N, L, K]."""

    loads: Loads
    counted: npt.NDArray[Any] | None = None


def read_recorded(options: ExpertsOptions, model: Architecture | None, where: Where) -> Recorded:
    """What `loads` holds; raises PlannerError for a file that does not fit the policy, the ranks or the model."""
    assert options.loads is not None
    place = where(("options", "loads"))
    try:
        layers = None if model is None else layers_of(model)
        if options.policy in ARRAYS:
            return _finer(options, options.loads, layers)
    except PlannerError as error:
        at = where(("models",)) if options.policy not in ARRAYS else f"{place}: {error.where}".removesuffix(": ")
        raise PlannerError(error.what, where=at, hint=error.hint) from None
    try:
        return Recorded(read_loads(options.loads, array=options.array, model=layers))
    except PlannerError as error:
        raise PlannerError(error.what, where=f"{place}: {error.where}".removesuffix(": "), hint=error.hint) from None


def _finer(options: ExpertsOptions, path: str, model: ModelLayers | None) -> Recorded:
    name = options.array or ARRAYS[options.policy]
    with opened(path, "record", f"an .npz that holds `{name}`") as content:
        array = content[name]
    if array.dtype.kind not in "iuf" or array.size == 0:
        raise PlannerError(f"holds no numbers but `{array.dtype}`", where=name, hint="give numbers of tokens")
    load_WLE = _chosen(options, array, name) if options.policy == "affinity" else _summed(options, array, name)
    layers, experts = load_WLE.shape[1:]
    if model is not None and experts != model.num_experts:
        what = f"is of {experts} experts, `{model.name}` has {model.num_experts}"
        raise PlannerError(what, where=name, hint="name the model whose experts these are")
    ids = tuple(range(layers)) if model is None else model.ids_of(layers)
    return Recorded(Loads(load_WLE, ids), array)


def _summed(options: ExpertsOptions, array: npt.NDArray[Any], name: str) -> Floats:
    """[T, L, E] tokens of every micro-batch, all source ranks together."""
    if array.ndim != 4 or array.shape[2] != options.ep:
        what = f"has the shape {array.shape}, [micro-batch, layer, source rank, expert] of {options.ep} ranks is wanted"
        raise PlannerError(what, where=name, hint="record tokens by the rank that they come from")
    load_TLE: Floats = array.sum(axis=2, dtype=np.float64)
    require_loads(load_TLE, "batch,layer,expert", where=name)
    return load_TLE


def _chosen(options: ExpertsOptions, array: npt.NDArray[Any], name: str) -> Floats:
    """[1, L, E] how often the tokens that are planned on chose each expert."""
    if array.ndim != 3 or array.dtype.kind not in "iu":
        what = f"must hold whole numbers with the axes [token, layer, choice], found {array.dtype} {array.shape}"
        raise PlannerError(what, where=name, hint="give the experts that each token chose in each layer")
    experts = options.num_experts or int(array.max()) + 1
    if int(array.min()) < 0 or int(array.max()) >= experts:
        wrong = int(array.min()) if int(array.min()) < 0 else int(array.max())
        raise PlannerError(f"names expert {wrong} of {experts}", where=name, hint="experts count from 0")
    return row_loads("affinity", array, experts)[None]
