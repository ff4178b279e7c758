"""Nodes in service, whichever and however many: a plan may leave some idle, and is laid around those that are out."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from train_problems import job, problem

from planner.kinds.train.search.one_pool import OnePoolSearch
from planner.kinds.train.space.space import stage_counts
from planner.progress import Limits

NODES = 8
FIXED = {"cp": 1, "tp": [2, 4, 8], "micro_batch": [1, 2], "vpp": 1, "zero_stage": [1], "recompute": ["none", "full"]}


def _step_s(nodes: int, out_of_service: tuple[int, ...] = (), *, batch: int = 48) -> float:
    data = problem(nodes=nodes, global_batch=batch, search=FIXED)
    data["cluster"]["pools"][0]["out_of_service"] = list(out_of_service)
    value = OnePoolSearch(job(data), Limits()).run().value
    assert value is not None
    return value


def test_one_more_node_never_hurts() -> None:
    """Seven nodes among them: a prime number, which no batch divides by."""
    steps = [_step_s(nodes) for nodes in range(1, NODES + 1)]
    assert all(more <= fewer * (1 + 1e-9) for fewer, more in pairwise(steps))
    assert steps[-1] < steps[0] / 4


@settings(max_examples=6)
@given(st.sampled_from([1, 2, 4, 5, 6, 7, 12, 16, 22, 28]), st.sampled_from([24, 64, 70, 96, 194]))
def test_a_node_more_than_any_number_never_hurts_any_batch(nodes: int, batch: int) -> None:
    """Batches of 2 x 5 x 7 and of 2 x 97 sequences too, from and to prime numbers of nodes."""
    assert _step_s(nodes + 1, batch=batch) <= _step_s(nodes, batch=batch) * (1 + 1e-9)


@settings(max_examples=8)
@given(st.sets(st.integers(0, NODES - 1), max_size=NODES - 1))
def test_nodes_out_of_service_cost_no_more_than_a_pool_without_them(gone: set[int]) -> None:
    assert _step_s(NODES, tuple(sorted(gone))) == _step_s(NODES - len(gone))


@given(st.integers(1, 200))
def test_numbers_of_stages_hold_what_divides_the_layers(layers: int) -> None:
    counts = stage_counts(layers)
    assert set(counts) <= set(range(1, layers + 1))
    wanted = {number for number in range(1, layers + 1) if layers % number == 0 or number <= 16}
    assert wanted <= set(counts)
