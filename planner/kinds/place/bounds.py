"""What no groups can do, whatever their engines: bounds over all sizes of engines, each model's its own."""

import math
from collections.abc import Sequence

import numpy as np

from planner.kinds.place.engine_sizes import loosest
from planner.kinds.place.setting import PlaceSetting, on_devices
from planner.solvers.placement.group_bounds import bound_on_time
from planner.solvers.placement.group_streams import Stream
from planner.solvers.placement.shared_groups import SharedGroups

ROUNDING = 1e-9  # of a share: what floating point may take of it


def most_on_time(setting: PlaceSetting, streams: Sequence[Stream]) -> float:
    """No groups have a larger share of the judged requests of the streams on time."""
    return bound_on_time(loosest(setting), streams)


def fewest_devices(setting: PlaceSetting, streams: Sequence[Stream]) -> int:
    """No fewer devices hold all models and have as many requests on time as all workloads ask for together; all of them
    where none do.
    """
    wanted, groups = _wanted(setting, streams), loosest(setting)
    high = setting.groups.devices
    low = min(_holding(groups), high)
    while low < high:
        middle = (low + high) // 2
        problem = on_devices(groups, middle)
        if problem is not None and bound_on_time(problem, streams) >= wanted - ROUNDING:
            high = middle
        else:
            low = middle + 1
    return low


def _holding(groups: SharedGroups) -> int:
    """No fewer devices hold all models as often as is asked for, even were their memory one."""
    taken_CM = np.array([shape.devices * shape.weight_bytes_M for shape in (groups.shapes[c] for c in groups.usable)])
    bytes_M = max(groups.least_hosts, 1) * taken_CM.min(axis=0)
    return max(math.ceil(float(bytes_M.sum()) / groups.memory_bytes - ROUNDING), 1)


def can_be_kept(setting: PlaceSetting, streams: Sequence[Stream]) -> bool:
    """Whether bounds leave room for the shares of all workloads: of all together, and of each beside no others."""
    problem = loosest(setting)
    alone = [([stream.of(model) for stream in streams], float(share)) for model, share in enumerate(setting.required_M)]
    return bound_on_time(problem, streams) >= _wanted(setting, streams) - ROUNDING and all(
        bound_on_time(problem, requests) >= share - ROUNDING for requests, share in alone
    )


def _wanted(setting: PlaceSetting, streams: Sequence[Stream]) -> float:
    """Share of all judged requests that is to be on time, where each workload has its own of them."""
    model = np.concatenate([stream.model[stream.first :] for stream in streams])
    return float(setting.required_M[model].mean())
