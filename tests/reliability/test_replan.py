"""Plans after a loss, and logical workers on whatever is left."""

import math

import pytest

from planner.errors import PlannerError
from planner.plan.schema import Axis, Block, Parallelism, Role
from planner.reliability.elastic import GpuKind, place_workers
from planner.reliability.replan import RunningPlan, replan
from planner.solvers.result import Status


def _running(tp: int = 8, pp: int = 4, dp: int = 8, *, zero_shards: int = 0, batches: int = 16) -> RunningPlan:
    degrees = {"pp": pp, "dp": dp, "tp": tp}
    sizes = list(degrees.items())
    axes = tuple(
        Axis(name=name, size=size, stride=math.prod(other for _, other in sizes[index + 1 :]))
        for index, (name, size) in enumerate(sizes)
    )
    role = Role(name="job", function="train", pool="p", replicas=1, parallelism=Parallelism(tp=tp, pp=pp, dp=dp))
    return RunningPlan(
        role, (Block(role="job", pool="p", first_device=0, axes=axes),), 8, batches, 1, zero_shards or dp, 1e9
    )


def test_a_spare_node_takes_the_place_of_a_lost_one_and_only_its_shards_move() -> None:
    replanned = replan(_running(), [3], spare_nodes=1)
    assert (replanned.replicas, replanned.moves.loads, replanned.speed) == (8, 1, 1.0)
    assert replanned.loaded_bytes == 8e9


def test_without_spares_one_replica_falls_away_and_nobody_changes_stage() -> None:
    replanned = replan(_running(), [3])
    assert (replanned.replicas, replanned.moves.loads) == (7, 0)
    assert len(replanned.moves.idle) == 3
    assert sum(replanned.micro_batches) == 8 * 16
    assert max(replanned.micro_batches) == 19
    assert replanned.speed == pytest.approx((16 + 3) / (19 + 3))


def test_losses_in_one_stage_cost_fewer_replicas_than_losses_because_others_step_in() -> None:
    replanned = replan(_running(), [0, 1, 2, 3])
    assert replanned.replicas == 7
    assert replanned.moves.loads == 3


def test_a_lost_rack_across_stages_costs_what_its_cells_are() -> None:
    replanned = replan(_running(), [0, 8, 16, 24])
    assert (replanned.replicas, replanned.moves.loads) == (7, 0)


def test_a_node_of_several_cells_takes_them_all() -> None:
    replanned = replan(_running(tp=2, pp=2, dp=8), [0])
    assert replanned.lost_gpus == 8
    assert (replanned.replicas, replanned.moves.loads) == (6, 2)


def test_shards_without_copies_are_only_in_the_checkpoint() -> None:
    assert replan(_running(), [3]).only_in_checkpoint_share == pytest.approx(1 / 8 / 4)
    assert replan(_running(zero_shards=4), [3]).only_in_checkpoint_share == 0.0


def test_a_plan_of_which_no_replica_is_left_is_refused() -> None:
    with pytest.raises(PlannerError, match="3 cells of 8 GPUs are left, and a replica has 4"):
        replan(_running(dp=1), [1])


def test_nodes_of_others_are_refused() -> None:
    with pytest.raises(PlannerError, match="node 99 is none of the plan's"):
        replan(_running(), [99])


def test_workers_go_where_they_end_first_at_a_constant_batch() -> None:
    replanned = place_workers(16, [GpuKind("h100", 2, 1.0, 8), GpuKind("a100", 4, 2.2, 4)]).solution
    assert replanned is not None
    assert sum(workers * gpus for _, workers, gpus in replanned.workers) == 16
    assert replanned.step_s == pytest.approx(4.4)
    assert replanned.bound_step_s == pytest.approx(16 / (2 / 1.0 + 4 / 2.2))
    assert 0.0 < replanned.loss < 0.06
    assert 0.0 < replanned.idle_share < 0.1


def test_fewer_gpus_take_longer_and_the_batch_stays() -> None:
    steps = [place_workers(8, [GpuKind("h100", count, 1.0, 8)]).objective for count in (8, 4, 3, 1)]
    assert steps == [1.0, 2.0, 3.0, 8.0]


def test_workers_that_do_not_fit_have_no_place() -> None:
    assert place_workers(9, [GpuKind("h100", 2, 1.0, 4)]).status is Status.INFEASIBLE
    with pytest.raises(PlannerError, match="9 workers on 0 GPUs"):
        place_workers(9, [])
