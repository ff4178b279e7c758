"""Replans training after node loss: replicas rebuilt from what is left, and what that costs.

A plan is replicas of a pipeline; each replica has one cell for every pipeline stage, the tp x cp ranks that hold the
stage together. A lost node takes its cells. With spare nodes only their shards are loaded again. Without, as many
replicas stand as whole cells can form, with the fewest cells changing their stage
(`planner.solvers.layouts.reshuffle`), and
the global batch stays as it is: its micro-batches go to the replicas that are left, as logical workers do in EasyScale
(SC 2023), so that training computes the same.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.plan.placement import devices, require_countable
from planner.plan.schema import Block, Parallelism, Role
from planner.solvers.layouts.reshuffle import Moves, fewest_moves, most_replicas, recut


@dataclass(frozen=True, slots=True)
class RunningPlan:
    """What a re-plan needs of a training plan."""

    role: Role
    blocks: tuple[Block, ...]
    gpus_per_node: int
    num_micro_batches: int  # of each replica and step
    vpp: int
    zero_shards: int  # ranks that share out the optimizer's states
    bytes_per_gpu: float  # parameters and optimizer

    @property
    def shape(self) -> Parallelism:
        return self.role.parallelism

    @property
    def cell_gpus(self) -> int:
        """GPUs of one stage of one replica."""
        return self.shape.tp * self.shape.cp


@dataclass(frozen=True, slots=True)
class Replanned:
    """What the plan becomes."""

    lost_gpus: int
    replicas: int  # of the pipeline, that stand
    moves: Moves
    loaded_bytes: float  # parameters and states that cells load which they did not hold
    resharded_share: float  # of the optimizer's states, that goes to another rank as they are cut anew
    only_in_checkpoint_share: float  # of the optimizer's states, resident on lost ranks alone
    micro_batches: tuple[int, ...]  # of each replica; they sum to those of the whole batch
    speed: float  # of a step, against that before the loss


def replan(running: RunningPlan, lost_nodes: Collection[int], spare_nodes: int = 0) -> Replanned:
    """The plan on what is left.

    Raises PlannerError where no replica stands, or a node is none of the plan's.
    """
    lost, lost_gpus = _lost_cells(running, lost_nodes)
    shape = running.shape
    alive = [shape.dp - len(replicas) for replicas in lost]
    blank = spare_nodes * running.gpus_per_node // running.cell_gpus
    replicas = min(shape.dp, most_replicas(alive, blank))
    moves = fewest_moves(alive, blank, replicas).solution
    if replicas == 0 or moves is None:
        left = sum(alive) + blank
        raise PlannerError(
            f"{left} cells of {running.cell_gpus} GPUs are left, and a replica has {shape.pp}",
            where="lost nodes",
            hint="solve the problem again on the nodes that are left",
        )
    batches = _spread(running.num_micro_batches * shape.dp, replicas)
    moved, gone = _optimizer(running, lost, replicas)
    return Replanned(
        lost_gpus=lost_gpus,
        replicas=replicas,
        moves=moves,
        loaded_bytes=moves.loads * running.cell_gpus * running.bytes_per_gpu,
        resharded_share=moved,
        only_in_checkpoint_share=gone,
        micro_batches=batches,
        speed=_rounds(running, running.num_micro_batches) / _rounds(running, max(batches)),
    )


def _lost_cells(running: RunningPlan, lost_nodes: Collection[int]) -> tuple[list[set[int]], int]:
    """By stage the replicas whose cell is lost, and lost GPUs; a cell with one lost GPU is lost."""
    require_countable(running.blocks)
    placed = [device for block in running.blocks for device in devices(block)]
    used = {device // running.gpus_per_node for device in placed}
    foreign = sorted(set(lost_nodes) - used)
    if foreign:
        raise PlannerError(
            f"node {foreign[0]} is none of the plan's",
            where="lost nodes",
            hint=f"the plan runs on nodes {min(used)} to {max(used)} of its pool",
        )
    gone = [device // running.gpus_per_node in set(lost_nodes) for device in placed]
    lost: list[set[int]] = [set() for _ in range(running.shape.pp)]
    for (replica, stage), without in zip(_stages(running), gone, strict=True):
        if without:
            lost[stage].add(replica)
    return lost, sum(gone)


def _stages(running: RunningPlan) -> list[tuple[int, int]]:
    """(replica, stage) of every rank, from the axes of its block."""
    coordinates = []
    for block in running.blocks:
        sizes = [(axis.name, axis.size) for axis in block.axes]
        total = 1
        for _, size in sizes:
            total *= size
        for rank in range(total):
            coordinate = {"dp": 0, "pp": 0}
            rest = total
            for name, size in sizes:
                rest //= size
                index = rank // rest % size
                coordinate[name] = coordinate.get(name, 0) * size + index
            coordinates.append((coordinate["dp"], coordinate["pp"]))
    return coordinates


def _optimizer(running: RunningPlan, lost: Sequence[Collection[int]], replicas: int) -> tuple[float, float]:
    """Shares of the optimizer's states that move as they are cut anew, and that nobody left holds: means over stages.

    Data-parallel rank d holds shard d modulo the number of shards; a shard is gone when all its copies are.
    """
    shape = running.shape
    shards = max(1, running.zero_shards // shape.cp)
    moved = gone = 0.0
    for replicas_lost in lost:
        left = {replica % shards for replica in range(shape.dp) if replica not in replicas_lost}
        shards_left = recut(shards, sorted(set(range(shards)) - left), max(1, min(shards, replicas))).solution
        assert shards_left is not None
        moved += shards_left.moved / shape.pp
        gone += shards_left.lost / shape.pp
    return moved, gone


def _spread(batches: int, replicas: int) -> tuple[int, ...]:
    """The micro-batches of a step over the replicas, as evenly as they go."""
    each, over = divmod(batches, replicas)
    return tuple(each + (index < over) for index in range(replicas))


def _rounds(running: RunningPlan, micro_batches: int) -> float:
    """Time of a step in micro-batches, bubble included: m + (p - 1) / v (arXiv:2104.04473, section 2.2)."""
    return micro_batches + (running.shape.pp - 1) / running.vpp
