"""The choice of groups and hosts: search on some streams, the claim on others, and bounds on the latter."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import Conflict, Infeasible
from planner.kinds.place.batch_sizes import Sized, filled, size_of_each, sizes_by_fillings
from planner.kinds.place.bounds import can_be_kept, fewest_devices, most_on_time
from planner.kinds.place.engine_sizes import loosest
from planner.kinds.place.floor import places_of
from planner.kinds.place.reached import Reached, reached
from planner.kinds.place.setting import PlaceSetting, batch_sizes
from planner.solvers.placement.floor import Devices
from planner.solvers.placement.group_homes import homes
from planner.solvers.placement.group_search import Effort, search
from planner.solvers.placement.group_streams import Group, Stream
from planner.solvers.placement.shared_groups import SharedGroups
from planner.solvers.result import Status

SEEDS_APART = 100_003  # of one stream and the next
SEARCHED, JUDGED, CLAIMED = range(6), range(6, 14), range(14, 24)
JUDGED_BATCHED, CLAIMED_BATCHED = range(54, 84), range(14, 54)
"""Streams that groups are climbed on, that climbs are told apart on, and that the plan's figures are of: many where
engines batch, whose bursts weigh on all that run; the bound of those that do not is a program over all requests."""
PASSES = 12_000_000  # requests of one pass that a search simulates
TOKENS = 200_000_000  # that a search simulates where engines batch
TRIED = 3  # numbers of sequences that are searched
BETTER = 1e-3  # share on time, by which another number must be better than the one whose filling is
FAR = -0.5  # share on time of a model beside the one asked for, from which climbs are not tried
WIDER = (2, 4)  # times as many sequences of an engine, tried where those allowed are too few


@dataclass(frozen=True, slots=True)
class Choice:
    """Groups and their devices, what they reach on the claimed streams, and the bound on the objective."""

    setting: PlaceSetting  # with the sequences that its engines take
    groups: tuple[Group, ...]
    places: tuple[Devices, ...]
    reached: Reached
    bound: float | None = None

    @property
    def least_margin(self) -> float:
        """Of the shares of models on time over those asked for; below 0 where one is not kept."""
        return float((self.reached.share_M - self.setting.required_M).min())

    @property
    def kept(self) -> bool:
        """Whether every model has the share that is asked for."""
        return self.least_margin >= 0.0


def claimed_streams(setting: PlaceSetting) -> list[Stream]:
    """The streams that the figures of a plan are of, which nothing was chosen on."""
    return streams_of(setting, claimed(setting))


def claimed(setting: PlaceSetting) -> range:
    """Their numbers."""
    return CLAIMED_BATCHED if setting.options.batching else CLAIMED


def judged_streams(setting: PlaceSetting) -> list[Stream]:
    """The streams that climbs are told apart on."""
    return streams_of(setting, JUDGED_BATCHED if setting.options.batching else JUDGED)


def streams_of(setting: PlaceSetting, numbers: range) -> list[Stream]:
    """The streams of these numbers."""
    seed = setting.resolved.problem.seed
    return [setting.stream(seed + SEEDS_APART * (1 + number)) for number in numbers]


def best_choice(setting: PlaceSetting) -> Choice:
    """Groups on all devices with most requests on time, and the bound on that.

    Raises Infeasible where a workload keeps its limits for too few of its requests.
    """
    streams = claimed_streams(setting)
    choice = chosen(setting, setting.groups.devices, streams)
    if choice is None or not choice.kept:
        raise none_kept(setting, choice, streams)
    return replace(choice, bound=max(most_on_time(setting, streams), choice.reached.share))


def fewest_choice(setting: PlaceSetting) -> Choice:
    """Groups on the fewest devices, by bisection, that keep every workload's share; the bound is on the devices.

    Raises Infeasible where all devices are too few.
    """
    streams = claimed_streams(setting)
    best = chosen(setting, setting.groups.devices, streams, kept_will_do=True)
    if best is None or not best.kept:
        raise none_kept(setting, best, streams)
    least = fewest_devices(setting, streams)
    low, high = least, devices_of(setting.groups, best.groups)
    while low < high:
        middle = (low + high) // 2
        choice = chosen(setting, middle, streams, kept_will_do=True)
        if choice is not None and choice.kept:
            best, high = choice, min(middle, devices_of(setting.groups, choice.groups))
        else:
            low = middle + 1
    used = devices_of(setting.groups, best.groups)
    return replace(best, bound=float(min(least, used)))


def devices_of(problem: SharedGroups, groups: Sequence[Group]) -> int:
    """Devices of all groups."""
    return sum(problem.shapes[group.shape].devices for group in groups)


def chosen(
    setting: PlaceSetting, devices: int, streams: Sequence[Stream], *, kept_will_do: bool = False
) -> Choice | None:
    """The best groups on so many devices that keep all shares, with the sequences of an engine that suit them.

    Of sizes whose fillings do alike another than the best is taken where its groups are clearly better on the streams
    that climbs are told apart on. Sizes of each model's own are among them where their filling does better, but not
    where others keep all shares and that will do. Where none keep them, the nearest, a filling where it is proven that
    none can; None where no groups hold all models.
    """
    searched = streams_of(setting, SEARCHED)
    sizes = sizes_by_fillings(setting, devices, searched, _has_room)[:TRIED]
    judged = sum(stream.judged for stream in searched)
    if sizes and sizes[0].late > judged and not can_be_kept(setting, streams):
        return _choice(sizes[0], sizes[0].filled.groups[0], streams)
    every = [_searched(size, searched, streams) for size in sizes]
    if not (kept_will_do and any(choice.kept for _, choice in every)):
        own = size_of_each(setting, devices, searched, _has_room)
        if own is not None and (not sizes or own.late < sizes[0].late):
            every.append(_searched(own, searched, streams))
    kept = [(share, choice) for share, choice in every if choice.kept]
    if kept:
        best, first = max(kept, key=lambda pair: pair[0]), kept[0]
        return best[1] if best[0] > first[0] + BETTER else first[1]
    return max((choice for _, choice in every), key=lambda choice: choice.least_margin, default=None)


def _searched(size: Sized, searched: Sequence[Stream], streams: Sequence[Stream]) -> tuple[float, Choice]:
    """The best groups with engines of a size, behind their share of the judged streams."""
    setting, problem = size.setting, size.problem
    effort = Effort(PASSES if problem.batches is None else _affordable(setting), setting.resolved.problem.seed)
    result = search(
        problem,
        setting.load_M,
        searched,
        judged_streams(setting),
        effort,
        lambda groups: _has_room(setting, groups),
        size.filled,
    )
    assert result.solution is not None
    assert result.objective is not None
    return result.objective, _choice(size, result.solution, streams)


def _choice(size: Sized, solution: Sequence[Group], streams: Sequence[Stream]) -> Choice:
    """Groups in order on their devices, without those that are empty."""
    setting, problem = size.setting, size.problem
    groups = tuple(sorted((group for group in solution if group.models), key=lambda group: _order(problem, group)))
    return Choice(setting, groups, placed(setting, groups), reached(problem, groups, streams))


def _has_room(setting: PlaceSetting, groups: tuple[Group, ...]) -> bool:
    """Whether the floor has room for groups."""
    return bool(placed(setting, groups))


def placed(setting: PlaceSetting, groups: Sequence[Group]) -> tuple[Devices, ...]:
    """The devices of every group; none where the floor has no room that keeps copies apart."""
    return places_of(setting.pool, setting.floor, setting.kinds(groups), setting.options)


def _order(problem: SharedGroups, group: Group) -> tuple[int, tuple[int, ...]]:
    """Large groups first, so that each lies within a node where they are laid out in order."""
    return -problem.shapes[group.shape].devices, group.models


def _affordable(setting: PlaceSetting) -> int:
    """Requests that a search simulates, by their tokens."""
    means = [workload.output.mean_tokens for workload in setting.workloads]
    return int(TOKENS / max(float(np.average(means, weights=setting.rate_per_s_M)), 1.0))


def none_kept(setting: PlaceSetting, nearest: Choice | None, streams: Sequence[Stream]) -> Infeasible:
    """What the best groups reach, and whether any could do."""
    if nearest is None:
        return _no_room(setting)
    reached, required_M = nearest.reached, setting.required_M
    worst = int(np.argmin(reached.share_M - required_M))
    conflict: list[Conflict] = [
        {
            "limit": f"attainment of `{setting.workloads[worst].spec.name}` = {required_M[worst]:.2%}",
            "nearest": f"{reached.share_M[worst]:.2%}",
        },
        {"limit": f"{setting.groups.devices} GPUs", "nearest": "more of them"},
        {
            "limit": f"{setting.rate_per_s_M.sum():g} requests/s",
            "nearest": f"{reached.share * setting.rate_per_s_M.sum():.4g} are on time",
        },
        *_with_wider_batches(setting, nearest, streams),
    ]
    return Infeasible(conflict, proved=not can_be_kept(setting, streams))


def _no_room(setting: PlaceSetting) -> Infeasible:
    """No groups that were tried hold all models; proven where none can, and nothing was said of where they stand."""
    least = setting.options.min_replicas
    conflict: list[Conflict] = [
        {"limit": f"{setting.groups.devices} GPUs", "nearest": "more of them"},
        *([Conflict(limit=f"min_replicas = {least}", nearest="fewer")] if least > 1 else ()),
        {"limit": f"{len(setting.workloads)} models in their memory", "nearest": "fewer bytes of `weights`"},
    ]
    if setting.floor is not None:
        conflict.append({"limit": "options.floor", "nearest": "less kept apart or taken"})
    return Infeasible(conflict, proved=homes(loosest(setting)).status is Status.INFEASIBLE)


def _with_wider_batches(setting: PlaceSetting, nearest: Choice, streams: Sequence[Stream]) -> Iterator[Conflict]:
    """The fewest sequences of an engine that keep all shares, of some more than it may have; else the best of them.

    Fillings are asked first, and climbs from those of the most sequences alone, unless these are far from it.
    """
    asked, searched = setting.options.max_batch, streams_of(setting, SEARCHED)
    wider: list[Sized] = []
    for times in WIDER if setting.options.batching and {batch_sizes(asked)[0]} == {*setting.sequences_M} else ():
        own = setting.with_batches(batch_sizes(times * asked)[:1] * len(setting.workloads))
        size = None if own is None else filled(own, own.groups.devices, searched, _has_room)
        wider += [] if size is None else [size]
    best, told = nearest.least_margin, ""
    for size in wider:
        choice = _choice(size, size.filled.groups[0], streams)
        if size is wider[-1] and FAR < choice.least_margin < 0.0:
            choice = _searched(size, searched, streams)[1]
        if choice.kept:
            told = f"all are kept with {size.sequences}"
            break
        if choice.least_margin > best:
            best, told = choice.least_margin, f"{choice.reached.share:.2%} of all with {size.sequences}"
    if told:
        yield {"limit": f"options.max_batch = {asked}", "nearest": told}
