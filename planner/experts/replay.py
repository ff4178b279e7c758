"""Replays a load trace under rebalancing policies: imbalance, bytes moved, step times, and the net gain.

Policies: `linear` never moves anything; `static` keeps a layout planned on the first window; `periodic` plans on the
window just served; `ahead` does so hedged; `worthwhile` moves as much as pays by the next window; `hindsight` chooses
when to move and to which of the layouts planned by then, knowing the whole trace; `realtime` plans every window as it
comes, around fixed homes; `oracle` knows each window before it is served. Windows may be micro-batches. Shape suffixes:
W window, L layer, E expert, P slot, K layout.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError, did_you_mean
from planner.experts.ahead import plan_ahead
from planner.experts.layout import copies_moved, plan_layout
from planner.experts.ranks import Ranks, linear_layout, require_loads
from planner.experts.step_time import MoeCosts
from planner.experts.steps import StepPlanner

SLACK = 0.004
"""Above the bound at which periodic and oracle layouts are left, so that they move little."""
SLACKS = (0.005, 0.02, 0.05, 0.1)
"""Above the bound: the layouts that `worthwhile` chooses from."""
PLAN_LAYER_S = 25e-6
"""One layer planned in real time on one core, twice what benchmarks/experts.py measures for 32 ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """One policy over a trace, from the second window on: before it, policies that look back know nothing."""

    policy: str
    imbalance_WL: Floats  # of windows 1 on
    moved_experts_W: Ints  # copies sent before windows 1 on
    step_s_W: Floats | None  # MoE steps, forward, without moves
    move_s_W: Floats | None  # of a step: planning in real time, and its part of the moves

    @property
    def mean_step_s(self) -> float | None:
        """Mean step, net of moves and of planning in real time; None without costs."""
        if self.step_s_W is None or self.move_s_W is None:
            return None
        return float((self.step_s_W + self.move_s_W).mean())


@dataclass(frozen=True, slots=True, eq=False)
class WindowLayout:
    """What one policy has ready for one window."""

    expert_LP: Ints
    imbalance_L: Floats


@dataclass(frozen=True, slots=True, eq=False)
class PolicyInputs:
    """What a policy may reckon with besides the loads seen."""

    groups: int
    expert_bytes: float
    costs: MoeCosts | None
    steps_per_window: int


Policy = Callable[[Floats, Ranks, PolicyInputs], Iterator[WindowLayout]]


def replay(
    load_WLE: Floats,
    ranks: Ranks,
    policy: str,
    *,
    groups: int = 1,
    expert_bytes: float = 0.0,
    costs: MoeCosts | None = None,
    steps_per_window: int = 1,
) -> Replayed:
    """`policy` over the windows of `load_WLE`; moves are spread over `steps_per_window` steps."""
    require_loads(load_WLE, "window,layer,expert")
    if len(load_WLE) < 2:
        raise PlannerError("a replay needs at least two windows", where="load", hint="record by window or step")
    if policy not in POLICIES:
        known = list(POLICIES)
        raise PlannerError(
            f"unknown policy `{policy}`",
            where="--policy",
            hint=did_you_mean(policy, known, otherwise=f"the policies are {', '.join(known)}"),
        )
    bytes_each = expert_bytes or (costs.expert_bytes if costs is not None else 0.0)
    terms = PolicyInputs(groups, bytes_each, costs, steps_per_window)
    served = list(POLICIES[policy](load_WLE, ranks, terms))
    moved_W = np.array([copies_moved(ranks, a.expert_LP, b.expert_LP) for a, b in pairwise(served)])
    imbalance_WL = np.array([window.imbalance_L for window in served[1:]])
    if costs is None:
        return Replayed(policy, imbalance_WL, moved_W, None, None)
    plan_s = PLAN_LAYER_S * costs.num_layers if policy == "realtime" else 0.0
    move_s_W = np.array([(costs.move_s(count * bytes_each) + plan_s) / steps_per_window for count in moved_W])
    return Replayed(policy, imbalance_WL, moved_W, np.array([costs.step_s(row) for row in imbalance_WL]), move_s_W)


def served_imbalance(ranks: Ranks, expert_LP: Ints, load_LE: Floats) -> Floats:
    """[L] slowest rank over the mean when copies share equally; empty slots (-1) take nothing."""
    imbalance_L = np.empty(len(load_LE))
    for layer, (row_P, load_E) in enumerate(zip(expert_LP, load_LE, strict=True)):
        filled = row_P >= 0
        copies_E = np.bincount(row_P[filled], minlength=len(load_E))
        each_E = load_E / np.maximum(copies_E, 1)
        load_R = np.bincount(ranks.rank_P[filled], weights=each_E[row_P[filled]], minlength=ranks.num_ranks)
        imbalance_L[layer] = (load_R / ranks.speed_R).max() / (load_R.sum() / ranks.speed_R.sum())
    return imbalance_L


def _linear(load_WLE: Floats, ranks: Ranks, _: PolicyInputs) -> Iterator[WindowLayout]:
    start_LP = np.tile(linear_layout(ranks, load_WLE.shape[2]), (load_WLE.shape[1], 1))
    return (WindowLayout(start_LP, served_imbalance(ranks, start_LP, load_LE)) for load_LE in load_WLE)


def _static(load_WLE: Floats, ranks: Ranks, _: PolicyInputs) -> Iterator[WindowLayout]:
    layout_LP = plan_layout(load_WLE[0], ranks).expert_LP
    return (WindowLayout(layout_LP, served_imbalance(ranks, layout_LP, load_LE)) for load_LE in load_WLE)


def _periodic(load_WLE: Floats, ranks: Ranks, _: PolicyInputs) -> Iterator[WindowLayout]:
    layout_LP = plan_layout(load_WLE[0], ranks).expert_LP
    for load_LE in load_WLE:
        yield WindowLayout(layout_LP, served_imbalance(ranks, layout_LP, load_LE))
        layout_LP = plan_layout(load_LE, ranks, resident_LP=layout_LP, tolerance=SLACK).expert_LP


def _ahead(load_WLE: Floats, ranks: Ranks, terms: PolicyInputs) -> Iterator[WindowLayout]:
    layout_LP = plan_ahead(load_WLE[:1], ranks, groups=terms.groups).expert_LP
    for window, load_LE in enumerate(load_WLE):
        yield WindowLayout(layout_LP, served_imbalance(ranks, layout_LP, load_LE))
        layout_LP = plan_ahead(load_WLE[: window + 1], ranks, groups=terms.groups, resident_LP=layout_LP).expert_LP


def _worthwhile(load_WLE: Floats, ranks: Ranks, terms: PolicyInputs) -> Iterator[WindowLayout]:
    """Of several distances from the bound, staying among them, the one with most seconds saved in the next window.

    The next window is taken to be like the last one.
    """
    costs = terms.costs
    if costs is None:
        raise PlannerError(
            "policy `worthwhile` weighs seconds, which need a model and hardware",
            where="--policy",
            hint="give both --model and --gpu",
        )
    layout_LP = plan_layout(load_WLE[0], ranks).expert_LP
    for load_LE in load_WLE:
        staying_L = served_imbalance(ranks, layout_LP, load_LE)
        yield WindowLayout(layout_LP, staying_L)
        best_s = 0.0
        before_LP = layout_LP
        for slack in SLACKS:
            layout = plan_layout(load_LE, ranks, resident_LP=before_LP, tolerance=slack)
            saved_s = (costs.step_s(staying_L) - costs.step_s(layout.imbalance_L)) * terms.steps_per_window
            net_s = saved_s - costs.move_s((layout.moved_experts or 0) * terms.expert_bytes)
            if net_s > best_s:
                best_s, layout_LP = net_s, layout.expert_LP


def _hindsight(load_WLE: Floats, ranks: Ranks, terms: PolicyInputs) -> Iterator[WindowLayout]:
    """The best times to move, by dynamic programming over windows: what any rule of when to move can reach at most.

    Layout k is planned on window k, near the one before it, and may serve from window k + 1 on (layout 0 from the
    start). T(w, k) = s(w, k) + min_j (T(w - 1, j) + m(j, k)), with the seconds of a window's steps and of moving from
    layout j to k; O(windows^3) once they are counted.
    """
    costs = terms.costs
    if costs is None:
        raise PlannerError("policy `hindsight` weighs seconds", where="--policy", hint="give both --model and --gpu")
    planned = [plan_layout(load_WLE[0], ranks).expert_LP]
    for load_LE in load_WLE[1:-1]:
        planned.append(plan_layout(load_LE, ranks, resident_LP=planned[-1], tolerance=SLACK).expert_LP)
    steps = terms.steps_per_window
    served_s = np.array(
        [[costs.step_s(served_imbalance(ranks, row, load)) * steps for row in planned] for load in load_WLE]
    )
    sent = [[copies_moved(ranks, before, after) for after in planned] for before in planned]
    moving_s = np.array([[costs.move_s(count * terms.expert_bytes) for count in row] for row in sent])
    for window, layout in enumerate(cheapest_path(served_s, moving_s)):
        yield WindowLayout(planned[layout], served_imbalance(ranks, planned[layout], load_WLE[window]))


def cheapest_path(served_s: Floats, moving_s: Floats) -> list[int]:
    """The layout of every window with least seconds in all; layout k serves from window k + 1 on, layout 0 always."""
    windows, layouts = served_s.shape
    open_WK = np.arange(layouts)[None] <= np.maximum(np.arange(windows)[:, None] - 1, 0)
    allowed_s = np.where(open_WK, served_s, np.inf)
    total_s, came = allowed_s[0], []
    for window in range(1, windows):
        reached_s = total_s[:, None] + moving_s
        came.append(reached_s.argmin(axis=0))
        total_s = allowed_s[window] + reached_s.min(axis=0)
    path = [int(total_s.argmin())]
    for before in reversed(came):
        path.append(int(before[path[-1]]))
    return path[::-1]


def _oracle(load_WLE: Floats, ranks: Ranks, _: PolicyInputs) -> Iterator[WindowLayout]:
    layout_LP = plan_layout(load_WLE[0], ranks).expert_LP
    for load_LE in load_WLE:
        layout_LP = plan_layout(load_LE, ranks, resident_LP=layout_LP, tolerance=SLACK).expert_LP
        yield WindowLayout(layout_LP, served_imbalance(ranks, layout_LP, load_LE))


def _realtime(load_WLE: Floats, ranks: Ranks, _: PolicyInputs) -> Iterator[WindowLayout]:
    planner = StepPlanner(ranks, load_WLE.shape[2])
    for load_LE in load_WLE:
        rows = planner.plan_rows(load_LE)
        yield WindowLayout(rows.expert_NP, rows.imbalance_N)


POLICIES: dict[str, Policy] = {
    "linear": _linear,
    "static": _static,
    "periodic": _periodic,
    "ahead": _ahead,
    "worthwhile": _worthwhile,
    "hindsight": _hindsight,
    "realtime": _realtime,
    "oracle": _oracle,
}
