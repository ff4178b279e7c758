"""What joins the nodes of a pool: levels that costs see, groups around nodes out, and what is refused."""

from typing import Any

import pytest

from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.problem.resolve import resolve_pool
from planner.problem.schema import PoolSpec
from planner.schema.base import Where


def pool(topology: dict[str, Any], *, gpu: str = "h100", nodes: int = 8, out: tuple[int, ...] = ()) -> Pool:
    document = {"gpu": gpu, "nodes": nodes, "out_of_service": list(out), "topology": topology}
    return resolve_pool(PoolSpec.model_validate(document), 0, Where({}, "problem"))


def test_unequal_racks_are_a_level_of_their_common_part_and_share_their_uplinks() -> None:
    wired = pool({"racks": [4, 2, 2], "uplink": "32GB/s"})
    assert wired.rack_of_node.tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    inside, rack, fabric = wired.topology().levels
    assert (inside.size, rack.size, fabric.size) == (8, 16, 64)
    assert fabric.bandwidth_bytes_per_s == 32e9 / 32  # of a GPU of the largest rack
    assert rack.bandwidth_bytes_per_s == wired.node.nic_bandwidth_bytes_per_s


def test_wide_uplinks_leave_the_adapters_the_limit() -> None:
    *_, fabric = pool({"racks": [4, 4], "uplink": "100TB/s"}).topology().levels
    assert fabric.bandwidth_bytes_per_s == pool({}).node.nic_bandwidth_bytes_per_s


def test_units_of_rails_are_pods() -> None:
    _, pod, fabric = pool({"rails": {"nodes": 2, "oversubscription": 4}}).topology().levels
    assert (pod.size, fabric.size) == (16, 64)
    assert fabric.bandwidth_bytes_per_s == pod.bandwidth_bytes_per_s / 4


@pytest.mark.parametrize(
    ("links", "groups"),
    [
        ({"kind": "ring", "hops": 1}, {(2, 3), (5, 6), (7, 0)}),
        ({"kind": "ring", "hops": 2}, {(0, 2), (3, 5), (6, 7)}),
        ({"kind": "switch", "unit": 4}, {(0, 2), (5, 6)}),
        ({"kind": "fixed"}, {(2, 3), (6, 7)}),
        ({"kind": "cube", "unit": 4}, {(2, 3), (6, 7)}),
    ],
)
def test_groups_stand_around_nodes_out_and_are_the_domains_of_placement(
    links: dict[str, Any], groups: set[tuple[int, int]]
) -> None:
    wired = pool({"scale_up": {**links, "group": 2}}, out=(1, 4))
    formed = wired.wiring.groups
    assert set(formed) == groups
    assert wired.node.scale_up_size == 16
    assert [device // 8 for device in wired.job_devices[::8]] == [node for group in formed for node in group]
    domains = wired.domain_of_node
    assert all(domains[a] == domains[b] for a, b in formed)
    free = wired.free_domains
    assert sorted(device for domain in free for device in domain) == [
        node * 8 + gpu for node in wired.healthy_nodes for gpu in range(8)
    ]
    assert [len(domain) for domain in free].count(16) == len(formed)


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        ({"racks": [4, 3]}, r"2 racks hold 7 nodes, and pool `h100` has 8\n.*racks of 8 nodes"),
        ({"racks": [4, 4], "rails": {"nodes": 3}}, r"a pod of 3 nodes ends behind node 2, inside a rack"),
        ({"scale_up": {"kind": "switch", "unit": 2, "group": 4}}, r"no more than 2 are joined\n.*at most 2"),
        ({"scale_up": {"kind": "ring", "hops": 1, "group": 4}}, r"no group of 4 nodes stands on 4.*\n.*2 stand where"),
    ],
)
def test_levels_that_do_not_nest_and_groups_that_cannot_stand_are_refused(topology: dict[str, Any], says: str) -> None:
    with pytest.raises(PlannerError, match=says):
        pool(topology, out=(1, 3, 5, 7) if "ring" in str(topology) else ())


def test_links_over_nodes_of_a_rack_that_has_them_already_are_refused() -> None:
    with pytest.raises(PlannerError, match="spans nodes already"):
        pool({"scale_up": {"kind": "fixed", "group": 2}}, gpu="gb200-nvl72", nodes=36)


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        ({"uplink": "1GB/s"}, "of no racks"),
        ({"racks": [8], "uplink": "-1GB/s"}, "greater than 0"),
        ({"circuits": {"ports": 1, "link": "1GB/s", "switching": "1ms"}}, "of no racks"),
        ({"racks": [8], "circuits": {"ports": 1, "switching": "1ms"}}, "Field required"),
        ({"scale_up": {"kind": "ring", "group": 2}}, "those of a ring"),
        ({"scale_up": {"kind": "switch", "group": 2, "hops": 1}}, "those of a ring"),
        ({"scale_up": {"kind": "cube", "group": 2}}, "no size"),
        ({"scale_up": {"kind": "fixed", "group": 2, "unit": 2}}, "no units"),
    ],
)
def test_missing_and_contradictory_links_are_refused_by_the_schema(topology: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        PoolSpec.model_validate({"gpu": "h100", "nodes": 8, "topology": topology})
