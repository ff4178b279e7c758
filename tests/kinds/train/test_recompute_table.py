"""Tables of what to recompute at each input size: as good as trying all, within memory, ahead of one set for all."""

import itertools
from dataclasses import replace

import pytest

from planner.costs.training.config import TrainingConfig, machine_of
from planner.costs.training.memory import rank_memory
from planner.costs.training.rates import default_rates
from planner.errors import PlannerError
from planner.hardware.library import find_node
from planner.kinds.train.recompute_table import WHOLE, Row, Table, options, recompute_table, sized
from planner.models.library import find_model

SIZES = (2048, 8192, 16384, 24576, 32768)
CAPACITY = 0.94 * 80e9
MACHINE = machine_of(find_node("h100_sxm"))
DENSE = TrainingConfig(find_model("meta-llama/Llama-3.1-8B"), MACHINE, 8192, 256, 1, tp=2, dp=4)
MOE = TrainingConfig(find_model("Qwen/Qwen3-30B-A3B"), MACHINE, 8192, 256, 1, dp=32, ep=8)
PIPELINE = TrainingConfig(find_model("meta-llama/Llama-3.1-70B"), MACHINE, 8192, 256, 1, tp=8, pp=2, dp=4)


def _bytes(config: TrainingConfig, row: Row, rank: int = 0) -> float:
    """What the cost model says the rank holds, its layers counted one by one."""
    from planner.costs.training.memory import chunks_in_flight

    whole = any(names == (WHOLE,) for names in row.layers_of_set)
    plain = sized(config, row.tokens)
    under = replace(plain, recompute=replace(plain.recompute, granularity="full")) if whole else plain
    memory = rank_memory(under, rank)
    able = options(plain, config.arch.layers[0], default_rates())
    depth = chunks_in_flight(plain, rank)[0]
    kept = sum(able[names][1] * count for names, count in row.layers_of_set.items()) * depth
    return memory.total_bytes - memory.activations_bytes + kept


@pytest.mark.parametrize("config", [DENSE, MOE, PIPELINE])
def test_no_row_exceeds_memory_and_each_counts_every_layer(config: TrainingConfig) -> None:
    table = recompute_table(config, SIZES, CAPACITY)
    for row in table.rows:
        assert row.bytes <= CAPACITY * (1 + 1e-9)
        assert row.bytes == pytest.approx(_bytes(config, row), rel=1e-9)
        assert sum(row.layers_of_set.values()) == config.arch.num_layers // config.pp


@pytest.mark.parametrize("config", [DENSE, MOE])
@pytest.mark.parametrize("tokens", [8192, 24576])
def test_every_row_is_that_of_trying_all_sets(config: TrainingConfig, tokens: int) -> None:
    """On four layers, within the room that would hold half of their activations."""
    small = replace(config, arch=replace(config.arch, layers=config.arch.layers[:4]))
    able = options(sized(small, tokens), small.arch.layers[0], default_rates())
    plain = rank_memory(sized(small, tokens), 0)
    full = rank_memory(replace(sized(small, tokens), recompute=replace(small.recompute, granularity="full")), 0)
    capacity = plain.total_bytes - 0.5 * plain.activations_bytes
    best = None
    for chosen in itertools.combinations_with_replacement(able, 4):
        memory = full if (WHOLE,) in chosen else plain
        used = memory.total_bytes - memory.activations_bytes + sum(able[names][1] for names in chosen)
        seconds = sum(able[names][0] for names in chosen)
        if used <= capacity and (best is None or seconds < best):
            best = seconds
    row = recompute_table(small, [tokens], capacity).rows[0]
    assert row.recompute_s == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("config", [DENSE, MOE, PIPELINE])
def test_the_table_is_never_slower_than_the_set_of_the_longest_input(config: TrainingConfig) -> None:
    table = recompute_table(config, SIZES, CAPACITY)
    assert all(row.total_s <= static * (1 + 1e-9) for row, static in zip(table.rows, table.static_s, strict=True))
    assert table.rows[-1].total_s == pytest.approx(table.static_s[-1])
    assert table.gain([16, 8, 4, 2, 1]) > 0.05
    assert table.gain([0, 0, 0, 0, 1]) == pytest.approx(0.0)


def test_short_inputs_recompute_nothing_and_longer_ones_never_less() -> None:
    rows = recompute_table(DENSE, SIZES, CAPACITY).rows
    assert rows[0].layers_of_set == {(): 32}
    shares = [row.recompute_s / row.busy_s for row in rows]
    assert shares == sorted(shares)


def test_inputs_that_fit_under_no_set_are_refused() -> None:
    with pytest.raises(PlannerError, match=r"sequences of 262144 tokens leave .* GB for activations"):
        recompute_table(DENSE, [2048, 262144], CAPACITY)


def test_shares_weigh_the_rows() -> None:
    row = Row(1, {}, 1.0, 3.0, 0.0, 1.0)
    table = Table((row, replace(row, tokens=2, recompute_s=2.0)), (5.0, 5.0))
    assert table.mean_s([1, 1]) == pytest.approx(4.5)
    assert table.gain([1, 1]) == pytest.approx(5.0 / 4.5 - 1)
