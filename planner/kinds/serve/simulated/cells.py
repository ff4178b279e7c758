"""Cells of a serving problem: placements for some of its workloads on a part of the GPUs.

Workloads of one model may share the engines of a cell, those of different models never do. Of each such set and each
number of GPUs the placements that steady state ranks highest are cells, and so are those parts of the mix that it
prefers whose workloads share no instance with others.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations

from planner.kinds.serve.plan.decode import LEAST_SHARE
from planner.kinds.serve.simulated.load_streams import LoadStreams
from planner.kinds.serve.simulated.placements import MOST_PLACEMENTS, Deployment, name_of, ranked
from planner.kinds.serve.steady.roles_in_use import RoleInUse
from planner.kinds.serve.steady.search import Outcome
from planner.simulate.goodput.cells import Cell

MOST_SHARED = 4  # workloads of a model of which every set may share a cell; of more, each alone or all of them
MOST_SIZES = 16  # numbers of GPUs of a cell, evenly spaced up to all
FEWEST_PLACEMENTS = 4  # of a set of workloads and a number of GPUs


def list_cells(streams: LoadStreams, outcome: Outcome) -> tuple[list[Deployment], tuple[int, ...]]:
    """All cells, and the places of those that make up the mix that steady state prefers."""
    candidates = outcome.formulated.candidates
    sets, step = list(workload_sets(streams)), -(-streams.gpus // MOST_SIZES)
    sizes = [streams.gpus - step * row for row in range(streams.gpus // step) if streams.gpus - step * row > 0]
    most = max(MOST_PLACEMENTS // (len(sets) * len(sizes)), FEWEST_PLACEMENTS)
    deployments = {_key(deployment): deployment for deployment in _preferred(outcome)}
    incumbent = tuple(range(len(deployments)))
    for workloads in sets:
        for size in sizes:
            for deployment in ranked(candidates, size, workloads, streams.fractions)[:most]:
                deployments.setdefault(_key(deployment), deployment)
    return list(deployments.values()), incumbent


def workload_sets(streams: LoadStreams) -> Iterator[tuple[int, ...]]:
    """Sets of workloads that may share a cell."""
    models = [workload.model for workload in streams.setting.resolved.workloads]
    for model in dict.fromkeys(models):
        of_model = [index for index, name in enumerate(models) if name == model]
        sizes = range(1, len(of_model) + 1) if len(of_model) <= MOST_SHARED else (1, len(of_model))
        for size in sizes:
            yield from combinations(of_model, size)


def cell_of(streams: LoadStreams, deployment: Deployment) -> Cell:
    """A placement of some workloads as what the search simulates."""
    candidates = streams.builder.candidates
    return Cell(
        cell_name(streams, deployment),
        lambda: streams.builder.fleet(deployment),
        deployment.workloads,
        deployment.gpus(candidates),
        deployment.steady_per_s,
    )


def cell_name(streams: LoadStreams, deployment: Deployment) -> str:
    """A cell in words, such as `chat, code: 4 x colocated tp1, batch 64, chunk 4096`."""
    names = ", ".join(streams.setting.targets[workload].name for workload in deployment.workloads)
    return f"{names}: {name_of(streams.builder.candidates, deployment)}"


def _key(deployment: Deployment) -> tuple[object, ...]:
    return deployment.workloads, deployment.counts, deployment.loads


def _preferred(outcome: Outcome) -> Iterator[Deployment]:
    """The mix that steady state prefers, cut where no instance type serves both sides."""
    solution, used = outcome.solution, outcome.roles
    index_of = {id(candidate): index for index, candidate in enumerate(outcome.formulated.candidates)}
    rate = sum(solution.served_per_s)
    for workloads in _connected(used, solution.served_per_s):
        roles = [item for item in used if any(_serves(item, w, solution.served_per_s) for w in workloads)]
        counts = tuple((index_of[id(item.candidate)], item.count) for item in roles)
        shared = len({item.candidate.decodes for item in roles}) < len(roles)
        yield Deployment(counts, rate, workloads, tuple(item.load_per_s for item in roles) if shared else None)


def _connected(used: Sequence[RoleInUse], served_per_s: Sequence[float]) -> list[tuple[int, ...]]:
    """Workloads that share an instance type, directly or through others, together."""
    groups = [{workload} for workload in range(len(served_per_s))]
    for item in used:
        shared = {workload for workload in range(len(served_per_s)) if _serves(item, workload, served_per_s)}
        touched = [group for group in groups if group & shared]
        if len(touched) > 1:
            groups = [group for group in groups if not group & shared] + [set().union(*touched)]
    return sorted(tuple(sorted(group)) for group in groups)


def _serves(item: RoleInUse, workload: int, served_per_s: Sequence[float]) -> bool:
    return item.load_per_s[workload] > LEAST_SHARE * served_per_s[workload]
