"""The choice of groups and hosts: search on some streams, the claim on others, and bounds on the latter."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import Conflict, Infeasible
from planner.kinds.place.bounds import can_be_kept, fewest_devices, most_on_time
from planner.kinds.place.floor import places_of
from planner.kinds.place.reached import Reached, reached
from planner.kinds.place.setting import PlaceSetting
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
    best = chosen(setting, setting.groups.devices, streams)
    if best is None or not best.kept:
        raise none_kept(setting, best, streams)
    least = fewest_devices(setting, streams)
    low, high = least, devices_of(setting.groups, best.groups)
    while low < high:
        middle = (low + high) // 2
        choice = chosen(setting, middle, streams)
        if choice is not None and choice.kept:
            best, high = choice, min(middle, devices_of(setting.groups, choice.groups))
        else:
            low = middle + 1
    used = devices_of(setting.groups, best.groups)
    return replace(best, bound=float(min(least, used)))


def devices_of(problem: SharedGroups, groups: Sequence[Group]) -> int:
    """Devices of all groups."""
    return sum(problem.shapes[group.shape].devices for group in groups)


def chosen(setting: PlaceSetting, devices: int, streams: Sequence[Stream]) -> Choice | None:
    """The best groups on so many devices of the largest engines that keep all shares; the nearest where none do.

    What engines of a number of sequences reach does not hang on how many they may take: where more are allowed, what
    kept the shares before is at hand still. None where no groups hold all models.
    """
    nearest = None
    for own in setting.narrower():
        choice = _searched(own, devices, streams)
        if choice is not None and choice.kept:
            return choice
        if choice is not None and (nearest is None or choice.least_margin > nearest.least_margin):
            nearest = choice
    return nearest


def _searched(setting: PlaceSetting, devices: int, streams: Sequence[Stream]) -> Choice | None:
    """The best groups on so many devices; None where they do not hold all models."""
    problem = setting.on(devices)
    if problem is None:
        return None
    effort = Effort(PASSES if problem.batches is None else _affordable(setting), setting.resolved.problem.seed)
    solution = search(
        problem,
        setting.load_M,
        streams_of(setting, SEARCHED),
        judged_streams(setting),
        effort,
        lambda groups: bool(placed(setting, groups)),
    ).solution
    if solution is None:
        return None
    groups = tuple(sorted((group for group in solution if group.models), key=lambda group: _order(problem, group)))
    return Choice(setting, groups, placed(setting, groups), reached(problem, groups, streams))


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
    return Infeasible(conflict, proved=all(homes(own.groups).status is Status.INFEASIBLE for own in setting.narrower()))


def _with_wider_batches(setting: PlaceSetting, nearest: Choice, streams: Sequence[Stream]) -> Iterator[Conflict]:
    """The fewest sequences of an engine that keep all shares, of some more than it may have; else the best of them."""
    best, told = nearest.least_margin, ""
    for times in WIDER if setting.options.batching else ():
        most = times * setting.options.max_batch
        wider = setting.with_batches(most)
        other = None if wider is None else _searched(wider, wider.groups.devices, streams)
        if other is None:
            break
        if other.kept:
            told = f"all are kept with {most}"
            break
        if other.least_margin > best:
            best, told = other.least_margin, f"{other.reached.share:.2%} of all with {most}"
    if told:
        yield {"limit": f"options.max_batch = {setting.options.max_batch}", "nearest": told}
