"""Problem instances of expert placement in one `.npz` file, and their solutions: the benchmarks' exchange format.

`meta` (JSON) holds experts, ranks, nodes, node_of_rank, slots_per_rank (by rank; of static instances also [L, R], where
layers differ: slots of a layout are then as many as the widest layer has), speed_of_rank, groups, expert_bytes and
kind: `static` (load [L, E]), `drift` (load [W, L, E]), `realtime` (src [T, L, R, E] tokens by source rank, home_slots),
`affinity` (topk_ids [N, L, k]). A solution holds phy2log ([..., P], slots rank by rank, -1 empty) and, where shares are
free, quota of the same shape.
"""

import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from planner.arrays import Bools, Floats, Ints
from planner.documents.files import write_bytes_atomic
from planner.errors import PlannerError
from planner.experts.ahead import MOVE_SLACK, plan_ahead
from planner.experts.confine import confine
from planner.experts.layout import Layout, Shares, new_copies, plan_layout
from planner.experts.ranks import Ranks, make_ranks, require_loads
from planner.experts.steps import StepPlanner
from planner.experts.tokens import plan_tokens
from planner.experts.traffic import leaving_share
from planner.solvers.layouts.affinity import PRICE
from planner.solvers.layouts.exports import TOLERANCE as STEP_TOLERANCE
from planner.solvers.layouts.spread import TOLERANCE

ARRAYS = {"static": "load", "drift": "load", "realtime": "src", "affinity": "topk_ids"}
AXES = {"static": "layer,expert", "drift": "window,layer,expert", "realtime": "batch,layer,rank,expert"}
DRIFT_SLACK = 0.004
"""Above the bound, at which a window's layout is left: between 0.2 % and 0.6 %, moves fall by a quarter."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpertsInstance:
    """One instance as read; `array` has the axes of its kind."""

    name: str
    kind: str
    array: npt.NDArray[Any]
    ranks: Ranks
    num_experts: int
    groups: int
    expert_bytes: float
    slots_LR: Ints | None = None  # of layers that differ in slots


@dataclass(frozen=True, slots=True, eq=False)
class ExpertsPlacement:
    """A solution: experts by slot, shares where they are free, and its figures by layer (and window or batch)."""

    expert_P: Ints  # [..., P]
    quota_P: Floats | None
    imbalance: Floats
    bound: Floats
    status: str
    facts: dict[str, float]  # further figures, SI units in the names


@dataclass(frozen=True, slots=True, eq=False)
class SolveOptions:
    """How to solve: equal or free shares, for the window at hand or the one after, how near the bound, how many bytes
    a window may move, the price of imbalance where traffic between nodes counts, the nodes that each routing group
    is confined to, and the layout that runs now; None where the kind decides."""

    shares: Shares = "equal"
    ahead: bool = False
    tolerance: float | None = None
    most_moved_bytes: float | None = None
    imbalance_price: float | None = None
    nodes_per_group: int | None = None
    resident_LP: Ints | None = None
    seed: int = 0


def read_instance(path: str | Path) -> ExpertsInstance:
    """The instance in `path`; PlannerError for files that are none, and for loads and ranks that make no sense."""
    with _opened(path, "instance", "an instance is an .npz file with `meta` and the loads") as content:
        arrays = {name: content[name] for name in content.files}
        meta = json.loads(str(arrays.pop("meta")))
    try:
        return _instance(meta, arrays)
    except PlannerError as error:
        raise PlannerError(error.what, where=f"{path}: {error.where}", hint=error.hint) from None


@contextmanager
def _opened(path: str | Path, noun: str, hint: str) -> Iterator[Any]:
    """The content of an .npz file; PlannerError where there is none, or its content is not read as that of a `noun`."""
    where = str(path)
    try:
        with np.load(path, allow_pickle=False) as content:
            yield content
    except FileNotFoundError:
        raise PlannerError("there is no such file", where=where, hint=f"name the file of the {noun}") from None
    except (OSError, ValueError, KeyError, EOFError, RecursionError, BadZipFile) as problem:
        raise PlannerError(f"is no {noun}: {problem}", where=where, hint=hint) from None


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


def has_meta(path: str | Path) -> bool:
    """Whether a file is an instance: an .npz that holds `meta`."""
    if Path(path).suffix != ".npz" or not Path(path).is_file():
        return False
    try:
        with np.load(path, allow_pickle=False) as content:
            return "meta" in content.files
    except (OSError, ValueError, EOFError, BadZipFile):
        return False


def read_resident(path: str | Path) -> Ints:
    """[L, P] the layout in a placement file; of windows, the last."""
    with _opened(path, "placement", "it holds `phy2log`") as content:
        layout = np.asarray(content["phy2log"])
    if layout.ndim not in (2, 3) or layout.size == 0 or layout.dtype.kind not in "iu":
        raise PlannerError(
            f"has a layout of shape {layout.shape} and type {layout.dtype}",
            where=str(path),
            hint="give whole numbers as [layer, slot]",
        )
    least = int(layout.min())
    if least < -1:
        raise PlannerError(
            f"names expert {least}", where=str(path), hint="experts count from 0, and -1 is an empty slot"
        )
    resident: Ints = (layout[-1] if layout.ndim == 3 else layout).astype(np.int64)
    return resident


def write_placement(placement: ExpertsPlacement, path: str | Path) -> None:
    """`phy2log` (int32) and, where shares are free, `quota` as compressed `.npz`, whole or not at all."""
    arrays: dict[str, npt.NDArray[Any]] = {"phy2log": placement.expert_P.astype(np.int32)}
    if placement.quota_P is not None:
        arrays["quota"] = placement.quota_P
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # the stub takes keywords for the flag
    write_bytes_atomic(path, buffer.getvalue())


def solve_instance(instance: ExpertsInstance, options: SolveOptions | None = None) -> ExpertsPlacement:
    """The layouts of every layer (and window, and micro-batch) of an instance."""
    options = options if options is not None else SolveOptions()
    _require_used(instance.kind, options)
    solvers = {"static": _static, "drift": _drift, "realtime": _realtime, "affinity": _affinity}
    return solvers[instance.kind](instance, options)


def _require_used(kind: str, options: SolveOptions) -> None:
    """Refuses options that instances of this kind would pass over."""
    windows = kind in ("static", "drift")
    near = options.ahead or options.resident_LP is not None or options.most_moved_bytes is not None
    unused = {
        "ahead": options.ahead and not windows,
        "resident": options.resident_LP is not None and not windows,
        "most moved": options.most_moved_bytes is not None and not windows,
        "shares": options.shares == "free" and kind == "affinity",
        "tolerance": options.tolerance is not None and kind == "affinity",
        "imbalance price": options.imbalance_price is not None and kind != "affinity",
        "nodes per group": options.nodes_per_group is not None and (kind != "static" or near),
    }
    for name, wrong in unused.items():
        if wrong:
            what = f"has no effect on instances of kind `{kind}`"
            if name == "nodes per group":
                what = "groups are confined to nodes in layouts of one window, made from nothing"
            raise PlannerError(what, where=name, hint="leave it out")
    if kind == "static" and options.most_moved_bytes is not None and options.resident_LP is None:
        raise PlannerError(
            "moves are counted from a resident layout",
            where="most moved",
            hint="name the layout that runs now with `--resident`",
        )


def _or(given: float | None, otherwise: float) -> float:
    return otherwise if given is None else given


def _static(instance: ExpertsInstance, options: SolveOptions) -> ExpertsPlacement:
    if options.ahead or options.resident_LP is not None or options.most_moved_bytes is not None:
        layout = _window(instance, options, np.asarray(instance.array, np.float64)[None], options.resident_LP)
    else:
        tolerance = _or(options.tolerance, TOLERANCE)
        layout = plan_layout(
            instance.array,
            instance.ranks,
            shares=options.shares,
            tolerance=tolerance,
            seed=options.seed,
            slots_LR=instance.slots_LR,
            allowed_ER=_confined(instance, options, instance.array),
        )
    return ExpertsPlacement(
        layout.expert_LP,
        layout.quota_LP,
        layout.imbalance_L,
        layout.bound_L,
        layout.status.value,
        {
            **_moved_facts(instance, layout),
            **_leaving(instance, [instance.array], [layout.expert_LP], [layout.quota_LP]),
        },
    )


def _drift(instance: ExpertsInstance, options: SolveOptions) -> ExpertsPlacement:
    """Window by window, each from the layout before it; the first from what engines start with."""
    windows = np.asarray(instance.array, np.float64)
    layouts: list[Layout] = []
    for window in range(len(windows)):
        before = layouts[-1].expert_LP if layouts else options.resident_LP
        layouts.append(_window(instance, options, windows[: window + 1], before))
    moved = sum(layout.moved_experts or 0 for layout in layouts[1:])
    expert_WLP = np.array([layout.expert_LP for layout in layouts])
    quotas = [layout.quota_LP for layout in layouts]
    return ExpertsPlacement(
        expert_WLP,
        np.array(quotas) if all(quota_LP is not None for quota_LP in quotas) else None,
        np.array([layout.imbalance_L for layout in layouts]),
        np.array([layout.bound_L for layout in layouts]),
        "optimal" if all(layout.status.value == "optimal" for layout in layouts) else "feasible",
        {"moved_bytes_after_first": moved * instance.expert_bytes, **_leaving(instance, windows, expert_WLP, quotas)},
    )


def _leaving(
    instance: ExpertsInstance,
    loads: Iterable[npt.NDArray[Any]],
    layouts: Iterable[Ints],
    quotas: Iterable[Floats | None],
    sources: Iterable[npt.NDArray[Any] | None] = repeat(None),
) -> dict[str, float]:
    """Share of tokens that leave their node, on several nodes; every rank sends as many where no source is known."""
    if instance.ranks.num_nodes < 2:
        return {}
    shares = [
        leaving_share(np.asarray(load_LE, np.float64), instance.ranks, expert_LP, quota_LP, source)
        for load_LE, expert_LP, quota_LP, source in zip(loads, layouts, quotas, sources, strict=False)
    ]
    return {"leaving_share": float(np.mean(shares))}


def _confined(instance: ExpertsInstance, options: SolveOptions, load_LE: npt.NDArray[Any]) -> Bools | None:
    """[L, E, R] where experts may be when groups are confined to nodes; None when they are not."""
    if options.nodes_per_group is None:
        return None
    rows = [
        confine(np.asarray(load_E, np.float64), instance.ranks, instance.groups, options.nodes_per_group)
        for load_E in load_LE
    ]
    return np.array(rows)


def _moved_facts(instance: ExpertsInstance, layout: Layout) -> dict[str, float]:
    return {} if layout.moved_experts is None else {"moved_bytes": layout.moved_experts * instance.expert_bytes}


def _window(instance: ExpertsInstance, options: SolveOptions, seen: Floats, resident: Ints | None) -> Layout:
    if options.ahead:
        slack = _or(options.tolerance, MOVE_SLACK)
        return plan_ahead(seen, instance.ranks, groups=instance.groups, resident_LP=resident, move_slack=slack)
    if resident is None:
        return plan_layout(seen[-1], instance.ranks, shares=options.shares, seed=options.seed)
    moves = None
    if options.most_moved_bytes is not None:
        if instance.expert_bytes <= 0:
            raise PlannerError(
                "nothing says how many bytes an expert has",
                where="most moved",
                hint="name the model with `--model`, or add `expert_bytes` to an instance",
            )
        moves = int(options.most_moved_bytes // instance.expert_bytes)
    return plan_layout(
        seen[-1],
        instance.ranks,
        shares=options.shares,
        resident_LP=resident,
        tolerance=_or(options.tolerance, DRIFT_SLACK),
        most_moves=moves,
        seed=options.seed,
    )


def _realtime(instance: ExpertsInstance, options: SolveOptions) -> ExpertsPlacement:
    """Experts at home, copies in the free slots, for every micro-batch and layer."""
    load_TLE = instance.array.sum(axis=2, dtype=np.float64)
    batches, layers = load_TLE.shape[:2]
    planner = StepPlanner(instance.ranks, instance.num_experts, tolerance=_or(options.tolerance, STEP_TOLERANCE))
    rows = planner.plan_rows(load_TLE.reshape(batches * layers, instance.num_experts))
    shape = (batches, layers, instance.ranks.num_slots)
    imbalance = rows.imbalance_N.reshape(batches, layers)
    expert_TLP, quota_TLP = rows.expert_NP.reshape(shape), rows.quota_NP.reshape(shape)
    moved = new_copies(instance.ranks, expert_TLP)
    return ExpertsPlacement(
        expert_TLP,
        quota_TLP,
        imbalance,
        np.ones_like(imbalance),
        "optimal" if bool((imbalance <= 1.0 + 1e-9).all()) else "feasible",
        {
            "moved_bytes_after_first": float(moved.sum()) * instance.expert_bytes,
            **_leaving(instance, load_TLE, expert_TLP, quota_TLP, instance.array),
        },
    )


def _affinity(instance: ExpertsInstance, options: SolveOptions) -> ExpertsPlacement:
    """Planned on the first half of the tokens; figures of that half, and those to expect of as many fresh tokens."""
    tokens = np.asarray(instance.array)
    half = tokens[: max(1, len(tokens) // 2)]
    layout = plan_tokens(
        half,
        instance.ranks,
        instance.num_experts,
        imbalance_price=_or(options.imbalance_price, PRICE),
        seed=options.seed,
    )
    return ExpertsPlacement(
        layout.expert_LP,
        None,
        layout.imbalance_L,
        np.ones(len(layout.imbalance_L)),
        "feasible",
        {
            "nodes_per_token": float(layout.nodes_per_token_L.mean()),
            "fresh_imbalance": float(layout.fresh_imbalance_L.mean()),
        },
    )
