"""How many sequences engines may take: one number for all, or of each model as many as its own limit has time for."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from planner.kinds.place.prices import priced
from planner.kinds.place.setting import PlaceSetting, batch_sizes
from planner.solvers.placement.shared_groups import SharedGroups

STEP_SHARES = (1.0, 0.5, 0.25)  # of a limit between tokens that full steps take, the rest being of prompts and others
BETWEEN = 1  # of the limits of an engine, that between tokens


def loosest(setting: PlaceSetting) -> SharedGroups:
    """Groups that can do what those of any sizes can, of each model its own: engines as small as with one sequence,
    that take as many as any has room for.
    """
    count = len(setting.workloads)
    least = setting.with_batches((1,) * count) if setting.options.batching else None
    if least is None:
        return setting.groups
    widest = setting.sequences_M
    sizes = [size for size in batch_sizes(setting.options.max_batch) if size > max(widest)]
    if sizes:  # that some model has no room for
        own = [[size if m == other else 1 for other in range(count)] for m in range(count) for size in sizes]
        roomy = [each for each in own if setting.with_batches(each) is not None]
        widest = tuple(int(most) for most in np.max([widest, *roomy], axis=0))
    prices = priced(setting.resolved, setting.options, setting.calibration, widest)
    return replace(least.groups, batches=prices.batches)


def narrower(setting: PlaceSetting) -> Iterator[PlaceSetting]:
    """This one, and the same with every smaller number of sequences that engines may take, the largest first."""
    yield setting
    for sequences in batch_sizes(max(setting.sequences_M) - 1):
        own = setting.with_batches((sequences,) * len(setting.workloads))
        if own is not None:
            yield own


def paced(setting: PlaceSetting, share: float) -> Iterator[PlaceSetting]:
    """As `narrower`, without sequences of a model with which full steps take more than a share of its limit between
    tokens, on the group where they are fastest; those where models differ in them.
    """
    paced_M, known = _paced_M(setting, share), set[tuple[int, ...]]()
    for sequences in batch_sizes(max(setting.sequences_M)):
        sequences_M = tuple(min(sequences, most) for most in paced_M)
        own = setting.with_batches(sequences_M) if len({*sequences_M}) > 1 and sequences_M not in known else None
        known.add(sequences_M)
        if own is not None:
            yield own


def _paced_M(setting: PlaceSetting, share: float) -> list[int]:
    """The most sequences of a model whose steps take this share of its limit; of a size that engines may take, and
    all where none does.
    """
    batches = setting.groups.batches
    if batches is None:
        return list(setting.sequences_M)
    most_M = []
    for m, workload in enumerate(setting.workloads):
        shapes = [shape for shape in setting.groups.usable if setting.groups.hosts(shape)[m]]
        context = workload.input.mean_tokens + workload.output.mean_tokens
        steps_CB = [
            [np.interp(context, batches.context_X, row) for row in batches.decode_s_CMBX[shape, m]] for shape in shapes
        ]
        step_s_B, limit_s = np.min(steps_CB, axis=0), share * batches.limit_s_M3[m, BETWEEN]
        sizes = (size for size in batch_sizes(setting.sequences_M[m]) if step_s_B[size] <= limit_s)
        most_M.append(next(sizes, setting.sequences_M[m]))
    return most_M
