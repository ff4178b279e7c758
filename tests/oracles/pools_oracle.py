"""Every plan across several pools priced one by one: every division of ranks, every share of the batch."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from typing import Any

from train_problems import offloads, recomputations, runs, shardings

from planner.kinds.train.evaluation.choice import PlanChoice
from planner.kinds.train.evaluation.choice_layouts import lay_out, layout_problem
from planner.kinds.train.evaluation.evaluation import Evaluation, fits
from planner.kinds.train.job import TrainJob
from planner.kinds.train.pools.across import ReplicasAcross, StagesAcross
from planner.kinds.train.pools.links import joined_sharing
from planner.kinds.train.space.states import ShardShape
from planner.kinds.train.space.tables import CostTable, sharing_of


def every_pipeline(pools: tuple[TrainJob, ...]) -> Iterator[Evaluation]:
    """One pipeline over two pools, in either order."""
    for jobs in permutations(pools):
        search, batch = jobs[0].options.search, jobs[0].options.global_batch
        for tp, cp, size, pp in product(*_axes(jobs[0])):
            for first, dp in product(range(1, pp), search.dp or range(1, batch + 1)):
                ranks = (first, pp - first)
                room = all(n * tp * cp * dp <= job.num_gpus for n, job in zip(ranks, jobs, strict=True))
                if room and batch % (dp * size) == 0:
                    yield from _pipelines(jobs, ShardShape(tp, cp, 1, 1, size), dp, ranks)


def _axes(job: TrainJob) -> list[Any]:
    search = job.options.search
    return [search.tp, search.cp, search.micro_batch, search.pp]


def _pipelines(jobs: tuple[TrainJob, ...], shape: ShardShape, dp: int, ranks: tuple[int, ...]) -> Iterator[Evaluation]:
    tables, pp = [CostTable(job, shape) for job in jobs], sum(ranks)
    batches = jobs[0].options.global_batch // (dp * shape.micro_batch)
    for schedule, vpp in runs(jobs[0], pp, batches):
        for (stage, shards), offload in product(shardings(jobs[0], shape, dp, pp), offloads(jobs[0])):
            for mode, whole in recomputations(tables[0], pp * vpp):
                parts = [
                    PlanChoice(
                        table,
                        sharing_of(table, dp, stage, offload, shards),
                        pp,
                        dp,
                        schedule,
                        vpp,
                        stage,
                        offload,
                        table.mode(mode.recompute),
                        whole,
                        shards,
                    )
                    for table in tables
                ]
                evaluation = StagesAcross(tuple(parts), ranks).priced()
                if evaluation is not None and fits(evaluation):
                    yield evaluation


def every_spread(jobs: tuple[TrainJob, ...]) -> Iterator[Evaluation]:
    """Replicas in two pools."""
    for tp, cp, size, pp in product(*_axes(jobs[0])):
        most = [job.num_gpus // (tp * cp * pp) for job in jobs]
        for taken in product(*(range(1, number + 1) for number in most)):
            yield from _spreads(jobs, ShardShape(tp, cp, 1, 1, size), pp, taken)


def _spreads(jobs: tuple[TrainJob, ...], shape: ShardShape, pp: int, taken: tuple[int, ...]) -> Iterator[Evaluation]:
    tables = [CostTable(job, shape) for job in jobs]
    batches = jobs[0].options.global_batch // shape.micro_batch
    shares = [
        (own, (batches - own * taken[0]) // taken[1])
        for own in range(1, batches // taken[0] + 1)
        if batches > own * taken[0] and (batches - own * taken[0]) % taken[1] == 0
    ]
    stages = [stage for stage in jobs[0].options.search.zero_stage or (0, 1) if stage < 2]
    for (schedule, vpp), stage in product(list(runs(jobs[0], pp, 4 * pp)), stages):
        sharing = joined_sharing(tables, pp, sum(taken), stage, frozenset())
        for mode, whole in recomputations(tables[0], pp * vpp):
            parts = tuple(
                PlanChoice(
                    table,
                    sharing,
                    pp,
                    dp,
                    schedule,
                    vpp,
                    stage,
                    frozenset(),
                    table.mode(mode.recompute),
                    whole,
                    batches=4 * pp,
                )
                for table, dp in zip(tables, taken, strict=True)
            )
            yield from _shared(ReplicasAcross(parts), shares, pp if schedule == "interleaved" else 1)


def _shared(across: ReplicasAcross, shares: list[tuple[int, int]], unit: int) -> Iterator[Evaluation]:
    room_R = [job.table.job.capacity_bytes for job in across.parts]
    for part in across.parts:
        load = layout_problem(part)
        least = replace(load, room_R=load.room_R + min(room_R) - part.table.job.capacity_bytes)
        counts = lay_out(part, least)
        for share in shares:
            if counts is not None and all(number % unit == 0 for number in share):
                evaluation = across.evaluated(counts, share)
                if fits(evaluation):
                    yield evaluation
