"""Expert layouts for vLLM: `--eplb-config`, and the initial mapping that vLLM #41141 reads."""

from planner.emit.experts.rows import emit_form
from planner.emit.registry import Target

TARGET = Target(
    "vllm-experts", "vLLM's EPLB settings, and an initial mapping where it reads one", ("experts",), emit_form("vllm")
)
