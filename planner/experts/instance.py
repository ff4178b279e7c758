"""Problem instances of expert placement as arrays, and their solutions: every kind of loads that layouts are made for.

Kinds: `static` (loads [L, E]), `drift` ([W, L, E], a layout for each window), `realtime` ([T, L, S, E] tokens by source
rank, a layout for each micro-batch) and `affinity` ([N, L, K] experts that tokens chose). Shape suffixes: W window, T
micro-batch, L layer, S source rank, E expert, R rank, P slot, N row: layers of all windows or micro-batches in turn.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError
from planner.experts.ahead import MOVE_SLACK, plan_ahead
from planner.experts.confine import confine
from planner.experts.layout import Layout, Shares, new_copies, plan_layout
from planner.experts.ranks import Ranks
from planner.experts.steps import StepPlanner
from planner.experts.tokens import TokenLayout, judge_tokens, plan_tokens
from planner.experts.traffic import leaving_share
from planner.solvers.layouts.affinity import PRICE
from planner.solvers.layouts.exports import TOLERANCE as STEP_TOLERANCE
from planner.solvers.layouts.spread import TOLERANCE
from planner.solvers.result import Status

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


def solve_instance(instance: ExpertsInstance, options: SolveOptions | None = None) -> ExpertsPlacement:
    """The layouts of every layer (and window, and micro-batch) of an instance, with its figures."""
    return placement_of(instance, lay_out(instance, options if options is not None else SolveOptions()))


def lay_out(instance: ExpertsInstance, options: SolveOptions) -> Layout:
    """[N, P] the layouts of every layer (and window, and micro-batch); moves are counted where a layout runs before."""
    _require_used(instance.kind, options)
    solvers = {"static": _static, "drift": _drift, "realtime": _realtime, "affinity": _affinity}
    return solvers[instance.kind](instance, options)


def row_loads(kind: str, array: npt.NDArray[Any], num_experts: int) -> Floats:
    """[N, E] the tokens that each row of a layout is made for; of choices, those of the half that is planned on."""
    if kind == "affinity":
        rows = [np.bincount(layer.ravel(), minlength=num_experts) for layer in planned_half(array).transpose(1, 0, 2)]
        return np.array(rows, np.float64)
    load = array.sum(axis=2, dtype=np.float64) if kind == "realtime" else np.asarray(array, np.float64)
    return load.reshape(-1, num_experts)


def planned_half(tokens_NLK: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The first half of the tokens: the others are for whoever scores."""
    return np.asarray(tokens_NLK)[: max(1, len(tokens_NLK) // 2)]


def placement_of(instance: ExpertsInstance, layout: Layout) -> ExpertsPlacement:
    """A layout in the axes of its instance, with what it moves, sends between nodes and leaves to expect."""
    windows = instance.array.shape[:1] if instance.kind in ("drift", "realtime") else ()
    expert_P = layout.expert_LP.reshape(*windows, -1, instance.ranks.num_slots)
    quota_P = None if layout.quota_LP is None else layout.quota_LP.reshape(expert_P.shape)
    return ExpertsPlacement(
        expert_P,
        quota_P,
        layout.imbalance_L.reshape(expert_P.shape[:-1]),
        layout.bound_L.reshape(expert_P.shape[:-1]),
        layout.status.value,
        {**_moved_facts(instance, layout, expert_P), **_facts(instance, expert_P, quota_P)},
    )


def _moved_facts(instance: ExpertsInstance, layout: Layout, expert_P: Ints) -> dict[str, float]:
    if instance.kind in ("drift", "realtime"):
        moved = float(new_copies(instance.ranks, expert_P).sum())
        return {"moved_bytes_after_first": moved * instance.expert_bytes}
    return {} if layout.moved_experts is None else {"moved_bytes": layout.moved_experts * instance.expert_bytes}


def _facts(instance: ExpertsInstance, expert_P: Ints, quota_P: Floats | None) -> dict[str, float]:
    array = instance.array
    if instance.kind == "affinity":
        tokens = judged_tokens(instance, expert_P)
        return {
            "nodes_per_token": float(tokens.nodes_per_token_L.mean()),
            "fresh_imbalance": float(tokens.fresh_imbalance_L.mean()),
        }
    if instance.kind == "static":
        return _leaving(instance, [array], [expert_P], [quota_P])
    quotas = [None] * len(expert_P) if quota_P is None else [*quota_P]
    if instance.kind == "drift":
        return _leaving(instance, np.asarray(array, np.float64), expert_P, quotas)
    return _leaving(instance, array.sum(axis=2, dtype=np.float64), expert_P, quotas, array)


def judged_tokens(instance: ExpertsInstance, expert_LP: Ints) -> TokenLayout:
    """What a layout of choices of tokens is worth, on those that it was planned on and on as many fresh ones."""
    return judge_tokens(planned_half(instance.array), instance.ranks, instance.num_experts, expert_LP)


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


def _static(instance: ExpertsInstance, options: SolveOptions) -> Layout:
    if options.ahead or options.resident_LP is not None or options.most_moved_bytes is not None:
        return _window(instance, options, np.asarray(instance.array, np.float64)[None], options.resident_LP)
    return plan_layout(
        instance.array,
        instance.ranks,
        shares=options.shares,
        tolerance=_or(options.tolerance, TOLERANCE),
        seed=options.seed,
        slots_LR=instance.slots_LR,
        allowed_ER=confined_rows(instance, options),
    )


def _drift(instance: ExpertsInstance, options: SolveOptions) -> Layout:
    """Window by window, each from the layout before it; the first from what engines start with."""
    windows = np.asarray(instance.array, np.float64)
    layouts: list[Layout] = []
    for window in range(len(windows)):
        before = layouts[-1].expert_LP if layouts else options.resident_LP
        layouts.append(_window(instance, options, windows[: window + 1], before))
    quotas = [layout.quota_LP for layout in layouts if layout.quota_LP is not None]
    return Layout(
        np.concatenate([layout.expert_LP for layout in layouts]),
        np.concatenate(quotas) if len(quotas) == len(layouts) else None,
        np.concatenate([layout.imbalance_L for layout in layouts]),
        np.concatenate([layout.bound_L for layout in layouts]),
        Status.OPTIMAL if all(layout.status is Status.OPTIMAL for layout in layouts) else Status.FEASIBLE,
        sum(layout.moved_experts or 0 for layout in layouts),
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


def confined_rows(instance: ExpertsInstance, options: SolveOptions) -> Bools | None:
    """[L, E, R] where experts may be when groups are confined to nodes; None when they are not."""
    if options.nodes_per_group is None:
        return None
    rows = [
        confine(np.asarray(load_E, np.float64), instance.ranks, instance.groups, options.nodes_per_group)
        for load_E in instance.array
    ]
    return np.array(rows)


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


def _realtime(instance: ExpertsInstance, options: SolveOptions) -> Layout:
    """Experts at home, copies in the free slots, for every micro-batch and layer."""
    load_NE = row_loads("realtime", instance.array, instance.num_experts)
    planner = StepPlanner(instance.ranks, instance.num_experts, tolerance=_or(options.tolerance, STEP_TOLERANCE))
    rows = planner.plan_rows(load_NE)
    even = bool((rows.imbalance_N <= 1.0 + 1e-9).all())
    status = Status.OPTIMAL if even else Status.FEASIBLE
    return Layout(rows.expert_NP, rows.quota_NP, rows.imbalance_N, np.ones_like(rows.imbalance_N), status)


def _affinity(instance: ExpertsInstance, options: SolveOptions) -> Layout:
    """Planned on the first half of the tokens."""
    layout = plan_tokens(
        planned_half(instance.array),
        instance.ranks,
        instance.num_experts,
        imbalance_price=_or(options.imbalance_price, PRICE),
        seed=options.seed,
    )
    return Layout(layout.expert_LP, None, layout.imbalance_L, np.ones(len(layout.imbalance_L)), Status.FEASIBLE)
