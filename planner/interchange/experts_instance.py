"""Problem instances of expert placement in one `.npz` file, the exchange format of layout benchmarks, as problems.

`meta` (JSON) holds experts, ranks, nodes, node_of_rank, slots_per_rank (by rank; of static instances also [L, R], where
layers differ: slots of a layout are then as many as the widest layer has), speed_of_rank, groups, expert_bytes and
kind: `static` (load [L, E]), `drift` (load [W, L, E]), `realtime` (src [T, L, R, E] tokens by source rank, home_slots),
`affinity` (topk_ids [N, L, k]).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.arrays import Ints
from planner.errors import PlannerError
from planner.experts.instance import ExpertsInstance
from planner.experts.ranks import Ranks, make_ranks, require_loads
from planner.experts.readers import opened
from planner.hardware.unspecified import UNSPECIFIED
from planner.kinds.experts.setting import INSTANCES
from planner.problem.schema import SCHEMA

ARRAYS = {"static": "load", "drift": "load", "realtime": "src", "affinity": "topk_ids"}
AXES = {"static": "layer,expert", "drift": "window,layer,expert", "realtime": "batch,layer,rank,expert"}
POLICIES = {kind: policy for policy, kind in INSTANCES.items()}


def instance_problem(path: str | Path) -> dict[str, Any]:
    """The problem that an instance states, its loads named by the file; PlannerError where it is none."""
    return experts_problem(read_instance(path), Path(path).name)


def experts_problem(instance: ExpertsInstance, loads: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - of the kind
    """The problem of an instance whose arrays are those of the file `loads`; further options of the kind as given.

    The GPUs of an instance have no name, and its experts no model: the options state what is needed of them.
    """
    ranks, static = instance.ranks, instance.kind == "static"
    widest = instance.slots_LR.tolist() if instance.slots_LR is not None else ranks.slots_R.tolist()
    stated: dict[str, Any] = {
        "ep": ranks.num_ranks,
        "slots_per_rank": widest if instance.slots_LR is not None or len(set(widest)) > 1 else widest[0],
        "policy": POLICIES[instance.kind],
        "loads": loads,
    }
    if (ranks.speed_R != 1.0).any():
        stated["rank_speeds"] = ranks.speed_R.tolist()
    if instance.expert_bytes > 0:
        stated["expert_bytes"] = instance.expert_bytes
    if ranks.home_slots and instance.kind == "realtime":
        stated["home_slots"] = ranks.home_slots
    if instance.kind == "affinity":
        stated["num_experts"] = instance.num_experts
    pool = _pool(ranks)
    if "nodes" not in pool and ranks.num_nodes > 1:
        stated["node_of_rank"] = ranks.node_R.tolist()
    if instance.groups > 1 and (options.get("ahead") or (static and options.get("nodes_per_group"))):
        stated["groups"] = instance.groups
    return {
        "schema": SCHEMA,
        "kind": "experts",
        "name": instance.name[:200] or "instance",
        "cluster": {"pools": [pool]},
        "objective": {"minimize": "imbalance"},
        "options": {**stated, **{name: value for name, value in options.items() if value is not None}},
    }


def _pool(ranks: Ranks) -> dict[str, Any]:
    """Nodes of as many GPUs as ranks lie on, where these follow one another; else all GPUs together."""
    each = int(np.bincount(ranks.node_R)[0])
    if (ranks.node_R == np.arange(ranks.num_ranks) // each).all():
        return {"gpu": UNSPECIFIED, "nodes": ranks.num_nodes, "gpus_per_node": each}
    return {"gpu": UNSPECIFIED, "gpus": ranks.num_ranks}


def read_instance(path: str | Path) -> ExpertsInstance:
    """The instance in `path`; PlannerError for files that are none, and for loads and ranks that make no sense."""
    with opened(path, "instance", "an instance is an .npz file with `meta` and the loads") as content:
        arrays = {name: content[name] for name in content.files}
        meta = json.loads(str(arrays.pop("meta")))
    try:
        return _instance(meta, arrays)
    except PlannerError as error:
        raise PlannerError(error.what, where=f"{path}: {error.where}", hint=error.hint) from None


def _instance(meta: object, arrays: dict[str, npt.NDArray[Any]]) -> ExpertsInstance:
    if not isinstance(meta, dict):
        raise PlannerError("is no mapping", where="meta", hint="write every field of the format")
    kind = meta.get("kind")
    if not isinstance(kind, str) or kind not in ARRAYS:
        known = ", ".join(f"`{name}`" for name in ARRAYS)
        raise PlannerError(f"is of kind `{kind}`", where="meta.kind", hint=f"the kinds are {known}")
    wanted = ("experts", "ranks", "slots_per_rank")
    missing = [name for name in wanted if name not in meta] + [n for n in (ARRAYS[kind],) if n not in arrays]
    if missing:
        raise PlannerError(f"has no `{missing[0]}`", where="meta", hint="write every field of the format")
    slots, slots_LR = _slots(meta, kind)
    experts, num_ranks = _figure(meta, "experts"), _figure(meta, "ranks")
    try:
        ranks = make_ranks(
            num_ranks,
            slots,
            speeds=meta.get("speed_of_rank"),
            node_of_rank=meta.get("node_of_rank"),
            home_slots=_figure(meta, "home_slots", least=0, otherwise=0),
        )
    except (TypeError, ValueError) as problem:
        raise PlannerError(f"does not describe ranks: {problem}", where="meta", hint="give numbers by rank") from None
    array = arrays[ARRAYS[kind]]
    if array.dtype.kind not in "iuf":
        raise PlannerError(f"holds no numbers but `{array.dtype}`", where=ARRAYS[kind], hint="give numbers of tokens")
    if kind in AXES:
        require_loads(array.astype(np.float64).sum(axis=2) if kind == "realtime" else array, _axes(kind), where="load")
        _require_axis(array, -1, "experts", experts, ARRAYS[kind])
    if kind == "realtime":
        _require_axis(array, 2, "source ranks", num_ranks, ARRAYS[kind])
    return ExpertsInstance(
        name=str(meta.get("name", "instance")),
        kind=kind,
        array=array,
        ranks=ranks,
        num_experts=experts,
        groups=_figure(meta, "groups", otherwise=1),
        expert_bytes=_bytes_each(meta),
        slots_LR=slots_LR,
    )


def _figure(meta: dict[str, Any], name: str, *, least: int = 1, otherwise: int | None = None) -> int:
    """A whole number of `meta`, at least `least`."""
    value = meta.get(name, otherwise)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PlannerError(
            f"must be a whole number of at least {least}, found {value!r}",
            where=f"meta.{name}",
            hint=f"write a number for `{name}`",
        )
    return value


def _bytes_each(meta: dict[str, Any]) -> float:
    """Bytes of one expert, 0 where `meta` does not say."""
    value = meta.get("expert_bytes", 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise PlannerError(
            f"must be a number of bytes, found {value!r}",
            where="meta.expert_bytes",
            hint="write the bytes of one expert of one layer",
        )
    return float(value)


def _require_axis(array: npt.NDArray[Any], axis: int, name: str, wanted: int, where: str) -> None:
    if array.shape[axis] != wanted:
        raise PlannerError(f"has {array.shape[axis]} {name}, `meta` says {wanted}", where=where, hint="make both agree")


def _slots(meta: dict[str, Any], kind: str) -> tuple[list[int], Ints | None]:
    """(slots of every rank in its widest layer, those by layer where layers differ)."""
    given = np.asarray(meta["slots_per_rank"])
    if given.dtype.kind not in "iu" or given.ndim not in (0, 1, 2) or (given.ndim == 2 and kind != "static"):
        raise PlannerError(
            f"must be whole numbers by rank, or by layer and rank in static instances, found {given.tolist()!s:.60}",
            where="meta.slots_per_rank",
            hint="write for example [9, 9, 8]",
        )
    if given.ndim == 0:
        return [int(given)] * int(meta["ranks"]), None
    return (given.tolist(), None) if given.ndim == 1 else (given.max(axis=0).tolist(), given.astype(np.int64))


def _axes(kind: str) -> str:
    return "batch,layer,expert" if kind == "realtime" else AXES[kind]
