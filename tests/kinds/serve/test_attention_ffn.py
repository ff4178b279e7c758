"""Whether attention and feed-forward apart pay: the best of what is searched, and what makes it refused."""

from dataclasses import replace

from serve_problems import small

from planner.api import solve
from planner.costs.parameters import load_calibration
from planner.costs.roofline import Roofline
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.kinds.serve.attention_ffn import Hall, best_apart, best_together, weigh
from planner.kinds.serve.options import ServeDecision
from planner.models.library import find_model


def hall(name: str = "stepfun-ai/step3-fp8", nodes: int = 4) -> Hall:
    node, known = find_node("h800"), load_calibration("none").efficiencies
    pool = Pool("h800", node, nodes)
    pricer = Roofline(node.accelerator, pool.topology(), known)
    memory = 0.9 * node.accelerator.memory_bytes
    return Hall(find_model(name), pool, pricer, 4096.0, 0.05, memory, node.nic_bandwidth_bytes_per_s, 5e-6)


def test_the_best_ratio_is_no_worse_than_any_other() -> None:
    found = weigh(hall()).apart
    assert found is not None
    for ratio in ((8, 16), (16, 16)):
        other = best_apart(hall(), *ratio)
        if other is not None:
            assert (other.attention_gpus, other.ffn_gpus) == ratio
            assert other.tokens_per_s_per_gpu <= found.tokens_per_s_per_gpu * (1.0 + 1e-9)


def test_designs_keep_the_limit_and_a_looser_one_is_never_worse() -> None:
    rates = []
    for limit_s in (0.03, 0.1):
        found = weigh(replace(hall(), tpot_s=limit_s))
        assert found.apart is not None
        assert found.apart.step_s <= limit_s
        assert found.together is None or found.together.step_s <= limit_s
        rates.append(found.apart.tokens_per_s_per_gpu)
    assert rates == sorted(rates)


def test_a_slow_network_between_the_pools_makes_it_refused() -> None:
    slow = replace(hall(), network_bytes_per_s=hall().network_bytes_per_s / 50.0)
    fast, refused = weigh(hall()), weigh(slow)
    assert fast.pays
    assert not refused.pays
    assert "does not pay" in refused.words or "no limit" in refused.words


def test_two_micro_batches_on_every_device_hide_exchanges() -> None:
    one, two = (best_together(hall("deepseek-ai/DeepSeek-V3", 16), (parts,)) for parts in (1, 2))
    assert one is not None
    assert two is not None
    assert two.tokens_per_s_per_gpu > one.tokens_per_s_per_gpu


def test_a_plan_says_what_it_weighed_only_where_the_options_ask() -> None:
    edits = {"options.attention_ffn": True, "cluster.pools.0": {"gpu": "h100", "nodes": 2}}
    plan = solve(small(edits))
    weighed = ServeDecision.model_validate(plan.decision).attention_ffn
    assert weighed is not None
    assert weighed.pays == (weighed.tokens_per_s_per_gpu > weighed.together_tokens_per_s_per_gpu)
    assert ServeDecision.model_validate(solve(small({})).decision).attention_ffn is None
