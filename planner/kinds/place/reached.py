"""What groups reach on streams of requests: shares on time, percentiles of times, and where requests go."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.solvers.placement.batched_groups import simulated
from planner.solvers.placement.group_streams import Group, Stream
from planner.solvers.placement.shared_groups import SharedGroups, ends_s

TIMES = ("ttft", "tpot", "latency")


@dataclass(frozen=True, slots=True)
class Reached:
    """Of all judged requests of some streams, by model [M]; times [s] are inf of requests that are not answered."""

    share_M: Floats
    share: float
    times_M: tuple[dict[str, Floats], ...]  # `ttft`, `tpot` and `latency` of the requests of each model
    traffic_GM: Floats  # share of the requests of each model that goes to each group; equal where it is not told

    def quantile_s(self, model: int, name: str, quantile: float) -> float:
        """The time that this share of the requests of a model keeps, as the next one does."""
        times = np.sort(self.times_M[model][name])
        return float(times[min(int(np.ceil(quantile * len(times))), len(times)) - 1]) if len(times) else 0.0


def reached(problem: SharedGroups, groups: Sequence[Group], streams: Sequence[Stream]) -> Reached:
    """The requests of all streams simulated."""
    told = [_told(problem, groups, stream) for stream in streams]
    went = [group_J for _, _, group_J in told]
    model = np.concatenate([stream.model[stream.first :] for stream in streams])
    times = {name: np.concatenate([each[name] for each, _, _ in told]) for name in TIMES}
    late = np.concatenate([stream_late for _, stream_late, _ in told])
    count_M = np.maximum(np.bincount(model, minlength=problem.models), 1)
    share_M = 1.0 - np.bincount(model[late], minlength=problem.models) / count_M
    by_model = tuple({name: values[model == m] for name, values in times.items()} for m in range(problem.models))
    return Reached(share_M, float(1.0 - late.mean()), by_model, _traffic(problem, groups, streams, went))


def _told(
    problem: SharedGroups, groups: Sequence[Group], stream: Stream
) -> tuple[dict[str, Floats], Bools, Ints | None]:
    """Times of the judged requests of a stream, which are late, and the groups of all where engines batch."""
    came = stream.time_s[stream.first :]
    if problem.batches is None:
        whole = _known(ends_s(problem, groups, stream)[stream.first :] - came)
        return {"ttft": whole, "tpot": np.zeros_like(whole), "latency": whole}, np.isinf(whole), None
    assert stream.answer is not None
    outcomes = simulated(problem.batches, groups, stream)
    first, last = outcomes.first_s_J[stream.first :], outcomes.last_s_J[stream.first :]
    gaps = np.maximum(stream.answer[stream.first :] - 1, 1)
    times = {"ttft": _known(first - came), "tpot": _known(last - first) / gaps, "latency": _known(last - came)}
    limits = problem.batches.limit_s_M3[stream.model[stream.first :]].T
    late = np.any([times[name] > limit for name, limit in zip(TIMES, limits, strict=True)], axis=0)
    return times, late, outcomes.group_J


def _known(seconds: Floats) -> Floats:
    return np.where(np.isnan(seconds), np.inf, seconds)


def _traffic(
    problem: SharedGroups, groups: Sequence[Group], streams: Sequence[Stream], went: Sequence[Ints | None]
) -> Floats:
    counts = np.zeros((len(groups), problem.models))
    for stream, group_J in zip(streams, went, strict=True):
        if group_J is None:
            for index, group in enumerate(groups):
                counts[index, list(group.models)] = 1.0
        else:
            np.add.at(counts, (group_J[group_J >= 0], stream.model[group_J >= 0]), 1.0)
    return np.asarray(counts / np.maximum(counts.sum(axis=0), 1.0))
