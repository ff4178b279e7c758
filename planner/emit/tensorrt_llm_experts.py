"""Expert layouts for TensorRT-LLM: the file of `moe_config.load_balancer`."""

from planner.emit.expert_rows import read_rows
from planner.emit.registry import Target
from planner.experts.launchers import tensorrt_balancer
from planner.plan.schema import Decision, Envelope


def _emit(envelope: Envelope, decision: Decision) -> dict[str, str]:
    rows = read_rows(envelope, decision)
    balancer = tensorrt_balancer(rows.expert_LP, rows.layer_ids, rows.mtp_layer_ids, rows.num_experts)
    return {
        "load-balancer.yaml": balancer,
        "extra-llm-api-options.yaml": "moe_config:\n  load_balancer: load-balancer.yaml\n",
    }


TARGET = Target("tensorrt-llm-experts", "the load balancer that TensorRT-LLM starts from", ("experts",), _emit)
