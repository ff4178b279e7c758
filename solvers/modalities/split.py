"""Modules of a multimodal model on pools of their own: how many GPUs each takes, and its tp, dp and pp, exactly.

Source: DistTrain (SIGCOMM 2025, arXiv:2408.04275), section 4, which solves the sizes as a convex program and rounds
them; here nothing is rounded.
Sets        m in modules, one of them the backbone l, the others its sides;  tp in the degrees that a module was
            measured at;  dp;  pp a divisor of the backbone's layers
Parameters  N GPUs, B samples a step, M samples of a micro-batch, C_m(tp) [s] forward and backward of a sample,
            W_m [bytes] of parameters, A_m [bytes] of activations a sample, F micro-batches that a side holds,
            K [bytes] of a GPU, b [bytes/s] of its network;  n = B / (M dp_l) micro-batches of a replica
Variables   tp_m, dp_m, pp_l
Minimise    M C_l + sum over sides of M C_m max(1, dp_l / dp_m) + (n - 1) max_m t_m + max over trained m of S_m
            t_l = M C_l / pp_l,  t_m = M C_m dp_l / dp_m,  S_m = 2 (dp_m - 1) / dp_m 2 W_m / (tp_m pp_m) / b
(C1) sum of tp dp pp <= N
(C2) weights, gradients, optimizer and activations of a module fit K: 6 W' / (tp pp) + 12 W' / (tp pp dp) where it is
     trained, 2 W' / (tp pp) where not, W' = W / 2 parameters; V / (tp pp) of parameters that never learn; and M A
     times min(pp, n) (backbone) or F (sides)
(C3) M dp_l divides B;  dp_m divides dp_l or is a multiple of it
Method      for each decision of the backbone, best bound first, all choices of a side that no other choice is as good
            as in GPUs, seconds, rate and exchange; sides joined one by one. All decisions are tried or bounded away.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

WHERE, SOLVER = "modality split", "enumeration with bounds"
TRAINED_BYTES, FROZEN_BYTES, OPTIMIZER_BYTES = 6.0, 2.0, 12.0
"""Of a parameter: bf16 weights and fp32 gradients, weights alone, and the optimizer that data-parallel ranks share."""
GPUS, WARM, RATE, SYNC = range(4)
"""Columns of choices: GPUs, seconds before and after the steady state, seconds a micro-batch, seconds of exchange."""


@dataclass(frozen=True, slots=True)
class Module:
    """One module; `seconds_of_tp` are those of one sample, forward and backward, on `tp` GPUs."""

    name: str
    layers: int
    seconds_of_tp: Mapping[int, float]
    parameter_bytes: float
    activation_bytes: float  # a sample
    trained: bool = True
    frozen_bytes: float = 0.0  # of further parameters, which do not learn

    def __post_init__(self) -> None:
        if not self.seconds_of_tp or min(self.seconds_of_tp) < 1 or min(self.seconds_of_tp.values()) < 0:
            raise PlannerError(f"`{self.name}` has no times", where=WHERE, hint="give seconds of 0 or more for each tp")
        if self.layers < 1 or min(self.parameter_bytes, self.activation_bytes) < 0:
            raise PlannerError(
                f"`{self.name}` has no layers or sizes below 0", where=WHERE, hint="give one layer or more"
            )


@dataclass(frozen=True, slots=True)
class SideProblem:
    """The modules beside a backbone, whatever that is, and what they run on."""

    sides: tuple[Module, ...]
    micro_batch: int
    memory_bytes: float
    network_bytes_per_s: float
    side_micro_batches: int = 2  # that a side holds at a time


@dataclass(frozen=True, slots=True)
class SplitProblem:
    """The backbone, the modules beside it, and what they run on."""

    backbone: Module
    sides: tuple[Module, ...]
    gpus: int
    global_batch: int
    micro_batch: int
    memory_bytes: float
    network_bytes_per_s: float
    side_micro_batches: int = 2  # that a side holds at a time

    def __post_init__(self) -> None:
        if self.gpus < 1 or self.micro_batch < 1 or self.network_bytes_per_s <= 0:
            raise PlannerError("no GPUs, samples or network", where=WHERE, hint="give one or more of each")
        if self.global_batch < 1 or self.global_batch % self.micro_batch:
            raise PlannerError(
                f"{self.global_batch} samples are no whole micro-batches of {self.micro_batch}",
                where=WHERE,
                hint=f"use a batch of {-(-max(self.global_batch, 1) // self.micro_batch) * self.micro_batch}",
            )

    @property
    def beside(self) -> SideProblem:
        """The sides alone."""
        sizes = (self.micro_batch, self.memory_bytes, self.network_bytes_per_s, self.side_micro_batches)
        return SideProblem(self.sides, *sizes)


@dataclass(frozen=True, slots=True)
class Share:
    """What a module gets."""

    tp: int
    dp: int
    pp: int = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.dp * self.pp


Split = tuple[Share, ...]
"""Of the backbone, and of the sides in their order."""


def best_split(problem: SplitProblem) -> SolveResult[Split]:
    """The split with the shortest step, proven; INFEASIBLE where none fits."""
    started = time.perf_counter()
    best, best_s = None, math.inf
    for bound_s, backbone in _backbones(problem):
        if bound_s >= best_s:
            break
        split = _with_sides(problem, backbone, best_s)
        if split is not None and step_s(problem, split) < best_s:
            best, best_s = split, step_s(problem, split)
    spent_s = time.perf_counter() - started
    if best is None:
        return SolveResult(Status.INFEASIBLE, "finished", None, None, None, spent_s, SOLVER)
    return SolveResult(Status.OPTIMAL, "finished", best, best_s, best_s, spent_s, SOLVER)


def step_s(problem: SplitProblem, split: Split) -> float:
    """Seconds of a step; infinite where a module's share breaks (C1) to (C3)."""
    backbone, *sides = split
    if problem.global_batch % (problem.micro_batch * backbone.dp) or sum(share.gpus for share in split) > problem.gpus:
        return math.inf
    if any(share.dp % backbone.dp and backbone.dp % share.dp for share in sides):
        return math.inf
    own = [_backbone_row(problem, backbone)]
    beside = problem.beside
    own += [side_row(beside, module, share, backbone.dp) for module, share in zip(problem.sides, sides, strict=True)]
    if any(row is None for row in own):
        return math.inf
    rows = np.array(own, float)
    turns = problem.global_batch // (problem.micro_batch * backbone.dp) - 1
    return float(rows[:, WARM].sum() + turns * rows[:, RATE].max() + rows[:, SYNC].max())


Row = tuple[float, float, float, float]
"""Of one choice, by the columns."""


def _backbone_row(problem: SplitProblem, share: Share) -> Row | None:
    """Its columns; None where it does not fit or its layers do not divide."""
    module = problem.backbone
    turns = problem.global_batch // (problem.micro_batch * share.dp)
    if module.layers % share.pp or share.tp not in module.seconds_of_tp:
        return None
    if held_bytes(problem.beside, module, share, min(share.pp, turns)) > problem.memory_bytes:
        return None
    whole_s = problem.micro_batch * module.seconds_of_tp[share.tp]
    return share.gpus, whole_s, whole_s / share.pp, _sync_s(problem.beside, module, share)


def side_row(problem: SideProblem, module: Module, share: Share, backbone_dp: int) -> Row | None:
    """The columns of a side beside a backbone of so many replicas; None where it does not fit."""
    if share.pp != 1 or share.tp not in module.seconds_of_tp:
        return None
    if held_bytes(problem, module, share, problem.side_micro_batches) > problem.memory_bytes:
        return None
    whole_s = problem.micro_batch * module.seconds_of_tp[share.tp]
    slower = backbone_dp / share.dp
    return share.gpus, whole_s * max(1.0, slower), whole_s * slower, _sync_s(problem, module, share)


def held_bytes(problem: SideProblem, module: Module, share: Share, in_flight: int) -> float:
    """(C2), left side."""
    shards, parameters = share.tp * share.pp, module.parameter_bytes / 2.0
    each = TRAINED_BYTES if module.trained else FROZEN_BYTES
    optimizer = parameters * OPTIMIZER_BYTES / (shards * share.dp) if module.trained else 0.0
    activations = problem.micro_batch * in_flight * module.activation_bytes / shards
    return (parameters * each + module.frozen_bytes) / shards + optimizer + activations


def _sync_s(problem: SideProblem, module: Module, share: Share) -> float:
    if not module.trained or share.dp == 1:
        return 0.0
    sent = 2.0 * (share.dp - 1) / share.dp * module.parameter_bytes * 2.0 / (share.tp * share.pp)
    return sent / problem.network_bytes_per_s


def _backbones(problem: SplitProblem) -> list[tuple[float, Share]]:
    """Every share of the backbone that fits, with what the step takes at least, least first."""
    batches = problem.global_batch // problem.micro_batch
    least_gpus = sum(min(side.seconds_of_tp) for side in problem.sides)
    least_s = problem.micro_batch * sum(min(side.seconds_of_tp.values()) for side in problem.sides)
    rows = []
    for dp in (dp for dp in range(1, batches + 1) if batches % dp == 0):
        for tp in problem.backbone.seconds_of_tp:
            for pp in (pp for pp in range(1, problem.backbone.layers + 1) if problem.backbone.layers % pp == 0):
                share = Share(tp, dp, pp)
                row = _backbone_row(problem, share) if share.gpus + least_gpus <= problem.gpus else None
                if row is not None:
                    turns = batches // dp - 1
                    rate = max(row[RATE], _least_rate(problem, problem.gpus - share.gpus, dp))
                    rows.append((row[WARM] + least_s + turns * rate + row[SYNC], share))
    return sorted(rows, key=lambda row: (row[0], row[1].gpus))


def _least_rate(problem: SplitProblem, gpus: int, backbone_dp: int) -> float:
    """Seconds a micro-batch of the slowest side, at least: all sides' work over all GPUs that are left."""
    work = [min(tp * s for tp, s in side.seconds_of_tp.items()) for side in problem.sides]
    return problem.micro_batch * backbone_dp * sum(work) / gpus if gpus and work else 0.0


def _with_sides(problem: SplitProblem, backbone: Share, best_s: float) -> Split | None:
    """The best split of a backbone's share; None where none is better than `best_s`."""
    own = _backbone_row(problem, backbone)
    assert own is not None
    turns = problem.global_batch // (problem.micro_batch * backbone.dp) - 1
    sides = best_sides(problem.beside, own, backbone.dp, problem.gpus - backbone.gpus, turns, best_s)
    return None if sides is None else (backbone, *sides)


def best_sides(
    problem: SideProblem, own: Row, backbone_dp: int, gpus: int, turns: int, best_s: float = math.inf
) -> Split | None:
    """The best shares of the sides on so many GPUs beside a backbone with these columns and replicas.

    turns: micro-batches of a replica behind the first; None where no shares fit with a step below `best_s`.
    """
    rows = np.array([[0.0, own[WARM], own[RATE], own[SYNC]]])
    picks: list[Split] = [()]
    for module in problem.sides:
        shares = _side_shares(problem, module, backbone_dp, gpus, own[RATE])
        if not shares:
            return None
        more = np.array([side_row(problem, module, share, backbone_dp) for share in shares], float)
        rows, chosen = _joined(rows, more, gpus, turns, best_s)
        width = len(shares)
        picks = [(*picks[at // width], shares[at % width]) for at in chosen]
        if not picks:
            return None
    return picks[int(np.argmin(_steps(rows, turns)))]


def _side_shares(problem: SideProblem, module: Module, backbone_dp: int, gpus: int, rate_s: float) -> list[Share]:
    """Shares that fit; of those as fast as the backbone, and no slower in the first micro-batch, the smallest a tp."""
    shares = []
    for tp, seconds in module.seconds_of_tp.items():
        widths = [dp for dp in range(1, min(backbone_dp, gpus // tp) + 1) if backbone_dp % dp == 0]
        widths += range(2 * backbone_dp, gpus // tp + 1, backbone_dp)
        for dp in widths:
            row = side_row(problem, module, Share(tp, dp), backbone_dp)
            if row is None:
                continue
            shares.append(Share(tp, dp))
            if dp >= backbone_dp and problem.micro_batch * seconds * backbone_dp / dp <= rate_s:
                break
    return shares


def _steps(rows: Floats, turns: int) -> Floats:
    steps: Floats = rows[:, WARM] + turns * rows[:, RATE] + rows[:, SYNC]
    return steps


def _joined(rows: Floats, more: Floats, gpus: int, turns: int, best_s: float) -> tuple[Floats, list[int]]:
    """All pairs that fit and can be better, without those that others are as good as; the places of both in each."""
    both = np.empty((len(rows), len(more), 4))
    both[..., GPUS] = rows[:, None, GPUS] + more[None, :, GPUS]
    both[..., WARM] = rows[:, None, WARM] + more[None, :, WARM]
    both[..., RATE] = np.maximum(rows[:, None, RATE], more[None, :, RATE])
    both[..., SYNC] = np.maximum(rows[:, None, SYNC], more[None, :, SYNC])
    flat = both.reshape(-1, 4)
    keep = np.flatnonzero((flat[:, GPUS] <= gpus) & (_steps(flat, turns) < best_s))
    keep = keep[_undominated(flat[keep])]
    return flat[keep], [int(at) for at in keep]


def _undominated(rows: Floats) -> Ints:
    """Indices of rows that no other is as good as in every column; of equal ones the first."""
    order = np.lexsort((rows[:, SYNC], rows[:, RATE], rows[:, WARM], rows[:, GPUS]))
    kept: list[int] = []
    best = np.empty((0, 3))
    for at in order:
        row = rows[at, 1:]
        if not np.any(np.all(best <= row, axis=1)):
            kept.append(int(at))
            best = np.vstack((best[~np.all(row <= best, axis=1)], row))
    return np.array(kept, np.int64)
