"""Expert layouts for TensorRT-LLM: the file of `moe_config.load_balancer`."""

from planner.emit.experts.rows import emit_form
from planner.emit.registry import Target

TARGET = Target(
    "tensorrt-llm-experts", "the load balancer that TensorRT-LLM starts from", ("experts",), emit_form("tensorrt-llm")
)
