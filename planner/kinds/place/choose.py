"""The choice of groups and hosts: search on some streams, the claim on others, and bounds on the latter."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import Conflict, Infeasible
from planner.kinds.place.floor import places_of
from planner.kinds.place.reached import Reached, reached
from planner.kinds.place.setting import PlaceSetting
from planner.solvers.placement.floor import Devices
from planner.solvers.placement.group_bounds import bound_on_time
from planner.solvers.placement.group_search import Effort, search
from planner.solvers.placement.group_streams import Group, Stream
from planner.solvers.placement.shared_groups import SharedGroups

SEEDS_APART = 100_003  # of one stream and the next
SEARCHED, JUDGED, CLAIMED, CLAIMED_BATCHED = range(6), range(6, 14), range(14, 24), range(14, 54)
"""Streams that groups are climbed on, that climbs are told apart on, and that the plan's figures are of: many where
engines batch, whose bursts weigh on all that run; the bound of those that do not is a program over all requests."""
PASSES = 12_000_000  # requests of one pass that a search simulates
TOKENS = 200_000_000  # that a search simulates where engines batch
WIDER = (2, 4)  # times as many sequences of an engine, tried where its own are too few


@dataclass(frozen=True, slots=True)
class Choice:
    """Groups and their devices, what they reach on the claimed streams, and the bound on the objective."""

    groups: tuple[Group, ...]
    places: tuple[Devices, ...]
    reached: Reached
    bound: float | None = None


def claimed_streams(setting: PlaceSetting) -> list[Stream]:
    """The streams that the figures of a plan are of, which nothing was chosen on."""
    return streams_of(setting, claimed(setting))


def claimed(setting: PlaceSetting) -> range:
    """Their numbers."""
    return CLAIMED_BATCHED if setting.options.batching else CLAIMED


def best_choice(setting: PlaceSetting) -> Choice:
    """Groups on all devices with most requests on time, and the bound on that.

    Raises Infeasible where a workload keeps its limits for too few of its requests.
    """
    streams = claimed_streams(setting)
    choice = _chosen(setting, setting.groups.devices, streams)
    bound = bound_on_time(setting.groups, streams)
    if choice is None or not _kept(setting, choice):
        raise _too_few(setting, choice, bound)
    return replace(choice, bound=max(bound, choice.reached.share))


def fewest_choice(setting: PlaceSetting) -> Choice:
    """Groups on the fewest devices, by bisection, that keep every workload's share; the bound is on the devices.

    Raises Infeasible where all devices are too few.
    """
    streams = claimed_streams(setting)
    best = _chosen(setting, setting.groups.devices, streams)
    if best is None or not _kept(setting, best):
        raise _too_few(setting, best, bound_on_time(setting.groups, streams))
    least = fewest_by_bound(setting, streams)
    low, high = least, setting.groups.devices
    while low < high:
        middle = (low + high) // 2
        choice = _chosen(setting, middle, streams)
        if choice is not None and _kept(setting, choice):
            best, high = choice, middle
        else:
            low = middle + 1
    used = devices_of(setting.groups, best.groups)
    return replace(best, bound=float(min(least, used)))


def devices_of(problem: SharedGroups, groups: Sequence[Group]) -> int:
    """Devices of all groups."""
    return sum(problem.shapes[group.shape].devices for group in groups)


def streams_of(setting: PlaceSetting, numbers: range) -> list[Stream]:
    """The streams of these numbers."""
    seed = setting.resolved.problem.seed
    return [setting.stream(seed + SEEDS_APART * (1 + number)) for number in numbers]


def _chosen(setting: PlaceSetting, devices: int, streams: Sequence[Stream]) -> Choice | None:
    """The best groups on so many devices; None where they do not hold all models."""
    problem = setting.on(devices)
    if problem is None:
        return None
    effort = Effort(PASSES if problem.batches is None else _affordable(setting), setting.resolved.problem.seed)
    groups = search(
        problem,
        setting.load_M,
        streams_of(setting, SEARCHED),
        streams_of(setting, JUDGED),
        effort,
        lambda groups: bool(placed(setting, groups)),
    ).solution
    if groups is None:
        return None
    kept = tuple(sorted((group for group in groups if group.models), key=lambda group: _order(problem, group)))
    return Choice(kept, placed(setting, kept), reached(problem, kept, streams))


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


def _kept(setting: PlaceSetting, choice: Choice) -> bool:
    return _least_margin(setting, choice) >= 0.0


def fewest_by_bound(setting: PlaceSetting, streams: Sequence[Stream]) -> int:
    """No fewer devices have as many requests on time as all workloads ask for together."""
    rate = setting.rate_per_s_M
    wanted = float((setting.required_M * rate).sum() / rate.sum())
    low, high = 1, setting.groups.devices
    while low < high:
        middle = (low + high) // 2
        problem = setting.on(middle)
        if problem is not None and bound_on_time(problem, streams) >= wanted:
            high = middle
        else:
            low = middle + 1
    return low


def _with_wider_batches(setting: PlaceSetting, choice: Choice) -> Iterator[Conflict]:
    """The fewest sequences of an engine that keep all shares, of some more than it may have; else the best of them."""
    best, nearest = _least_margin(setting, choice), ""
    for times in WIDER if setting.options.batching else ():
        most = times * setting.options.max_batch
        wider = setting.with_batches(most)
        other = None if wider is None else _chosen(wider, wider.groups.devices, claimed_streams(wider))
        if wider is None or other is None:
            break
        if _kept(wider, other):
            nearest = f"all are kept with {most}"
            break
        if _least_margin(wider, other) > best:
            best, nearest = _least_margin(wider, other), f"{other.reached.share:.2%} of all with {most}"
    if nearest:
        yield {"limit": f"options.max_batch = {setting.options.max_batch}", "nearest": nearest}


def _least_margin(setting: PlaceSetting, choice: Choice) -> float:
    """Of the shares of models on time over those asked for; below 0 where one is not kept."""
    return float((choice.reached.share_M - setting.required_M).min())


def _too_few(setting: PlaceSetting, choice: Choice | None, bound: float) -> Infeasible:
    """What the best groups reach, and whether any could do."""
    if choice is None:
        least = setting.options.min_replicas
        conflict: list[Conflict] = [
            {"limit": f"{setting.groups.devices} GPUs", "nearest": "more of them"},
            *([Conflict(limit=f"min_replicas = {least}", nearest="fewer")] if least > 1 else ()),
            {"limit": f"{len(setting.workloads)} models in their memory", "nearest": "fewer bytes of `weights`"},
        ]
        if setting.floor is not None:
            conflict.append({"limit": "options.floor", "nearest": "less kept apart or taken"})
        return Infeasible(conflict, proved=False)
    worst = int(np.argmin(choice.reached.share_M - setting.required_M))
    wanted, share = setting.required_M[worst], choice.reached.share_M[worst]
    name = setting.workloads[worst].spec.name
    rate = setting.rate_per_s_M
    conflict = [
        {"limit": f"attainment of `{name}` = {wanted:.2%}", "nearest": f"{share:.2%}"},
        {"limit": f"{setting.groups.devices} GPUs", "nearest": "more of them"},
        {"limit": f"{rate.sum():g} requests/s", "nearest": f"{choice.reached.share * rate.sum():.4g} are on time"},
        *_with_wider_batches(setting, choice),
    ]
    return Infeasible(conflict, proved=bound < float((setting.required_M * rate).sum() / rate.sum()))
