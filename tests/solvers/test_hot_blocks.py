"""Pins beside queues of recent blocks against lists, all pins of small traces, and what pins are worth."""

import itertools

import numpy as np
import pytest
from block_traces import homes_of, of, random_trace, recent_hits

from planner.errors import PlannerError
from planner.solvers.caches.hot_blocks import Homes, choose_pins, hit_bound, served
from planner.solvers.compiled.block_caches import pinned_hits


@pytest.mark.parametrize("seed", range(20))
def test_hits_beside_pins_are_those_of_lists_block_by_block(seed: int) -> None:
    draws = np.random.default_rng(seed)
    prompts = random_trace(seed, requests=60)
    requests = of(prompts)
    home_B, homes = homes_of(requests, 3, seed)
    rooms = draws.integers(0, 5, 3)
    pinned_B = draws.random(requests.num_blocks) < 0.2
    pins = frozenset(name for name, pinned in zip(requests.names, pinned_B, strict=True) if pinned)
    hit_A = pinned_hits(requests.first_R, requests.block_A, home_B, pinned_B, rooms)
    assert hit_A.tolist() == recent_hits(prompts, homes, rooms.tolist(), pins)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(40))
def test_no_pins_of_known_blocks_hit_more_than_the_bound(seed: int) -> None:
    requests = of(random_trace(seed, requests=24, branches=2, depth=3))
    home_B, _ = homes_of(requests, 2, seed)
    homes = Homes(home_B, np.array([2, 2]))
    start_s = 10.0
    known = sorted(set(requests.between(0.0, start_s).block_A.tolist()))
    bound = hit_bound(requests, homes, start_s)
    for size in range(3):
        for pins in itertools.combinations(known, size):
            for places in itertools.product((0, 1), repeat=size):
                at = {block: np.array([place]) for block, place in zip(pins, places, strict=True)}
                assert served(requests, homes, at, start_s).hit_rate <= bound + 1e-12


def test_a_block_in_every_prompt_is_copied_and_the_next_window_is_served_evenly() -> None:
    draws = np.random.default_rng(4)
    prompts = [[(0,), (0, int(draws.zipf(1.4)) % 300), (0, 0, int(draws.integers(0, 60)))] for _ in range(4000)]
    requests = of(prompts)
    home_B, _ = homes_of(requests, 8, 4)
    homes = Homes(home_B, np.full(8, 12))
    result = choose_pins(requests.between(0.0, 2000.0), homes, 1.3)
    assert result.solution is not None
    assert result.objective is not None
    alone, pinned = (served(requests, homes, pins, 2000.0) for pins in ({}, result.solution))
    assert len(result.solution[0]) >= 4
    assert pinned.max_over_mean < 1.35 < 3.0 < alone.max_over_mean
    assert pinned.hit_rate > alone.hit_rate - 0.02
    assert pinned.hit_rate <= hit_bound(requests, homes, 2000.0)


def test_instances_without_slots_and_pins_beyond_slots_are_refused() -> None:
    requests = of(random_trace(1))
    home_B, _ = homes_of(requests, 2, 1)
    with pytest.raises(PlannerError, match="no slot"):
        Homes(home_B, np.array([1, 0]))
    with pytest.raises(PlannerError, match="more slots than"):
        served(requests, Homes(home_B, np.array([1, 1])), {0: np.array([0]), 1: np.array([0])}, 0.0)
