"""Expert layouts for vLLM-Ascend: the file of `expert_map_path`."""

from planner.emit.experts.rows import emit_form
from planner.emit.registry import Target

TARGET = Target(
    "vllm-ascend-experts", "the expert map that vLLM-Ascend starts from", ("experts",), emit_form("vllm-ascend")
)
