"""Expert placement: loads by layer and expert in, the expert of every slot of every rank out, with balance and bound.

No files and no globals: safe to call from a training loop. Shape suffixes: L layer, E expert, R rank, P slot.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError
from planner.experts.ranks import Ranks, require_loads, require_slots
from planner.solvers.layouts.enumerated import better, is_small
from planner.solvers.layouts.respread import num_moves, respread
from planner.solvers.layouts.shares import pour, solve_free
from planner.solvers.layouts.spread import (
    STEPS,
    TOLERANCE,
    Spread,
    SpreadProblem,
    bin_times,
    equal_shares,
    solve_spread,
    time_bound,
)
from planner.solvers.result import SolveResult, Status

Shares = Literal["equal", "free"]
FEW_SLOTS, MORE_STEPS = 3.0, 10 * STEPS
"""With 2 slots a rank, pairs of copies rarely add up: ten times the search takes a quarter off the gap."""
BISECTIONS = 9
MOST_SLACK = 8.0
FREE_GOALS = (8.0, 2.0, 1.0)  # tried in turn, in units of the slack wanted


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Experts by layer and slot with the share of each copy, and what is known of how good that is.

    `imbalance_L` is the time of the slowest rank over the mean, 1 at best; `bound_L` what no layout beats.
    """

    expert_LP: Ints
    quota_LP: Floats | None  # None: copies share equally
    imbalance_L: Floats
    bound_L: Floats
    status: Status
    moved_experts: int | None = None  # copies sent to ranks that did not hold the expert; None without a resident

    @property
    def gap_L(self) -> Floats:
        """How far each layer is above its bound, as a share."""
        return self.imbalance_L / self.bound_L - 1.0


def plan_layout(
    load_LE: npt.ArrayLike,
    ranks: Ranks,
    *,
    shares: Shares = "equal",
    resident_LP: npt.ArrayLike | None = None,
    tolerance: float = TOLERANCE,
    most_moves: int | None = None,
    slots_LR: npt.ArrayLike | None = None,
    allowed_ER: Bools | None = None,
    steps: int | None = None,
    seed: int = 0,
) -> Layout:
    """The layout of every layer for the loads given, each with its bound.

    `shares` says whether copies of an expert share its tokens equally, as engines without quotas do, or freely. With
    `resident_LP`, layers change as little as brings them `tolerance` above their bounds, and `most_moves` limits the
    copies sent in all, not counting those into slots that were empty (-1). `slots_LR` gives layers fewer slots than
    `ranks` has (the rest stay -1). `allowed_ER` limits where experts may be, for all layers or by layer ([L, E, R]).
    `steps` limits the search, per layer; there are more of them where ranks have less than 3 slots, unless told. Raises
    PlannerError for bad input, or where no layout is found.
    """
    loads = np.ascontiguousarray(load_LE, np.float64)
    require_loads(loads, "layer,expert")
    problems = spread_problems(loads, ranks, slots_LR, allowed_ER)
    if resident_LP is None:
        if most_moves is not None:
            raise PlannerError("moves are counted from a resident layout", where="resident", hint="give it")
        spreads = [_fresh(problem, shares, tolerance, steps, seed, layer) for layer, problem in enumerate(problems)]
        return assemble(problems, ranks, spreads, shares)
    resident = require_resident(resident_LP, problems, ranks)
    spreads = _near(problems, resident, shares, tolerance, most_moves, seed)
    layout = assemble(problems, ranks, spreads, shares)
    return replace(layout, moved_experts=copies_moved(ranks, np.asarray(resident_LP), layout.expert_LP))


def spread_problems(
    load_LE: Floats,
    ranks: Ranks,
    slots_LR: npt.ArrayLike | None = None,
    allowed_ER: Bools | None = None,
) -> list[SpreadProblem]:
    """One problem a layer: experts are its items, ranks its bins; PlannerError where the slots do not hold them."""
    layers, experts = load_LE.shape
    allowed = [None] * layers if allowed_ER is None else np.broadcast_to(allowed_ER, (layers, *allowed_ER.shape[-2:]))
    slots = np.broadcast_to(ranks.slots_R, (layers, ranks.num_ranks)) if slots_LR is None else np.asarray(slots_LR)
    if slots.shape != (layers, ranks.num_ranks) or (slots > ranks.slots_R).any():
        raise PlannerError(
            f"must have the shape {(layers, ranks.num_ranks)} and at most the slots of each rank",
            where="slots by layer",
            hint=f"found the shape {slots.shape}",
        )
    if allowed_ER is not None:
        _require_allowed(allowed_ER, experts, ranks)
    for slots_R in slots:
        require_slots(slots_R, experts)
    return [
        SpreadProblem(load_E, slots_R.astype(np.int64), ranks.speed_R, allowed_here)
        for load_E, slots_R, allowed_here in zip(load_LE, slots, allowed, strict=True)
    ]


def _require_allowed(allowed_ER: Bools, experts: int, ranks: Ranks) -> None:
    wanted = (experts, ranks.num_ranks)
    if allowed_ER.shape[-2:] != wanted:
        raise PlannerError(
            f"must have the shape {wanted} in each layer, found {allowed_ER.shape}",
            where="allowed",
            hint="say of each expert which ranks may hold it",
        )
    nowhere_E = (~allowed_ER.any(axis=-1)).reshape(-1, experts).any(axis=0)
    if nowhere_E.any():
        raise PlannerError(
            f"no rank may hold expert {int(np.argmax(nowhere_E))}", where="allowed", hint="allow it somewhere"
        )


def _fresh(
    problem: SpreadProblem, shares: Shares, tolerance: float, steps: int | None, seed: int, layer: int
) -> Spread:
    solver: Callable[..., SolveResult[Spread]] = solve_spread if shares == "equal" else solve_free
    if steps is None:
        steps = STEPS if float(problem.slots_R.mean()) >= FEW_SLOTS else MORE_STEPS
    spread = solver(problem, tolerance=tolerance, steps=steps, seed=seed).solution
    if is_small(problem) and (spread is None or _above(problem, spread, tolerance)):
        spread = better(problem, spread, free=shares == "free")
    if spread is None:
        raise PlannerError(
            f"no layout was found for layer {layer}",
            where="layout",
            hint="allow experts on more ranks, or give the ranks more slots",
        )
    return spread


def _above(problem: SpreadProblem, spread: Spread, tolerance: float) -> bool:
    return float(bin_times(problem, spread.item_P, spread.share_P).max()) > time_bound(problem) * (1.0 + tolerance)


def require_resident(resident_LP: npt.ArrayLike, problems: list[SpreadProblem], ranks: Ranks) -> list[Ints]:
    """The resident layout by layer, without empty slots; PlannerError where it does not fit the ranks and experts."""
    resident = np.asarray(resident_LP, np.int64)
    if resident.shape != (len(problems), ranks.num_slots):
        wanted = (len(problems), ranks.num_slots)
        raise PlannerError(
            f"has the shape {resident.shape}, the ranks need {wanted} (layers, slots)",
            where="resident layout",
            hint="give the layout that runs on these ranks",
        )
    filled = [_filled(problem, ranks, row_P) for problem, row_P in zip(problems, resident, strict=True)]
    for layer, (problem, row_P) in enumerate(zip(problems, filled, strict=True)):
        _require_whole(problem, row_P, f"resident layout, layer {layer}")
    return filled


def _require_whole(problem: SpreadProblem, row_P: Ints, where: str) -> None:
    """Refuses a layer that does not hold every expert, or one twice on a rank."""
    experts, low, high = len(problem.weight_E), int(row_P.min()), int(row_P.max())
    if low < 0 or high >= experts:
        raise PlannerError(
            f"names expert {low if low < 0 else high} of {experts}",
            where=where,
            hint="experts count from 0, and no slot stays empty",
        )
    missing = np.setdiff1d(np.arange(experts), row_P)
    if len(missing):
        raise PlannerError(f"expert {missing[0]} has no slot", where=where, hint="give every expert at least one slot")
    copies_RE = np.zeros((len(problem.slots_R), experts), np.int64)
    np.add.at(copies_RE, (problem.bin_P, row_P), 1)
    if (copies_RE > 1).any():
        rank, expert = np.argwhere(copies_RE > 1)[0]
        raise PlannerError(
            f"rank {rank} holds expert {expert} twice", where=where, hint="a second copy belongs on another rank"
        )


def _filled(problem: SpreadProblem, ranks: Ranks, row_P: Ints) -> Ints:
    """The slots that a layer has, empty ones filled with the heaviest experts that their rank lacks."""
    heaviest = np.argsort(-problem.weight_E, kind="stable")
    rows = []
    for rank, slots in enumerate(problem.slots_R):
        first = int(ranks.first_R[rank])
        experts = [int(expert) for expert in row_P[first : first + slots]]
        spare = (int(expert) for expert in heaviest if int(expert) not in experts)
        rows += [expert if expert >= 0 else next(spare) for expert in experts]
    return np.array(rows, np.int64)


def _near(
    problems: list[SpreadProblem],
    resident: list[Ints],
    shares: Shares,
    tolerance: float,
    most_moves: int | None,
    seed: int,
) -> list[Spread]:
    """Layouts near the resident ones: `tolerance` above the bound, or as little above as the moves allow."""
    spreads = _at_slack(problems, resident, shares, tolerance, seed)
    if most_moves is None or _moves(problems, resident, spreads) <= most_moves:
        return spreads
    low, high = tolerance, MOST_SLACK
    best = [
        Spread(row_P, _shares(problem, row_P, shares, 0.0)) for problem, row_P in zip(problems, resident, strict=True)
    ]
    for _ in range(BISECTIONS):
        middle = (low * high) ** 0.5
        spreads = _at_slack(problems, resident, shares, middle, seed)
        if _moves(problems, resident, spreads) <= most_moves:
            best, high = spreads, middle
        else:
            low = middle
    return best


def _moves(problems: list[SpreadProblem], resident: list[Ints], spreads: list[Spread]) -> int:
    rows = zip(problems, resident, spreads, strict=True)
    return sum(num_moves(problem, before, after.item_P) for problem, before, after in rows)


def _at_slack(
    problems: list[SpreadProblem], resident: list[Ints], shares: Shares, slack: float, seed: int
) -> list[Spread]:
    spreads = []
    for problem, row_P in zip(problems, resident, strict=True):
        goal = time_bound(problem) * (1.0 + slack)
        poured = _shares(problem, row_P, shares, goal)
        if shares == "free" and float(bin_times(problem, row_P, poured).max()) <= goal:
            spreads.append(Spread(row_P, poured))
            continue
        spreads.append(_changed(problem, row_P, shares, goal, seed))
    return spreads


def _changed(problem: SpreadProblem, row_P: Ints, shares: Shares, goal: float, seed: int) -> Spread:
    """A layout with few moves within `goal`; with free shares the first of tighter goals that pouring can close."""
    over = goal / time_bound(problem) - 1.0
    for relaxed in FREE_GOALS if shares == "free" else (1.0,):
        after = respread(problem, row_P, goal * (1.0 + (relaxed - 1.0) * over), seed=seed).solution
        assert after is not None
        spread = Spread(after.item_P, _shares(problem, after.item_P, shares, goal))
        if float(bin_times(problem, spread.item_P, spread.share_P).max()) <= goal * (1.0 + 1e-9):
            break
    return spread


def _shares(problem: SpreadProblem, item_P: Ints, shares: Shares, goal: float) -> Floats:
    if shares == "equal":
        return equal_shares(item_P, len(problem.weight_E))
    return pour(problem, item_P, goal=goal)


def assemble(problems: list[SpreadProblem], ranks: Ranks, spreads: list[Spread], shares: Shares) -> Layout:
    """One layout of all layers, with imbalance and bound as ratios to the mean time."""
    expert_LP = np.full((len(problems), ranks.num_slots), -1, np.int64)
    quota_LP = np.zeros((len(problems), ranks.num_slots))
    mean_L, time_L, bound_L = (np.zeros(len(problems)) for _ in range(3))
    for layer, (problem, spread) in enumerate(zip(problems, spreads, strict=True)):
        slots = at_slots(ranks, problem.slots_R)
        expert_LP[layer, slots] = spread.item_P
        quota_LP[layer, slots] = spread.share_P
        mean_L[layer] = problem.weight_E.sum() / problem.speed_R.sum()
        time_L[layer] = bin_times(problem, spread.item_P, spread.share_P).max()
        bound_L[layer] = min(time_bound(problem), time_L[layer])
    closed = bool((time_L <= bound_L * (1.0 + 1e-9)).all())
    status = Status.OPTIMAL if closed else Status.FEASIBLE
    quota = quota_LP if shares == "free" else None
    return Layout(expert_LP, quota, time_L / mean_L, bound_L / mean_L, status)


def at_slots(ranks: Ranks, slots_R: Ints) -> Ints:
    """Which slots are the first `slots_R` of every rank."""
    firsts = ranks.first_R[:-1]
    return np.concatenate([first + np.arange(count) for first, count in zip(firsts, slots_R, strict=True)])


def copies_moved(ranks: Ranks, before_LP: Ints, after_LP: Ints) -> int:
    """Copies on ranks that did not hold the expert before; slots may be empty (-1)."""
    return int(new_copies(ranks, np.stack([before_LP, after_LP])).sum())


def new_copies(ranks: Ranks, expert_TLP: Ints) -> Ints:
    """[T - 1, L] copies on ranks that did not hold the expert in the layout before."""
    layouts, layers, _ = expert_TLP.shape
    experts = int(expert_TLP.max()) + 1
    resident = np.zeros((layouts, layers, ranks.num_ranks, experts + 1), np.bool_)  # empty slots (-1): the last column
    layout, layer, slot = np.indices(expert_TLP.shape)
    resident[layout, layer, ranks.rank_P[slot], expert_TLP] = True
    moved: Ints = (resident[1:] & ~resident[:-1])[..., :experts].sum(axis=(2, 3))
    return moved
