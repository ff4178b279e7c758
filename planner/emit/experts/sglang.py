"""Expert layouts for SGLang (v0.5): the file of `--init-expert-location`."""

from planner.emit.experts.rows import emit_form
from planner.emit.registry import Target

TARGET = Target("sglang-experts", "the expert location that SGLang starts from", ("experts",), emit_form("sglang"))
