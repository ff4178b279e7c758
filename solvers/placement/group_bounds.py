"""How many requests of given streams any groups can have on time: an upper bound by windows and by what memory forces.

Whatever the groups, of the requests released and due within a window of x seconds
    a group of shape c ends at most   N_cm(x) = floor((x - L_cm) / b_cm) + 1   of model m, and none if x < L_cm,
    with L the time of a request in an idle group and b that in its slowest stage; and at most N_c(x) of all models,
    with the least L and the least b of them (a group's stages take one request at a time, in order).
Sets        c in C shapes, m in M models, s in S streams
Variables   n_c groups of a shape;  k_mc groups of it on which m lives;  u_s requests on time, v_sm those of a model
Objective   max sum of u_s over that of J_s, the requests of a stream
(C1) sum_c a_c n_c <= D;  the same over shapes of at least s devices, with the R_s of the groups
(C2) k_mc <= n_c;  sum_m k_mc w_cm <= B n_c;  sum_m k_mc <= n_c times the most models that one group holds
(C3) u_s <= sum_m v_sm
(C4) u_s <= most requests of s of which every window holds no more than sum_c n_c N_c
(C5) v_sm <= most requests of m of which every window holds no more than sum_c k_mc N_cm
The most requests of (C4) and (C5) are a linear program over the requests whose rows are consecutive ones, so that its
dual is a shortest path over the requests in their order; each path is a row, linear in n or k, and rows are added until
none is broken (Kelley's cutting planes). Every program on the way is a bound, so that one may stop at any time.
Beside it the pooled work: all devices as one machine, each request with its least device seconds (`schedules.on_time`).
Where engines batch, the bound is their pooled work alone (`_batched_work`).
Counts are taken as they may be, not whole, and requests may choose their group with foresight; this leaves the gap.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.solvers.backends.model import Expr, LinearModel, total
from planner.solvers.backends.solve import solve
from planner.solvers.placement.batched_groups import Batches
from planner.solvers.placement.group_streams import Stream
from planner.solvers.placement.shared_groups import GroupShape, SharedGroups
from planner.solvers.schedules.on_time import most_on_time

FINE_S, COARSE_S, KNEE = 5e-4, 1e-2, 16_000  # grid of window lengths: fine steps up to the knee
DENSE, GROWTH = 300, 1.03  # requests of the windows that are looked at
MOST_ROUNDS = 25
PATIENCE, GAIN = 4, 1e-4  # rounds that together lower the bound by less end it
ROUNDING = 1e-9  # of a limit: what floating point may take of it
CLOSE = 2e-4  # of a stream's requests: rows broken by less are not added


@dataclass(frozen=True, slots=True)
class Row:
    """A path: at most `units` plus, for each window on it, what groups end in it."""

    units: int
    windows: Ints  # steps of the grid

    def room_C(self, ended_CX: Floats) -> Floats:
        """Of one group of each shape, over all windows. [C]"""
        return np.asarray(ended_CX[:, self.windows].sum(axis=1))


@dataclass(slots=True)
class _Rows:
    """Those found so far, for each stream, and for each stream and model."""

    pooled: list[list[Row]]
    own: list[list[list[Row]]]


def bound_on_time(problem: SharedGroups, streams: Sequence[Stream], *, time_limit_s: float | None = None) -> float:
    """No groups have a larger share of all judged requests on time; pooled work alone where engines batch.

    1 where there are none.
    """
    streams = [stream for stream in streams if stream.judged]
    if not streams:
        return 1.0
    if problem.batches is not None:
        return sum(_batched_work(problem, problem.batches, stream) for stream in streams) / _judged(streams)
    work = sum(_pooled_work(problem, stream) for stream in streams) / _judged(streams)
    return min(work, _by_windows(problem, streams, time_limit_s))


def _judged(streams: Sequence[Stream]) -> int:
    return sum(stream.judged for stream in streams)


def _pooled_work(problem: SharedGroups, stream: Stream) -> int:
    """Requests on time if all devices were one machine; deadlines are those of whoever comes before, where later."""
    least_M = np.full(problem.models, np.inf)
    for index in problem.usable:
        shape = problem.shapes[index]
        stages = shape.stage_s_MK.shape[1]
        device_s = shape.latency_s_M * shape.devices / stages
        least_M = np.where(problem.hosts(index), np.minimum(least_M, device_s), least_M)
    served = np.isfinite(least_M[stream.model])
    release, model = stream.time_s[served], stream.model[served]
    deadline = np.maximum.accumulate(release + problem.limit_s_M[model])
    return most_on_time(release, deadline, least_M[model] / problem.devices)


def _batched_work(problem: SharedGroups, batches: Batches, stream: Stream) -> int:
    """Judged requests on time if all devices were one machine, and all steps as full as suits them best.

    A step takes its sequences or prompt tokens times the least that one of them takes in any step, so that a request
    takes the sum of its own. Beside it the places of engines: a group of a devices has as many of a model as its engine
    takes sequences, B, and a request is in one for its steps at least, at their shortest. So its steps times a are of
    the B D that a second of all devices has. Requests that warm the groups up are left out, which delays nobody, and so
    are those that are late on an idle group.
    """
    assert stream.prompt is not None
    assert stream.answer is not None
    token_CM, sequence_CM = _least_prefill_s(batches), _least_decode_s(batches)
    step_CM = batches.decode_s_CMBX[:, :, 1:].min(axis=(2, 3))
    token_M, sequence_M, step_M = (np.full(problem.models, np.inf) for _ in range(3))
    for index in problem.usable:
        shape = problem.shapes[index]
        hosted_M = problem.hosts(index)
        token_M = np.where(hosted_M, np.minimum(token_M, shape.devices * token_CM[index]), token_M)
        sequence_M = np.where(hosted_M, np.minimum(sequence_M, shape.devices * sequence_CM[index]), sequence_M)
        step_M = np.where(hosted_M, np.minimum(step_M, shape.devices * step_CM[index]), step_M)
    judged = np.arange(len(stream)) >= stream.first
    whole = stream.prompt + stream.answer <= batches.room_M[stream.model]
    kept = judged & whole & np.isfinite(token_M[stream.model]) & _in_time_alone(problem, batches, stream)
    release, model, answer = stream.time_s[kept], stream.model[kept], stream.answer[kept]
    ttft_s, tpot_s, latency_s = batches.limit_s_M3[model].T
    paced_s = np.where(answer > 1, tpot_s * np.maximum(answer - 1, 1), 0.0)
    deadline = np.maximum.accumulate(release + np.minimum(latency_s, ttft_s + paced_s))
    work = (stream.prompt[kept] * token_M[model] + (answer - 1) * sequence_M[model]) / problem.devices
    places = (stream.prompt[kept] * token_M[model] + (answer - 1) * step_M[model]) / problem.devices
    within = np.isfinite(deadline)
    soon = most_on_time(release[within], deadline[within], work[within])
    placed = 0
    for m, most in enumerate(batches.most_M.tolist()):
        own = within & (model == m)
        placed += most_on_time(release[own], deadline[own], places[own] / most)
    return min(soon, placed) + int((~within).sum())


def _in_time_alone(problem: SharedGroups, batches: Batches, stream: Stream) -> Bools:
    """Requests that keep their limits where every step is of them alone, the shortest of any group of their model."""
    assert stream.prompt is not None
    assert stream.answer is not None
    hosted_CM = np.array([problem.hosts(index) for index in problem.usable])
    steps_CM = _least_prefill_s(batches), batches.decode_s_CMBX[:, :, 1:].min(axis=(2, 3))
    token_M, step_M = (np.where(hosted_CM, own[list(problem.usable)], np.inf).min(axis=0) for own in steps_CM)
    ttft_s, tpot_s, latency_s = batches.limit_s_M3[stream.model].T * (1.0 + ROUNDING)
    first_s, decodes = stream.prompt * token_M[stream.model], stream.answer > 1
    whole_s = first_s + np.where(decodes, (stream.answer - 1) * step_M[stream.model], 0.0)
    paced = ~decodes | (step_M[stream.model] <= tpot_s)
    return np.asarray((first_s <= ttft_s) & paced & (whole_s <= latency_s))


def _least_prefill_s(batches: Batches) -> Floats:
    """Of a prompt token in any step: a line between two points of an axis is least at one of them. [C, M]"""
    rate = batches.prefill_s_CMT / batches.prompt_T
    going_on = np.diff(batches.prefill_s_CMT[..., -2:])[..., 0] / np.diff(batches.prompt_T[-2:])[0]
    return np.asarray(np.minimum(rate.min(axis=-1), going_on))


def _least_decode_s(batches: Batches) -> Floats:
    """Of a sequence in any step that decodes. [C, M]"""
    sequences = np.arange(1, batches.decode_s_CMBX.shape[2])[:, None]
    return np.asarray((batches.decode_s_CMBX[:, :, 1:] / sequences).min(axis=(2, 3)))


def _by_windows(problem: SharedGroups, streams: Sequence[Stream], time_limit_s: float | None) -> float:
    started_s = time.perf_counter()
    span_s = max(float(stream.time_s[-1] - stream.time_s[0]) for stream in streams) + float(problem.limit_s_M.max())
    grid = lengths(span_s)
    pooled_CX = np.array([_pooled(problem, index, grid) for index in problem.usable])
    kinds = _kinds(problem)
    own_KCX = {
        kind: np.array([_own(problem, index, kind, grid) for index in problem.usable]) for kind in sorted(set(kinds))
    }
    rows = _Rows([[] for _ in streams], [[[] for _ in range(problem.models)] for _ in streams])
    bounds = [1.0]
    for _ in range(MOST_ROUNDS):
        program = _Program(problem, streams, rows, pooled_CX, own_KCX, kinds)
        bounds.append(min(bounds[-1], program.bound))
        if bounds[-1] < 1.0 and bounds[-min(len(bounds), PATIENCE)] - bounds[-1] < GAIN:
            break
        if not _separated(problem, streams, rows, program, pooled_CX, own_KCX, kinds):
            break
        if time_limit_s is not None and time.perf_counter() - started_s > time_limit_s:
            break
    return bounds[-1]


def lengths(longest_s: float) -> Floats:
    """The lengths of windows that are told apart, up to one no shorter than the longest [s]."""
    coarse = max(math.ceil((longest_s - KNEE * FINE_S) / COARSE_S), 0) + 1
    return np.concatenate([np.arange(KNEE + 1) * FINE_S, KNEE * FINE_S + np.arange(1, coarse + 1) * COARSE_S])


def ended(grid_s: Floats, latency_s: float, bottleneck_s: float) -> Floats:
    """Requests that one group can end of those released and due within windows of these lengths."""
    counted = np.floor((grid_s - latency_s) / bottleneck_s + 1e-9) + 1.0
    return np.where(grid_s >= latency_s - 1e-12, counted, 0.0)


def _kinds(problem: SharedGroups) -> list[int]:
    """Of every model, the first that is served alike and weighs as much: they share tables."""
    known: dict[bytes, int] = {}
    kinds = []
    for model in range(problem.models):
        weights = np.array([shape.weight_bytes_M[model] for shape in problem.shapes])
        figures = problem.stage_s_CMK[:, model].tobytes() + weights.tobytes() + problem.limit_s_M[model].tobytes()
        kinds.append(known.setdefault(figures, model))
    return kinds


def _pooled(problem: SharedGroups, index: int, grid_s: Floats) -> Floats:
    """Of all models that a shape serves: as if each had the least latency and the least bottleneck of them."""
    hosted, shape = problem.hosts(index), problem.shapes[index]
    if not hosted.any():
        return np.zeros_like(grid_s)
    return ended(grid_s, float(shape.latency_s_M[hosted].min()), float(shape.bottleneck_s_M[hosted].min()))


def _own(problem: SharedGroups, index: int, model: int, grid_s: Floats) -> Floats:
    shape = problem.shapes[index]
    if not problem.hosts(index)[model]:
        return np.zeros_like(grid_s)
    return ended(grid_s, float(shape.latency_s_M[model]), float(shape.bottleneck_s_M[model]))


def most_models(problem: SharedGroups, shape: GroupShape) -> int:
    """That one group holds: the lightest that fit together."""
    return int(np.searchsorted(np.cumsum(np.sort(shape.weight_bytes_M)), problem.memory_bytes * (1 + 1e-12), "right"))


class _Program:
    """The linear program of all rows so far, solved."""

    def __init__(
        self,
        problem: SharedGroups,
        streams: Sequence[Stream],
        rows: _Rows,
        pooled_CX: Floats,
        own_KCX: dict[int, Floats],
        kinds: Sequence[int],
    ) -> None:
        model, shapes = LinearModel(maximising=True), [problem.shapes[index] for index in problem.usable]
        n = [model.continuous(f"n[{c}]", 0.0, problem.devices / shape.devices) for c, shape in enumerate(shapes)]
        k = [[model.continuous(f"k[{m},{c}]") for c in range(len(shapes))] for m in range(problem.models)]
        u = [model.continuous(f"u[{s}]", 0.0, float(len(stream))) for s, stream in enumerate(streams)]
        model.add(total(shape.devices * n[c] for c, shape in enumerate(shapes)) <= float(problem.devices), "C1")
        for least, room in problem.room_at:
            large = [shape.devices * n[c] for c, shape in enumerate(shapes) if shape.devices >= least]
            model.add(total(large) <= float(room), f"C1 of {least}")
        for c, shape in enumerate(shapes):
            self._memory(model, problem, shape, n[c], [row[c] for row in k], c)
        v_SM = []
        for s, stream in enumerate(streams):
            counts = np.bincount(stream.model, minlength=problem.models)
            v = [model.continuous(f"v[{s},{m}]", 0.0, float(count)) for m, count in enumerate(counts)]
            v_SM.append(v)
            model.add(u[s] <= total(v), f"C3[{s}]")
            for index, row in enumerate(rows.pooled[s]):
                self._row(model, u[s], row, n, pooled_CX, f"C4[{s},{index}]")
            for m in range(problem.models):
                for index, row in enumerate(rows.own[s][m]):
                    self._row(model, v[m], row, k[m], own_KCX[kinds[m]], f"C5[{s},{m},{index}]")
        model.objective = total(each * (1.0 / _judged(streams)) for each in u).terms
        result = solve(model)
        assert result.solution is not None
        assert result.bound is not None
        value = result.solution.value
        self.bound = float(result.bound)
        self.n_C = np.array([value(each) for each in n])
        self.k_MC = np.array([[value(each) for each in row] for row in k])
        self.u_S = np.array([value(each) for each in u])
        self.v_SM = np.array([[value(each) for each in row] for row in v_SM])

    @staticmethod
    def _memory(
        model: LinearModel, problem: SharedGroups, shape: GroupShape, n: Expr, k: Sequence[Expr], c: int
    ) -> None:
        for m, each in enumerate(k):
            held = shape.weight_bytes_M[m] <= problem.memory_bytes
            model.add(each <= (n if held else 0.0), f"C2[{m},{c}]")
        shares = [
            float(w) / problem.memory_bytes * each
            for w, each in zip(shape.weight_bytes_M, k, strict=True)
            if w <= problem.memory_bytes
        ]
        model.add(total(shares) <= n, f"C2 bytes[{c}]")
        model.add(total(k) <= float(most_models(problem, shape)) * n, f"C2 models[{c}]")

    @staticmethod
    def _row(model: LinearModel, left: Expr, row: Row, groups: Sequence[Expr], ended_CX: Floats, name: str) -> None:
        room = row.room_C(ended_CX)
        model.add(left <= total([float(row.units), *(float(r) * g for r, g in zip(room, groups, strict=True))]), name)


def _separated(
    problem: SharedGroups,
    streams: Sequence[Stream],
    rows: _Rows,
    program: _Program,
    pooled_CX: Floats,
    own_KCX: dict[int, Floats],
    kinds: Sequence[int],
) -> bool:
    """Whether rows were added that the program's solution breaks."""
    added = False
    for s, stream in enumerate(streams):
        close = CLOSE * len(stream)
        row, value = shortest(stream.time_s, problem.limit_s_M[stream.model], program.n_C @ pooled_CX)
        if value < program.u_S[s] - close:
            rows.pooled[s].append(row)
            added = True
        for m in range(problem.models):
            times = stream.time_s[stream.model == m]
            room = program.k_MC[m] @ own_KCX[kinds[m]]
            row, value = shortest(times, np.full(len(times), problem.limit_s_M[m]), room)
            if value < program.v_SM[s, m] - close / problem.models:
                rows.own[s][m].append(row)
                added = True
    return added


def shortest(time_s: Floats, limit_s: Floats, room_X: Floats) -> tuple[Row, float]:
    """The path of the most requests that windows have room for, and how many these are."""
    from planner.solvers.compiled import on_time

    deadline = np.maximum.accumulate(time_s + limit_s) if len(time_s) else time_s
    units, windows, value = on_time.least_path(time_s, deadline, room_X, FINE_S, COARSE_S, KNEE, DENSE, GROWTH)
    return Row(int(units), windows), float(value)
