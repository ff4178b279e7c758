"""Estimates cases: prices the steps of those that share a cost model (`batches`), then simulates or solves the mean.

Every loop is settled in the mean (`mean_field.settle`); times, with opening bursts and queues, are those of the load
simulated request by request (`estimate.closed_loop`); the rate of a closed loop follows from them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.arrays import Floats
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.spread import ErrorSpread, features_of
from planner.engines.load import release_of
from planner.estimate.batches import Batch, Memory, batch_of, groups_of, sizes_of
from planner.estimate.case import Case, Refused
from planner.estimate.closed_loop import simulate_loops
from planner.estimate.frame import Added, Frame, Pace, idle_ttft_s, loop_of, pace_of, settled, taken
from planner.estimate.mean_field import Settled
from planner.estimate.own_runs import Told, told_by_runs
from planner.estimate.tails import Percentiles, tails_of
from planner.hardware.profiles.store import ProfileStore
from planner.kinds.serve.steady.shapes import InstanceShape, halving_rule, placing_rule

FEWEST_ROUNDS = 2.0  # of all clients: shorter benchmarks are measured from their burst to their last answer
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one case is predicted to do; times of a mean request."""

    ttft_s: float
    tpot_s: float
    output_tokens_per_s_per_gpu: float
    memory_bytes: float
    ttft_s_interval: Interval | None = None  # 80 %; None where the calibration holds no spread
    tpot_s_interval: Interval | None = None
    percentiles: Percentiles | None = None  # where they were asked for


def evaluate(
    cases: Sequence[Case], store: ProfileStore | None, *, percentiles: bool = False, near: bool = True
) -> list[Estimate | Refused]:
    """An estimate, with percentiles where they are asked for, or why there is none, for every case, in order.

    Of one's own runs, those `near` a case move it more than others of its group; else all steps of a group alike.
    """
    results: dict[int, Estimate | Refused] = {}
    groups: list[list[int]] = []
    for members in groups_of(cases, tables=store is not None):
        arch = cases[members[0]].arch
        reasons = arch.unsupported_parts() + [f"{part} of unknown size" for part in arch.parts_beside(sized=False)]
        if not reasons:
            groups.append(members)
        for index in members if reasons else ():
            results[index] = Refused(cases[index].id, f"{arch.name}: unsupported {'; '.join(reasons)}")
    for kind in _by_calibration(cases, groups):
        batches = [batch_of([cases[i] for i in members], store) for members in kind]
        for members, estimates in zip(kind, _estimates(batches, percentiles=percentiles, near=near), strict=True):
            results.update(zip(members, estimates, strict=True))
    return [results[index] for index in range(len(cases))]


def _by_calibration(cases: Sequence[Case], groups: list[list[int]]) -> list[list[list[int]]]:
    """The groups, those of one calibration together."""
    kinds: dict[str, list[list[int]]] = {}
    for members in groups:
        kinds.setdefault(cases[members[0]].calibration, []).append(members)
    return list(kinds.values())


def _estimates(batches: list[Batch], *, percentiles: bool, near: bool) -> list[list[Estimate | Refused]]:
    """The estimates of batches that share a calibration: steps are priced batch by batch, loops run all at once."""
    all_sizes = sizes_of(batches)
    memories = [batch.memory(sizes) for batch, sizes in zip(batches, all_sizes, strict=True)]
    ends = np.cumsum([len(batch.cases) for batch in batches]).tolist()
    places = [range(end - len(batch.cases), end) for batch, end in zip(batches, ends, strict=True)]
    added = Added.of([batch.costs.engine for batch in batches for _ in batch.cases])
    cases = [case for batch in batches for case in batch.cases]
    known = load_calibration(cases[0].calibration)
    told = told_by_runs(known, cases) if near else Told.nothing(len(cases))
    longer = (told.decode_longer, told.decode_longer, told.prefill_longer, told.prefill_longer)

    def paced(batch_N: Floats | None = None) -> tuple[Frame, Pace]:
        parts = [
            batch.priced(sizes, memory, None if batch_N is None else batch_N[place.start : place.stop])
            for batch, sizes, memory, place in zip(batches, all_sizes, memories, places, strict=True)
        ]
        frame = Frame.gathered([frame for frame, _ in parts], places)
        seconds = [np.concatenate(each) for each in zip(*(seconds for _, seconds in parts), strict=True)]
        return frame, pace_of(frame, [each * own for each, own in zip(seconds, longer, strict=True)], added)

    frame, pace = paced()
    if (frame.clients == 0).any():
        frame, pace = paced(_batch_met(frame, settled(frame, pace, added)))
    times = run(frame, pace, added)
    tails = tails_of(frame, pace, added) if percentiles else [None] * len(frame.isl)
    spreads = [known.spreads_of((batch.group,)) for batch in batches]
    features = features_of(times.ttft_s, idle_ttft_s(frame, pace, added))
    estimates = []
    for batch, memory, members, spread in zip(batches, memories, places, spreads, strict=True):
        own, part = taken(times, list(members)), slice(members.start, members.stop)
        intervals = _intervals(spread, own, features[part], told.half[part])
        estimates.append(_of_batch(batch, memory, own, [*intervals, tails[part]]))
    return estimates


def _batch_met(frame: Frame, rest: Settled) -> Floats:
    """What steps [N] are priced up to: of an open load twice the batch at rest, half of which is priced too."""
    twice = np.clip(np.ceil(2.0 * rest.decoding), 2.0, np.maximum(frame.most_decoding, 1.0))
    met = (frame.clients == 0) & np.isfinite(rest.ttft_s)
    return np.where(met, np.minimum(twice, frame.full_batch), frame.full_batch)


def _intervals(
    spreads: Mapping[str, ErrorSpread], times: Settled, features: Floats, half: Floats
) -> list[list[Interval | None]]:
    """80 % intervals of both times of each case; None where the calibration holds no spread.

    `half` of the width of the logarithm of TPOT is told by runs, or NaN.
    """

    def ends(name: str, values: Floats, told: Floats) -> list[Interval | None]:
        if name not in spreads:
            return [None] * len(values)
        low, high = spreads[name].bounds(values, features)
        low, high = np.where(told >= 0, values * np.exp(-told), low), np.where(told >= 0, values * np.exp(told), high)
        return list(zip(low.tolist(), high.tolist(), strict=True))

    return [ends("ttft", times.ttft_s, np.full_like(half, np.nan)), ends("tpot", times.tpot_s, half)]


def _of_batch(
    batch: Batch, memory: Memory, times: Settled, beside: Sequence[Sequence[Any]]
) -> list[Estimate | Refused]:
    """An estimate or a refusal for every case, of the times of its loop, with what stands beside them."""
    used_bytes = memory.used_bytes(times.decoding)
    return [
        _refused(i, case, times, memory.room_bytes)
        or Estimate(
            float(times.ttft_s[i]),
            float(times.tpot_s[i]),
            float(times.rate_per_s[i] * case.osl / case.gpus),
            float(used_bytes[i]),
            *(values[i] for values in beside),
        )
        for i, case in enumerate(batch.cases)
    ]


def _refused(i: int, case: Case, settled: Settled, room: Floats) -> Refused | None:
    """Why there is no estimate of a case; None where there is one."""
    reason = _uncut(case) or _unplaced(case)
    if reason is None and case.preempts and case.prefill is not None:
        reason = "preemption is replayed where prompts and answers share instances, and prefill runs apart here"
    if reason is None and room[i] < 0:
        reason = f"out of memory: weights and workspace exceed a device by {-room[i] / 1e9:.2f} GB"
    if reason is None and not np.isfinite(settled.ttft_s[i]):
        reason = f"saturated: at most {settled.rate_per_s[i]:.3g} requests/s can be served"
    return None if reason is None else Refused(case.id, reason)


def _uncut(case: Case) -> str | None:
    """Why steps cannot be cut in two batches as a case says, None where they can or need not be."""
    for part in (case.prefill, case.decode):
        if part is not None and part.micro_batches > 1:
            shape = InstanceShape(part.tp, part.pp, part.dp, part.moe_tp, part.ep, part.micro_batches)
            rule = halving_rule(shape, case.arch, release_of(case.engine, None))
            if rule is None and case.draft_tokens:
                rule = "drafts are verified in steps of one batch"
            if rule is not None:
                return rule
    return None


def _unplaced(case: Case) -> str | None:
    """Why experts cannot be placed by load as a case says, None where they can or need not be."""
    parts = (part for part in (case.prefill, case.decode) if part is not None)
    shapes = (
        InstanceShape(part.tp, part.pp, part.dp, part.moe_tp, part.ep, redundant=part.redundant) for part in parts
    )
    return next((rule for shape in shapes if (rule := placing_rule(shape, case.arch)) is not None), None)


def run(frame: Frame, pace: Pace, added: Added) -> Settled:
    """All loops settled; times of those that can be served as simulated. Tokens that a step yields share it."""
    rested = settled(frame, pace, added)
    served = np.isfinite(rested.ttft_s)
    if not served.any():
        return rested
    frame, rest = taken(frame, served), taken(rested, served)
    simulated = simulate_loops(loop_of(frame, taken(pace, served), taken(added, served)))
    ttft, tpot = simulated.ttft_s, simulated.tpot_s / frame.yielded
    units = np.where(frame.disaggregated > 0, 1.0, frame.decode_ranks)  # that are simulated apart
    by_law = frame.clients / (ttft + (frame.osl - 1.0) * tpot)  # Little's
    closed = np.where(frame.requests_per_client < FEWEST_ROUNDS, simulated.rate_per_s * units, by_law)
    rate = np.where(frame.clients > 0, closed, rest.rate_per_s)
    rate_per_s, ttft_s, tpot_s = (column.copy() for column in (rested.rate_per_s, rested.ttft_s, rested.tpot_s))
    rate_per_s[served], ttft_s[served], tpot_s[served] = rate, ttft, tpot
    return Settled(rate_per_s, ttft_s, tpot_s, rested.decoding)
