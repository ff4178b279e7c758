"""Lost nodes of plans of any kind against every choice of spares; racks that do not nest; bad input."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.hardware.topology import Wiring
from planner.plan.schema import Axis, Block, Decision, Envelope, Role
from planner.reliability.lost_nodes import lose_nodes, yields_until_then


def pool_of(racks: tuple[int, ...], out: tuple[int, ...] = ()) -> Pool:
    return Pool("p", find_node("h100"), sum(racks), out_of_service=out, wiring=Wiring(racks=racks))


def served(nodes: int, *, function: str = "colocated") -> Decision:
    """One replica of eight ranks on each of the first nodes."""
    role = Role(name="r", function=function, model="m", pool="p", replicas=nodes)
    axes = (Axis(name="replica", size=nodes, stride=8), Axis(name="tp", size=8, stride=1))
    return Decision(roles=(role,), placement=(Block(role="r", pool="p", first_device=0, axes=axes),))


@pytest.mark.parametrize("seed", range(100))
def test_no_choice_of_spares_moves_fewer_nodes_or_leaves_fewer_racks(seed: int) -> None:
    draws = np.random.default_rng(seed)
    racks = tuple(draws.integers(1, 4, 3).tolist())
    pool = pool_of(racks)
    used = int(draws.integers(1, pool.num_nodes + 1))
    lost = sorted(draws.choice(pool.num_nodes, int(draws.integers(1, min(4, pool.num_nodes) + 1)), replace=False))
    loss = lose_nodes(served(used), {"p": pool}, [("p", int(node)) for node in lost])
    hit = [node for node in lost if node < used]
    spares = [node for node in range(used, pool.num_nodes) if node not in lost]
    count = min(len(hit), len(spares))
    rack = list(itertools.chain.from_iterable([index] * size for index, size in enumerate(racks)))
    stay = max(
        sum(rack[a] == rack[b] for a, b in zip(some, order, strict=True))
        for some in itertools.combinations(hit, count)
        for order in itertools.permutations(spares, count)
    )
    assert len(loss.moves) == count
    assert len(loss.stranded) == len(hit) - count
    assert sum(move.same_rack for move in loss.moves) == stay
    assert len({move.spare for move in loss.moves}) == count
    assert {move.spare for move in loss.moves} <= set(spares)
    assert loss.runs_on == pytest.approx(1.0 - len(hit) / used)


def test_the_ranks_of_a_job_wait_for_each_other() -> None:
    loss = lose_nodes(served(3, function="train"), {"p": pool_of((4, 4))}, [("p", 1)])
    assert loss.runs_on == 0.0
    assert loss.moves[0].spare == 3
    assert loss.moves[0].ranks == {"r": 8}
    assert lose_nodes(served(3, function="train"), {"p": pool_of((4, 4))}, [("p", 7)]).runs_on == 1.0


def test_a_node_of_a_scale_up_domain_takes_a_spare_of_its_domain_alone() -> None:
    pool = Pool("p", find_node("gb200-nvl72"), 36)
    role = Role(name="r", function="colocated", model="m", pool="p", replicas=1)
    block = Block(role="r", pool="p", first_device=0, axes=(Axis(name="tp", size=64, stride=1),))
    decision = Decision(roles=(role,), placement=(block,))
    loss = lose_nodes(decision, {"p": pool}, [("p", 0), ("p", 1), ("p", 2)])
    assert [move.spare for move in loss.moves] == [16, 17]
    assert loss.stranded == (("p", 2),)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (("p", 9), "pool `p` has no node 9"),
        (("q", 0), "no pool is called `q`"),
        (("p", 5), "node 5 of pool `p` is out of service already"),
    ],
)
def test_nodes_that_no_plan_stands_on_are_refused(key: tuple[str, int], says: str) -> None:
    with pytest.raises(PlannerError, match=says):
        lose_nodes(served(2), {"p": pool_of((3, 3), out=(5,))}, [key])


@pytest.mark.parametrize(
    ("gpu", "racks", "says"),
    [
        ("h100", (4, 5), "2 racks hold 9 nodes, and pool `p` has 36"),
        ("h100", (36, 0), "2 racks hold 36 nodes"),
        ("gb200-nvl72", (10, 26), "behind node 9, inside a scale-up domain of 18 nodes"),
    ],
)
def test_racks_that_are_not_the_pools_or_do_not_nest_are_refused(gpu: str, racks: tuple[int, ...], says: str) -> None:
    with pytest.raises(PlannerError, match=says):
        Pool("p", find_node(gpu), 36).on_racks(racks)


def test_racks_are_those_listed_or_what_the_hardware_says() -> None:
    assert pool_of((1, 2)).rack_of_node.tolist() == [0, 1, 1]
    assert Pool("p", find_node("h100"), 3).rack_of_node.tolist() == [0, 0, 0]
    assert Pool("p", find_node("gb200-nvl72"), 36).rack_of_node.tolist() == [0] * 18 + [1] * 18


def test_rates_until_the_moves_are_done_are_those_of_what_runs_on() -> None:
    loss = lose_nodes(served(4), {"p": pool_of((4, 4))}, [("p", 1)])
    data = json.loads((Path(__file__).parent.parent / "plans" / "serve.json").read_text())
    envelope = Envelope.model_validate(data)
    (rate, *_) = [row for row in envelope.predictions if row.metric == "requests_per_s"]
    (first, *_) = yields_until_then(envelope, loss)
    assert (first.metric, first.planned_per_s) == ("requests_per_s", rate.value)
    assert first.until_then_per_s == pytest.approx(0.75 * rate.value)
