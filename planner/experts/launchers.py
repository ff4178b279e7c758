"""Expert placements in the file formats of SGLang, vLLM, vLLM-Ascend and TensorRT-LLM.

All of them count slots rank by rank, want as many on every rank, and let copies share equally. Shape suffixes: L layer,
P slot.
"""

import json
from collections.abc import Sequence

import numpy as np

from planner.arrays import Ints
from planner.errors import PlannerError


def require_launchable(expert_LP: Ints, ranks: int, num_experts: int, *, free_shares: bool = False) -> None:
    """Refuses layouts that no engine can hold: empty slots, uneven ranks, experts without a slot, unequal shares."""
    where = "layout"
    if free_shares:
        raise PlannerError(
            "engines share the tokens of an expert equally among its copies", where=where, hint="plan with equal shares"
        )
    if expert_LP.shape[1] % ranks:
        raise PlannerError(
            f"{expert_LP.shape[1]} slots do not spread evenly over {ranks} ranks",
            where=where,
            hint="give every rank as many slots",
        )
    if (expert_LP < 0).any():
        raise PlannerError(
            f"layer {int(np.argmax((expert_LP < 0).any(axis=1)))} has empty slots",
            where=where,
            hint="engines fill every slot; give layers equally many",
        )
    for layer, row_P in enumerate(expert_LP):
        present = np.bincount(row_P, minlength=num_experts)
        if (present[:num_experts] == 0).any() or len(present) > num_experts:
            raise PlannerError(
                f"layer {layer} does not hold exactly the {num_experts} experts",
                where=where,
                hint="give every expert a slot",
            )


def _everywhere(expert_LP: Ints, layer_ids: Sequence[int], num_layers: int, num_experts: int) -> list[list[int]]:
    """A row for each of `num_layers` layers; those without experts, or not laid out, have them in order."""
    slots = expert_LP.shape[1]
    rows = [[slot % num_experts for slot in range(slots)] for _ in range(num_layers)]
    for layer, row_P in zip(layer_ids, expert_LP.tolist(), strict=True):
        rows[layer] = row_P
    return rows


def sglang_location(expert_LP: Ints, layer_ids: Sequence[int], num_layers: int, num_experts: int) -> str:
    """JSON for `--init-expert-location`: rows for all layers of the model, dense ones too, and no other key."""
    rows = _everywhere(expert_LP, layer_ids, max(num_layers, max(layer_ids) + 1), num_experts)
    return json.dumps({"physical_to_logical_map": rows}) + "\n"


def vllm_config(num_redundant_experts: int, mapping_path: str | None = None) -> str:
    """JSON for `--eplb-config`; with `mapping_path` the static layout of vLLM #41141 and no rebalancing online."""
    config: dict[str, object] = {"num_redundant_experts": num_redundant_experts}
    if mapping_path is not None:
        config |= {"initial_mapping_path": mapping_path, "disable_online_rebalancing": True}
    return json.dumps(config) + "\n"


def vllm_mapping(expert_LP: Ints, num_experts: int) -> str:
    """JSON line of the initial mapping of vLLM #41141; layers with experts count from 0."""
    record = {
        "record_type": "eplb_initial_mapping",
        "version": 1,
        "num_redundant_experts": expert_LP.shape[1] - num_experts,
        "num_slots": expert_LP.shape[1],
        "initial_global_assignments": {str(layer): row_P for layer, row_P in enumerate(expert_LP.tolist())},
    }
    return json.dumps(record) + "\n"


def ascend_map(expert_LP: Ints, ranks: int) -> str:
    """JSON for `expert_map_path` of vLLM-Ascend; layers with experts count from 0."""
    layers = [
        {
            "layer_id": layer,
            "device_count": ranks,
            "device_list": [
                {"device_id": rank, "device_expert": experts}
                for rank, experts in enumerate(row_P.reshape(ranks, -1).tolist())
            ],
        }
        for layer, row_P in enumerate(expert_LP)
    ]
    return json.dumps({"moe_layer_count": len(layers), "layer_list": layers}) + "\n"


def tensorrt_balancer(expert_LP: Ints, layer_ids: Sequence[int], mtp_layer_ids: Sequence[int], num_experts: int) -> str:
    """YAML for `moe_config.load_balancer`: assignments by the model's own layer numbers, never updated.

    Layers of multi-token prediction must be named too (TensorRT-LLM #13974); those not laid out have the experts in
    order, like other engines at start.
    """
    slots = expert_LP.shape[1]
    rows = dict(zip(layer_ids, expert_LP.tolist(), strict=True))
    for layer in mtp_layer_ids:
        rows.setdefault(layer, [slot % num_experts for slot in range(slots)])
    lines = [f"num_slots: {slots}", "layer_updates_per_iter: 0", "initial_global_assignments:"]
    lines += [f"  {layer}: {json.dumps(rows[layer])}" for layer in sorted(rows)]
    return "\n".join(lines) + "\n"
