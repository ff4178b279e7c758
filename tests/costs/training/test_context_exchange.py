"""What context-parallel ranks exchange for the attention: volumes by hand, what runs beside it, what is gathered."""

from dataclasses import replace

import pytest

from planner.costs.training.config import ContextParallel, Shard, TrainingConfig, machine_of
from planner.costs.training.kernels import BACKWARD_INPUT, FORWARD
from planner.costs.training.layer_costs import layer_cost
from planner.costs.training.layers.decoder import layer_kernels
from planner.costs.training.memory import gathered_kv_bytes
from planner.costs.training.rates import default_rates
from planner.hardware.library import find_node
from planner.models.library import find_model

MACHINE = machine_of(find_node("h100_sxm"))
LAYER = find_model("meta-llama/Llama-3.1-8B").layers[0]  # 32 heads of 128 values, 8 of keys and values
TOKENS = 32768
QUERIES, KEYS = 2 * 32 * 128, 2 * 8 * 128  # values a token: queries and outputs, keys and values


def _shard(method: ContextParallel, cp: int = 4, tp: int = 1) -> Shard:
    config = TrainingConfig(
        find_model("meta-llama/Llama-3.1-8B"), MACHINE, TOKENS, 8, 1, tp=tp, cp=cp, context_parallel=method
    )
    return config.shard


def _moved(method: ContextParallel, part: int, cp: int = 4, tp: int = 1) -> tuple[float, float]:
    """Bytes that a rank receives, in its NVLink domain and over the fabric."""
    kernels = [k for k in layer_kernels(MACHINE, LAYER, _shard(method, cp, tp)) if k.kind.partition(".")[0] == "cp"]
    inside = sum(kernel.inside_s for kernel in kernels if kernel.part == part) * MACHINE.link_bytes_per_s
    outside = sum(kernel.outside_s for kernel in kernels if kernel.part == part) * MACHINE.fabric_bytes_per_s
    return inside, outside


@pytest.mark.parametrize("method", ["ring", "all_gather"])
def test_keys_and_values_of_all_other_ranks_are_received_and_in_the_backward_pass_their_gradients_too(
    method: ContextParallel,
) -> None:
    others = 3 / 4 * TOKENS * KEYS * 2
    assert _moved(method, FORWARD) == pytest.approx((others, 0.0))
    assert _moved(method, BACKWARD_INPUT) == pytest.approx((2 * others, 0.0))


def test_ulysses_changes_the_layout_of_a_ranks_own_tokens_only() -> None:
    own = 3 / 4 * (TOKENS / 4) * (QUERIES + KEYS) * 2
    assert _moved("ulysses", FORWARD) == pytest.approx((own, 0.0))
    assert _moved("ulysses", BACKWARD_INPUT) == pytest.approx((own, 0.0))
    inside, outside = _moved("ulysses", FORWARD, cp=4, tp=4)
    assert outside == pytest.approx(1 / 2 * (TOKENS / 4) * (QUERIES + KEYS) / 4 * 2), "half of the ranks are elsewhere"
    assert inside == pytest.approx(1 / 4 * (TOKENS / 4) * (QUERIES + KEYS) / 4 * 2)


def test_a_ring_hides_a_part_behind_the_attention_and_a_gather_nothing() -> None:
    cost = {m: layer_cost(MACHINE, LAYER, _shard(m), default_rates()) for m in ("ring", "all_gather", "ulysses")}
    assert cost["ring"].exchange_s["cp"] < cost["all_gather"].exchange_s["cp"]
    share = default_rates().get("exposed.cp")
    starts = share * 9 * default_rates().get("start.cp") - 3 * default_rates().get("start.cp")
    assert cost["ring"].exchange_s["cp"] - starts == pytest.approx(share * cost["all_gather"].exchange_s["cp"], rel=0.1)


def test_many_ranks_with_few_heads_of_keys_favour_the_ring_and_with_as_many_as_queries_ulysses() -> None:
    many = replace(LAYER, mixer=replace(LAYER.mixer, num_kv_heads=32))  # type: ignore[type-var]  # a dataclass
    for layer, faster in ((LAYER, "ring"), (many, "ulysses")):
        seconds = {m: layer_cost(MACHINE, layer, _shard(m), default_rates()).total_s for m in ("ring", "ulysses")}
        assert min(seconds, key=lambda method: seconds[method]) == faster


def test_gathered_keys_and_values_with_their_gradients_take_memory() -> None:
    assert gathered_kv_bytes(LAYER, _shard("all_gather", tp=2)) == 2 * TOKENS * KEYS / 2 * 2
    assert gathered_kv_bytes(LAYER, _shard("ring", tp=2)) == 0.0
    assert gathered_kv_bytes(LAYER, _shard("all_gather", cp=1)) == 0.0
