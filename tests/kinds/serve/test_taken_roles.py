"""Roles of a plan as instance types of its search, where no proof names them."""

from serve_problems import small

from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.proof.taken import in_one_channel
from planner.kinds.serve.steady.points import Tally
from planner.kinds.serve.steady.search import list_candidates, prepare
from planner.plan.schema import Route


def test_roles_that_hand_over_are_types_of_one_channel() -> None:
    """vLLM hands caches of pipelines over by one connector, and to more ranks than key-value heads by another."""
    options = {
        "modes": ["disaggregated"], "tp": [1, 8], "pp": [1, 2], "max_batch": [32], "chunk_tokens": [2048],
        "roles": {"decode": {"pp": [1]}},
    }  # fmt: skip
    setting = prepare(
        small(
            {
                "engine": {"name": "vllm"},
                "models": {"llama": {"name": "Qwen/Qwen3-30B-A3B"}},
                "cluster.pools.0": {"gpu": "h100", "gpus": 8},
                "options": options,
            }
        )
    )
    candidates = list_candidates(setting, setting.targets, Tally())
    channels = [None if each.channel is None else each.channel.index for each in candidates]
    rows_of = {
        "prefill": [row for row, each in enumerate(candidates) if each.function == "prefill" and each.shape.pp == 2],
        "decode": [row for row, each in enumerate(candidates) if each.function == "decode"],
    }
    assert channels[rows_of["decode"][0]] not in {channels[row] for row in rows_of["prefill"]}
    routes = (
        Route(workload="chat", to="prefill", share=1.0),
        Route(workload="chat", source="prefill", to="decode", share=1.0),
    )
    decision = ServeDecision.model_construct(mode="disaggregated", roles=(), routing=routes)
    in_one_channel(decision, rows_of, candidates)
    assert {channels[row] for row in rows_of["prefill"]} == {channels[row] for row in rows_of["decode"]} != set()
