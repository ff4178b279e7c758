"""Every plan across several pools priced one by one: every division of ranks, every share of the batch."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

from planner.kinds.train.evaluation.evaluate import Choice, Evaluation, fits, lay_out, load_of
from planner.kinds.train.job import Job
from planner.kinds.train.pools.across import ReplicasAcross, StagesAcross
from planner.kinds.train.pools.links import joined_sharing
from planner.kinds.train.space.space import Shape, axis_values, offloads, schedules, shardings, zero_stages
from planner.kinds.train.space.tables import Table, sharing_of, ways_of


def every_pipeline(pools: tuple[Job, ...]) -> Iterator[Evaluation]:
    """One pipeline over two pools, in either order."""
    for jobs in permutations(pools):
        axes = axis_values(jobs[0])
        names = ("tp", "cp", "micro_batch", "pp", "dp")
        for tp, cp, size, pp, dp in product(*(axes[name] for name in names)):
            for first in range(1, pp):
                ranks = (first, pp - first)
                room = all(n * tp * cp * dp <= job.num_gpus for n, job in zip(ranks, jobs, strict=True))
                if room and jobs[0].options.global_batch % (dp * size) == 0:
                    yield from _pipelines(jobs, Shape(tp, cp, 1, 1, size), dp, ranks)


def _pipelines(jobs: tuple[Job, ...], shape: Shape, dp: int, ranks: tuple[int, ...]) -> Iterator[Evaluation]:
    tables, pp = [Table(job, shape) for job in jobs], sum(ranks)
    batches = jobs[0].options.global_batch // (dp * shape.micro_batch)
    for schedule, vpp in schedules(jobs[0], pp, batches, axis_values(jobs[0])["vpp"]):
        for (stage, shards), offload in product(shardings(jobs[0], shape, dp), offloads(jobs[0])):
            for mode, whole in ways_of(tables[0], pp * vpp, vpp).modes:
                parts = [
                    Choice(
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
                found = StagesAcross(tuple(parts), ranks).priced()
                if found is not None and fits(found):
                    yield found


def every_spread(jobs: tuple[Job, ...]) -> Iterator[Evaluation]:
    """Replicas in two pools."""
    axes = axis_values(jobs[0])
    for tp, cp, size, pp in product(*(axes[name] for name in ("tp", "cp", "micro_batch", "pp"))):
        most = [job.num_gpus // (tp * cp * pp) for job in jobs]
        for taken in product(*(range(1, number + 1) for number in most)):
            yield from _spreads(jobs, Shape(tp, cp, 1, 1, size), pp, taken)


def _spreads(jobs: tuple[Job, ...], shape: Shape, pp: int, taken: tuple[int, ...]) -> Iterator[Evaluation]:
    tables = [Table(job, shape) for job in jobs]
    batches = jobs[0].options.global_batch // shape.micro_batch
    shares = [
        (own, (batches - own * taken[0]) // taken[1])
        for own in range(1, batches // taken[0] + 1)
        if batches > own * taken[0] and (batches - own * taken[0]) % taken[1] == 0
    ]
    runs = schedules(jobs[0], pp, 4 * pp, axis_values(jobs[0])["vpp"])
    stages = [stage for stage in zero_stages(jobs[0]) if stage < 2]
    for (schedule, vpp), stage in product(runs, stages):
        sharing = joined_sharing(tables, pp, sum(taken), stage, frozenset())
        for mode, whole in ways_of(tables[0], pp * vpp, vpp).modes:
            parts = tuple(
                Choice(
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
        load = load_of(part)
        least = replace(load, room_R=load.room_R + min(room_R) - part.table.job.capacity_bytes)
        counts = lay_out(part, least)
        for share in shares:
            if counts is not None and all(number % unit == 0 for number in share):
                found = across.evaluated(counts, share)
                if fits(found):
                    yield found
