"""Cells of a serving problem: placements for some of its workloads, on a part of the GPUs.

Workloads of one model may share the engines of a cell, those of different models never do. Of each such set and each
number of GPUs the placements that steady state ranks highest are cells, and so are those parts of the mix that it
prefers whose workloads share no instance with others.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from planner.kinds.serve.plan.decode import LEAST_SHARE
from planner.kinds.serve.simulated.load_streams import LoadStreams
from planner.kinds.serve.simulated.placements import MOST_PLACEMENTS, Deployment, name_of, ranked
from planner.kinds.serve.steady.roles_in_use import RoleInUse, roles_in_use
from planner.kinds.serve.steady.search import Outcome
from planner.simulate.goodput.cells import Cell

MOST_SHARED = 4  # workloads of a model of which every set may share a cell; of more, each alone or all of them
MOST_SIZES = 16  # numbers of GPUs of a cell, evenly spaced up to all
FEWEST_PLACEMENTS = 4  # of a set of workloads and a number of GPUs


def list_cells(judge: LoadStreams, outcome: Outcome) -> tuple[list[Deployment], tuple[int, ...]]:
    """All cells, and the places of those that make up the mix that steady state prefers."""
    candidates = outcome.formulated.candidates
    sets, step = list(workload_sets(judge)), -(-judge.gpus // MOST_SIZES)
    sizes = [judge.gpus - step * at for at in range(judge.gpus // step) if judge.gpus - step * at > 0]
    most = max(MOST_PLACEMENTS // (len(sets) * len(sizes)), FEWEST_PLACEMENTS)
    found = {_key(one): one for one in _preferred(judge, outcome)}
    favourite = tuple(range(len(found)))
    for workloads in sets:
        for size in sizes:
            for one in ranked(candidates, size, workloads, judge.fractions)[:most]:
                found.setdefault(_key(one), one)
    return list(found.values()), favourite


def workload_sets(judge: LoadStreams) -> Iterator[tuple[int, ...]]:
    """Sets of workloads that may share a cell."""
    models = [workload.model for workload in judge.setting.resolved.workloads]
    for model in dict.fromkeys(models):
        mine = [at for at, name in enumerate(models) if name == model]
        sizes = range(1, len(mine) + 1) if len(mine) <= MOST_SHARED else (1, len(mine))
        for size in sizes:
            yield from combinations(mine, size)


def cell_of(judge: LoadStreams, parts: Deployment) -> Cell:
    """A placement of some workloads as what the search plays."""
    candidates = judge.workshop.candidates
    return Cell(
        cell_name(judge, parts),
        lambda: judge.workshop.fleet(parts),
        parts.workloads,
        parts.gpus(candidates),
        parts.steady_per_s,
    )


def cell_name(judge: LoadStreams, parts: Deployment) -> str:
    """A cell in words, such as `chat, code: 4 x colocated tp1, batch 64, chunk 4096`."""
    served = ", ".join(judge.setting.targets[at].name for at in parts.workloads)
    return f"{served}: {name_of(judge.workshop.candidates, parts)}"


def _key(parts: Deployment) -> tuple[object, ...]:
    return parts.workloads, parts.counts, parts.loads


def _preferred(judge: LoadStreams, outcome: Outcome) -> Iterator[Deployment]:
    """The mix that steady state prefers, cut where no instance type serves both sides."""
    solution = outcome.result.solution
    assert solution is not None
    used = roles_in_use(outcome.formulated.candidates, solution)
    index_of = {id(candidate): at for at, candidate in enumerate(outcome.formulated.candidates)}
    rate = sum(solution.served_per_s)
    for workloads in _connected(used, solution.served_per_s):
        mine = [item for item in used if any(_serves(item, at, solution.served_per_s) for at in workloads)]
        counts = tuple((index_of[id(item.candidate)], item.count) for item in mine)
        shared = len({item.candidate.decodes for item in mine}) < len(mine)
        yield Deployment(counts, rate, workloads, tuple(item.load_per_s for item in mine) if shared else None)


def _connected(used: Sequence[RoleInUse], served_per_s: Sequence[float]) -> list[tuple[int, ...]]:
    """Workloads that share an instance type, directly or through others, together."""
    groups = [{at} for at in range(len(served_per_s))]
    for item in used:
        shared = {at for at in range(len(served_per_s)) if _serves(item, at, served_per_s)}
        touched = [group for group in groups if group & shared]
        if len(touched) > 1:
            groups = [group for group in groups if not group & shared] + [set().union(*touched)]
    return sorted(tuple(sorted(group)) for group in groups)


def _serves(item: RoleInUse, workload: int, served_per_s: Sequence[float]) -> bool:
    return item.load_per_s[workload] > LEAST_SHARE * served_per_s[workload]
