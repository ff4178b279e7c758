"""Collectives against an explicit simulation of their steps on listed devices, and against bounds of bandwidth."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.operators.experts import distinct_places
from planner.costs.operators.kernels import Collective
from planner.costs.rates.calibration import Efficiencies, load_calibration
from planner.costs.rates.collectives import FLAGGED, LL_BYTES_PER_S, RINGS, STAGED, collective_s
from planner.costs.rates.rings import LL
from planner.hardware.topology import Level, Topology

NODE = Level("node", 8, 100e9, 0.0)
FLAT = Topology((NODE,))
TWO = Topology((NODE, Level("fabric", 64, 20e9, 0.0)))
THREE = Topology((NODE, Level("rack", 32, 50e9, 0.0), Level("hall", 128, 10e9, 0.0)))
RACK = Topology((Level("nvl", 64, 900e9, 0.0), Level("fabric", 512, 50e9, 0.0)))
TOPOLOGIES = {"one node": FLAT, "nodes on a fabric": TWO, "nodes in racks": THREE, "racks": RACK}
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p")
IDEAL = Efficiencies()


def _seconds(
    kind: str, size: float, group: float, stride: float, topology: Topology, efficiencies: Efficiencies = IDEAL
) -> float:
    op = Collective("c", 1.0, kind, np.array([size]), np.array([group]), np.array([stride]))
    return float(collective_s(op, topology, efficiencies)[0])


def _bundles(group: int, stride: int, topology: Topology) -> list[int]:
    """How many parties meet at each level, from the list of devices itself."""
    devices = [rank * stride for rank in range(group)]
    parties: list[int] = []
    below: list[tuple[int, ...]] = [(device,) for device in devices]
    for level in topology.levels:
        first_domain = [bundle for bundle in below if bundle[0] // level.size == 0]
        parties.append(len(first_domain))
        domains = sorted({device // level.size for device in devices})
        below = [tuple(device for device in devices if device // level.size == domain) for domain in domains]
    return parties


def _simulate_all_reduce(size: float, group: int, stride: int, topology: Topology) -> float:
    """Ring reduce-scatter at every level from inside out, each on the part that the level before left to a rank,
    then ring all-gather back: step by step."""
    total, part = 0.0, size
    sweeps: list[list[float]] = []
    for parties, level in zip(_bundles(group, stride, topology), topology.levels, strict=True):
        steps = [part / parties / level.bandwidth_bytes_per_s for _ in range(parties - 1)]
        sweeps.append(steps)
        total += sum(steps)
        part /= parties
    return total + sum(sum(steps) for steps in reversed(sweeps))


@pytest.mark.parametrize("size", [1e3, 1e5, 1e7, 1e9])
def test_an_all_reduce_is_the_faster_of_one_kernel_and_of_stages(size: float) -> None:
    known = Efficiencies(direct_bandwidth=0.25, collective_bandwidth=0.8, collective_start_s=4e-6)
    moved_s = 2.0 * 7.0 / 8.0 * size / NODE.bandwidth_bytes_per_s
    expected = min(4e-6 + moved_s / 0.25, STAGED * 4e-6 + moved_s / 0.8)
    assert _seconds("all_reduce", size, 8, 1, FLAT, known) == pytest.approx(expected)
    gathered = _seconds("all_gather", size, 8, 1, FLAT, known)
    assert gathered == pytest.approx(4e-6 + moved_s / 2.0 / 0.8)


@pytest.mark.parametrize("size", [1e3, 1e5, 1e7])
def test_an_all_reduce_between_nodes_is_the_faster_of_flagged_words_and_of_stages(size: float) -> None:
    """No engine's own kernel reaches over the network, however fast it is inside a node."""
    known = Efficiencies(direct_bandwidth=100.0, collective_start_s=4e-6)
    moved_s = 2.0 * 7.0 / 8.0 * size / NODE.bandwidth_bytes_per_s + 2.0 * 0.5 * size / 8.0 / 20e9
    flagged_s = max(size / LL_BYTES_PER_S, FLAGGED * moved_s)
    expected = min(2.0 * 4e-6 + flagged_s, STAGED * 2.0 * 4e-6 + moved_s)
    assert _seconds("all_reduce", size, 16, 1, TWO, known) == pytest.approx(expected)


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
@pytest.mark.parametrize("group", [2, 4, 8, 16])
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_hierarchical_all_reduce_takes_as_long_as_its_steps(name: str, group: int, stride: int) -> None:
    topology = TOPOLOGIES[name]
    if group * stride > topology.levels[-1].size:
        group = topology.levels[-1].size // stride
    simulated = _simulate_all_reduce(64e6, group, stride, topology)
    assert _seconds("all_reduce", 64e6, group, stride, topology) == pytest.approx(simulated, rel=1e-12)


@pytest.mark.parametrize("kind", RINGS)
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(kind: str) -> None:
    """A ring through all levels takes what its slowest link takes, so that stages after each other take no less."""
    half = _seconds(kind, 64e6, 8, 2, RACK)
    assert _seconds("all_reduce", 64e6, 8, 2, RACK) == pytest.approx(2 * half)
    assert _seconds("all_reduce", 64e6, 16, 2, THREE) > 2 * _seconds(kind, 64e6, 16, 2, THREE)


def _simulate_ring(size: float, group: int, stride: int, topology: Topology) -> float:
    """Every step passes a g-th on, in as many channels as ranks share the first domain, each through a rank of its own
    at every border: the slowest link of a step ends it."""
    domains = [[rank * stride // level.size for rank in range(group)] for level in topology.levels]
    links: list[float] = []
    for sender, receiver in zip(range(group), [*range(1, group), 0], strict=True):
        level = next(i for i, domain in enumerate(domains) if domain[sender] == domain[receiver])
        channels = 1 if level == 0 else domains[level - 1].count(domains[level - 1][sender])
        links.append(channels * topology.levels[level].bandwidth_bytes_per_s)
    return sum(size / group / min(links) for _ in range(group - 1))


@pytest.mark.parametrize("kind", RINGS)
@pytest.mark.parametrize(("group", "stride"), [(16, 1), (16, 2), (16, 4), (64, 1), (8, 8), (4, 32), (128, 1)])
def test_a_ring_through_all_levels_takes_as_long_as_its_steps(kind: str, group: int, stride: int) -> None:
    simulated = _simulate_ring(64e6, group, stride, THREE)
    assert _seconds(kind, 64e6, group, stride, THREE) == pytest.approx(simulated, rel=1e-12)


@pytest.mark.parametrize("size", [1e4, 1e6, 6.4e6, 1e9])
@pytest.mark.parametrize(("group", "stride"), [(16, 1), (16, 2), (32, 1), (64, 1), (8, 8)])
def test_gathers_over_nodes_take_as_long_as_nccl_expects(group: int, stride: int, size: float) -> None:
    """The fastest protocol by NCCL's latencies in us and bandwidths (src/graph/tuning.cc, hosts of Intel)."""
    nodes, rate = group * stride // 8, min(370e9, group / (group * stride / 8) * 46.25e9)
    alone = group == nodes
    tuned = [
        (6.6, 1.0, 5.0 if alone else 2.7, min(rate / 2, 39e9 if nodes == 2 else 20.4e9)),
        (14.0, 1.9, 8.5 if alone else 4.0, 0.92 * rate),
        (8.4, 3.4, 14.0, rate),
    ]
    moved = (group - 1) / group * size
    expected_s = min(
        (base + (group - nodes) * inside + (nodes - 1) * network) * 1e-6 + moved / bytes_per_s
        for base, inside, network, bytes_per_s in tuned
    )
    topology = Topology((Level("nvlink", 8, 370e9, 0.0), Level("fabric", 512, 46.25e9, 5e-6)))
    known = Efficiencies(collective_start_s=6.6e-6, collective_hop_s=1e-6)
    assert _seconds("all_gather", size, group, stride, topology, known) == pytest.approx(expected_s, rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_of_one_and_an_empty_buffer_cost_nothing(kind: str) -> None:
    slow = Efficiencies(collective_start_s=1e-3, collective_hop_s=1e-3)
    assert _seconds(kind, 1e9, 1, 1, THREE, slow) == 0.0
    assert _seconds(kind, 0.0, 8, 1, THREE, slow) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_the_place_of_a_group_decides_its_bandwidth(kind: str) -> None:
    node, rack, hall = (_seconds(kind, 64e6, 2, stride, THREE) for stride in (1, 8, 32))
    assert rack == pytest.approx(node * 100 / 50)
    assert hall == pytest.approx(node * 100 / 10)


@given(
    kind=st.sampled_from(KINDS),
    size=st.floats(1.0, 1e10),
    more=st.floats(1.0, 100.0),
    group=st.sampled_from([2, 4, 8, 16, 32]),
    stride=st.sampled_from([1, 2, 4]),
)
def test_more_bytes_never_take_less_time(kind: str, size: float, more: float, group: int, stride: int) -> None:
    start = Efficiencies(collective_start_s=5e-6, collective_hop_s=2e-6)
    less = _seconds(kind, size, group, stride, THREE, start)
    assert 0 < less <= _seconds(kind, size * more, group, stride, THREE, start)


@given(
    kind=st.sampled_from(KINDS[:4]),
    size=st.floats(1.0, 1e10),
    group=st.sampled_from([2, 4, 8, 16, 32]),
    stride=st.sampled_from([1, 2]),
)
def test_a_larger_group_never_takes_less_time(kind: str, size: float, group: int, stride: int) -> None:
    assert _seconds(kind, size, group, stride, THREE) <= _seconds(kind, size, 2 * group, stride, THREE)


@given(size=st.floats(1.0, 1e10), group=st.sampled_from([2, 4, 8, 16, 32, 64]), stride=st.sampled_from([1, 2]))
def test_no_collective_is_faster_than_what_must_cross_its_links(size: float, group: int, stride: int) -> None:
    """A rank must receive all it lacks through its own link; a node must receive what it lacks through its ranks'."""
    inside = max(1, min(group, 8 // stride))
    nodes = group / inside
    own = (group - 1) / group * size / 100e9
    entering = (nodes - 1) / nodes * size / (inside * 50e9)
    for kind, sweeps in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
        assert _seconds(kind, size, group, stride, THREE) >= sweeps * max(own, entering) * (1 - 1e-12)
    leaving = (group - inside) / group * size / 50e9
    assert _seconds("all_to_all", size, group, stride, THREE) >= max(own, leaving) * (1 - 1e-12)


def test_an_all_to_all_waits_for_its_slowest_level() -> None:
    inside = 7 / 8 * 64e6 / 100e9
    assert _seconds("all_to_all", 64e6, 8, 1, TWO) == pytest.approx(inside)
    assert _seconds("all_to_all", 64e6, 32, 1, TWO) == pytest.approx((1 - 8 / 32) * 64e6 / 20e9)


def test_starts_grow_with_the_doublings_of_the_group() -> None:
    start = Efficiencies(collective_start_s=5e-6, collective_hop_s=2e-6)
    times = [_seconds("all_reduce", 1e-9, group, 1, FLAT, start) for group in (2, 4, 8)]
    assert times == pytest.approx([7e-6, 9e-6, 11e-6])


@pytest.mark.parametrize(("size", "start_s"), [(8, 5e-5), (72, 7e-6)])
def test_tokens_are_packed_before_they_are_exchanged_on_a_board_and_written_directly_in_wider_domains(
    size: int, start_s: float
) -> None:
    topology = Topology((Level("node", size, 1e12, 0.0),))
    some, known = np.array([1e6]), Efficiencies(exchange_start_s=5e-5, wide_exchange_start_s=7e-6)
    tokens = Collective("dispatch", 1.0, "all_to_all", some, np.array([8.0]), np.array([1.0]), choices=8, among=256)
    bare, started = (float(collective_s(tokens, topology, starts)[0]) for starts in (Efficiencies(), known))
    assert started - bare == pytest.approx(start_s)
    other = Collective("transpose", 1.0, "all_to_all", some, np.array([8.0]), np.array([1.0]))
    assert collective_s(other, topology, known) == collective_s(other, topology, Efficiencies())


def test_link_latency_is_paid_at_each_level_that_a_group_spans() -> None:
    late = Topology((Level("node", 8, 1e12, 1e-6), Level("fabric", 64, 1e12, 5e-6)))
    assert _seconds("p2p", 1e-9, 2, 1, late) == pytest.approx(1e-6)
    assert _seconds("p2p", 1e-9, 2, 8, late) == pytest.approx(5e-6)
    across = _seconds("all_reduce", 1e-9, 16, 1, late)
    assert across > _seconds("all_reduce", 1e-9, 8, 1, late) + 5e-6
    for group, nodes in ((16, 2), (64, 8)):
        crossings_s = (nodes - 1) * LL.crossing * 5e-6
        assert _seconds("all_gather", 1e-9, group, 1, late) == pytest.approx(1e-6 + crossings_s)


def test_links_inside_and_outside_the_innermost_domain_have_their_own_efficiency() -> None:
    inside, outside = Efficiencies(collective_bandwidth=0.5), Efficiencies(fabric_bandwidth=0.5)
    assert _seconds("p2p", 64e6, 2, 1, THREE, inside) == pytest.approx(2 * _seconds("p2p", 64e6, 2, 1, THREE))
    assert _seconds("p2p", 64e6, 2, 8, THREE, inside) == _seconds("p2p", 64e6, 2, 8, THREE)
    assert _seconds("p2p", 64e6, 2, 8, THREE, outside) == pytest.approx(2 * _seconds("p2p", 64e6, 2, 8, THREE))


def test_a_forwarded_token_crosses_once_to_each_node_that_drawing_its_experts_gives() -> None:
    ranks, experts, choices, size = 32, 256, 8, 64e6
    chosen = np.random.default_rng(0).random((20_000, experts)).argsort(axis=-1)[:, :choices] // (experts // ranks)
    copies = np.mean([len(np.unique(row)) for row in chosen])
    other_nodes = np.mean([len(set((row // 8).tolist()) - {0}) for row in chosen])
    times = {}
    for forwarded in (0.0, 1.0):
        op = Collective(
            "dispatch", 1.0, "all_to_all", np.array([size]), np.array([float(ranks)]), np.ones(1),
            choices=choices, among=experts, forwarded=np.array([forwarded]),
        )  # fmt: skip
        times[forwarded] = collective_s(op, TWO, IDEAL)[0]
    assert times[1.0] == pytest.approx(size * other_nodes / copies / 20e9, rel=0.01)
    assert times[0.0] == pytest.approx(size * (1 - 8 / 32) / 20e9)


def test_groups_of_many_sizes_and_places_are_priced_at_once() -> None:
    group, stride = np.array([1.0, 8.0, 16.0, 2.0]), np.array([1.0, 1.0, 1.0, 32.0])
    sizes = np.array([1e6, 2e6, 3e6, 4e6])
    together = collective_s(Collective("c", 1.0, "all_reduce", sizes, group, stride), THREE, IDEAL)
    alone = [_seconds("all_reduce", *point, THREE) for point in zip(sizes, group, stride, strict=True)]
    assert together.tolist() == alone


@pytest.mark.parametrize(
    ("ranks", "dispatch_us", "combine_us"),
    [(16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369), (256, 194, 360)],
)
def test_tokens_of_decoding_steps_cross_boards_as_fast_as_was_published(
    ranks: int, dispatch_us: float, combine_us: float
) -> None:
    """The low-latency kernels of DeepEP on H800 and InfiniBand of 400 Gb/s: 128 tokens a rank, 8 of 288 experts."""
    boards = Topology((Level("nvlink", 8, 200e9, 0.0), Level("fabric", 512, 50e9, 5e-6)))
    group = np.array([float(ranks)])
    sent = 128 * 7168 * distinct_places(group, 8, 288)
    for value_bytes, published_us in ((1.0, dispatch_us), (2.0, combine_us)):
        op = Collective(
            "exchange", 1.0, "all_to_all", sent * value_bytes, group, np.ones(1),
            choices=8, among=288, forwarded=np.zeros(1),
        )  # fmt: skip
        seconds = collective_s(op, boards, load_calibration().efficiencies)
        assert seconds[0] == pytest.approx(published_us * 1e-6, rel=0.26)
