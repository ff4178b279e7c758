"""How many sequences engines take: sizes that a problem allows, told apart by what fillings of groups reach with each.

What engines of a size reach does not hang on how many they may take: a larger limit takes no size away. The plan of a
larger limit may still be worse, since few sizes are searched.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from planner.kinds.place.engine_sizes import STEP_SHARES, narrower, paced
from planner.kinds.place.setting import PlaceSetting
from planner.solvers.placement.group_fillings import Fillings, fillings
from planner.solvers.placement.group_streams import Group, Stream
from planner.solvers.placement.shared_groups import SharedGroups

WORSE = 2.0  # times the late requests of the best size so far, with which a size is behind
PATIENCE = 2  # sizes one after the other that are behind: smaller ones are not looked at
NEAR = 1.25  # times the late requests of the best size, with which another is searched too

Allowed = Callable[[PlaceSetting, tuple[Group, ...]], bool]
"""Whether groups may be chosen."""


@dataclass(frozen=True, slots=True)
class Sized:
    """A number of sequences, with the groups that searches start from; late requests count by their weights."""

    setting: PlaceSetting
    problem: SharedGroups
    filled: Fillings

    @property
    def late(self) -> int:
        """Of the best filling."""
        return self.filled.late[0]

    @property
    def sequences(self) -> int:
        """Of the engines that take most."""
        return max(self.setting.sequences_M)


def sizes_by_fillings(setting: PlaceSetting, devices: int, streams: Sequence[Stream], allowed: Allowed) -> list[Sized]:
    """The sizes with which groups on so many devices do best: the best first, of equals the largest; then others near
    it, the smallest first, so that those of a smaller limit come before what a larger one adds.

    With too few sequences requests wait, with too many fewer models have room: sizes are tried from the largest down,
    until some are clearly behind those before, or one has more requests late than its models may have where another
    has not. Late requests beyond those weigh more than all others together. Empty where no groups hold all models.
    """
    sizes = _tried(narrower(setting), devices, streams, allowed)
    best = min(sizes, key=lambda each: each.late, default=None)
    if best is None:
        return []
    near = [each for each in sizes if each.late <= NEAR * best.late and each is not best]
    return [best, *sorted(near, key=lambda each: each.sequences)]


def size_of_each(setting: PlaceSetting, devices: int, streams: Sequence[Stream], allowed: Allowed) -> Sized | None:
    """The best of sizes with which full steps of every model suit its own limit between tokens; None where no limit
    tells models apart, or no groups hold them.
    """
    sizes = [size for share in STEP_SHARES for size in _tried(paced(setting, share), devices, streams, allowed)]
    return min(sizes, key=lambda each: each.late, default=None)


def _tried(settings: Iterable[PlaceSetting], devices: int, streams: Sequence[Stream], allowed: Allowed) -> list[Sized]:
    """The sizes of settings from the largest down, as far as they are not behind."""
    sizes: list[Sized] = []
    behind, count = 0, sum(stream.judged for stream in streams)
    for own in settings:
        size = filled(own, devices, streams, allowed)
        if size is None:
            continue
        sizes.append(size)
        least = min(each.late for each in sizes)
        clearly = size.late > WORSE * least + 1 or (least > count and size.late > least + count)
        behind = behind + 1 if clearly else 0
        if behind == PATIENCE or size.late > count >= least:
            break
    return sizes


def filled(setting: PlaceSetting, devices: int, streams: Sequence[Stream], allowed: Allowed) -> Sized | None:
    """The size of a setting with its fillings; None where no groups on so many devices hold all models."""
    problem = setting.on(devices)
    if problem is None:
        return None
    starts = fillings(problem, setting.load_M, streams, partial(allowed, setting))
    return Sized(setting, problem, starts) if starts.groups else None
