"""Expert layouts for vLLM-Ascend: the file of `expert_map_path`."""

import json

from planner.emit.expert_rows import read_rows
from planner.emit.registry import Target
from planner.experts.launchers import ascend_map
from planner.plan.schema import Decision, Envelope

MAP = "expert-map.json"


def _emit(envelope: Envelope, decision: Decision) -> dict[str, str]:
    rows = read_rows(envelope, decision)
    settings = {"eplb_config": {"expert_map_path": MAP, "num_redundant_experts": rows.num_redundant}}
    return {MAP: ascend_map(rows.expert_LP, rows.ranks), "additional-config.json": json.dumps(settings) + "\n"}


TARGET = Target("vllm-ascend-experts", "the expert map that vLLM-Ascend starts from", ("experts",), _emit)
