"""Bad topologies of a problem, as users write them: what is wrong, where, and what would work."""

from typing import Any

import pytest

from planner.api import solve
from planner.errors import PlannerError

RACKED = {"racks": [4, 4]}


@pytest.mark.parametrize(
    ("topology", "place", "says"),
    [
        ({"racks": [4, 5]}, "topology", "2 racks hold 9 nodes, and pool `h100` has 8"),
        ({"racks": [4, -4]}, "topology.racks.1", "must be at least 1"),
        ({"racks": []}, "topology", "0 racks hold 0 nodes"),
        ({"uplink": "1GB/s"}, "topology.uplink", "`uplink` of no racks"),
        ({"rails": {"nodes": 4, "oversubscription": 2}}, "topology.rails.nodes", "write the pool's `oversubscription`"),
        ({**RACKED, "uplink": "-1GB/s"}, "topology.uplink", "must be above 0"),
        ({**RACKED, "uplink": "nan"}, "topology.uplink", "must be a bandwidth"),
        (
            {**RACKED, "circuits": {"ports": 4, "switching": "1ms"}},
            "topology.circuits",
            "add `link: 400Gb/s`",
        ),
        ({**RACKED, "circuits": {"ports": 4, "link": "-1GB/s", "switching": "1ms"}}, "circuits.link", "above 0"),
        ({"scale_up": {"kind": "ring", "hops": 1, "group": 9}}, "topology", "ask for at most 8"),
        ({"scale_up": {"kind": "switch", "unit": 2, "group": 4}}, "topology", "no more than 2 are joined"),
        ({"scale_up": {"kind": "ring", "group": 2}}, "topology.scale_up", "`hops` are those of a ring"),
        ({"scale_up": {"kind": "cube", "group": 2}}, "topology.scale_up", "a cube has no size"),
        ({"rails": {"nodes": 4, "oversubscription": 0.5}}, "topology.rails.oversubscription", "must be at least 1"),
        ({"hops": 2}, "topology.hops", "unknown key `hops`"),
    ],
)
def test_a_bad_topology_is_named_with_what_would_work(topology: dict[str, Any], place: str, says: str) -> None:
    with pytest.raises(PlannerError) as refused:
        solve(problem({"topology": topology}))
    assert place in (refused.value.where or "")
    assert says in f"{refused.value.what} {refused.value.hint}"
    assert refused.value.hint


def test_a_ring_whose_gaps_are_too_wide_everywhere_and_absent_nodes_are_refused() -> None:
    ring = {"scale_up": {"kind": "ring", "hops": 1, "group": 2}}
    with pytest.raises(PlannerError, match=r"gaps of at most 1\n.*more `hops`; 4 stand where no node is out"):
        solve(problem({"out_of_service": [1, 3, 5, 7], "topology": ring}))
    with pytest.raises(PlannerError, match=r"unknown node 9\n.*from 0 to 7"):
        solve(problem({"out_of_service": [9], "topology": RACKED}))


def test_levels_that_do_not_nest_are_refused() -> None:
    with pytest.raises(PlannerError, match="inside a scale-up domain of 18 nodes"):
        solve(problem({"gpu": "gb200-nvl72", "nodes": 36, "topology": {"racks": [10, 26]}}))


@pytest.mark.parametrize(
    ("links", "place", "says"),
    [
        ([["a", "a"]], "links.0.pools", "joins pool `a` to itself"),
        ([["a", "b"], ["b", "a"]], "cluster.links", "link 1 joins `b` and `a`, which another link joins already"),
    ],
)
def test_links_that_join_nothing_or_twice_are_refused(links: list[list[str]], place: str, says: str) -> None:
    given = problem({})
    pools = [{"name": name, "gpu": "h100", "nodes": 1} for name in "ab"]
    given["cluster"] = {"pools": pools, "links": [{"pools": pair, "bandwidth": "1GB/s"} for pair in links]}
    with pytest.raises(PlannerError) as refused:
        solve(given)
    assert place in (refused.value.where or "")
    assert says in refused.value.what


def problem(pool: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": "planner.problem/1",
        "kind": "train",
        "models": {"m": {"name": "Qwen/Qwen3-0.6B"}},
        "cluster": {"pools": [{"gpu": "h100", "nodes": 8, **pool}]},
        "objective": {"minimize": "step_time"},
        "options": {"global_batch": 16, "sequence_tokens": 2048},
    }
