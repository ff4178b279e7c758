"""Expert layouts for vLLM: `--eplb-config`, and the initial mapping that vLLM #41141 reads."""

from planner.emit.expert_rows import read_rows
from planner.emit.registry import Target
from planner.experts.launchers import vllm_config, vllm_mapping
from planner.plan.schema import Decision, Envelope

MAPPING = "expert-mapping.jsonl"


def _emit(envelope: Envelope, decision: Decision) -> dict[str, str]:
    rows = read_rows(envelope, decision)
    return {
        "eplb-config.json": vllm_config(rows.num_redundant),
        "eplb-config-static.json": vllm_config(rows.num_redundant, MAPPING),
        MAPPING: vllm_mapping(rows.expert_LP, rows.num_experts),
        "flags.txt": '--enable-expert-parallel --enable-eplb --eplb-config "$(cat eplb-config.json)"\n',
    }


TARGET = Target("vllm-experts", "vLLM's EPLB settings, and an initial mapping where it reads one", ("experts",), _emit)
