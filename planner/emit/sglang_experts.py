"""Expert layouts for SGLang (v0.5): the file of `--init-expert-location`."""

from planner.emit.expert_rows import read_rows
from planner.emit.registry import Target
from planner.experts.launchers import sglang_location
from planner.plan.schema import Decision, Envelope


def _emit(envelope: Envelope, decision: Decision) -> dict[str, str]:
    rows = read_rows(envelope, decision)
    laid = max(rows.num_layers, rows.layer_ids[-1] + 1)
    flags = f"--ep-size {rows.ranks} --ep-num-redundant-experts {rows.num_redundant}"
    return {
        "expert-location.json": sglang_location(rows.expert_LP, rows.layer_ids, laid, rows.num_experts),
        "flags.txt": f"{flags} --init-expert-location expert-location.json\n",
    }


TARGET = Target("sglang-experts", "the expert location that SGLang starts from", ("experts",), _emit)
