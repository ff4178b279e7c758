"""Writes an expert placement as the files that an engine loads, with or without a plan around it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from planner.arrays import Ints
from planner.errors import PlannerError, did_you_mean
from planner.experts.launchers import (
    ascend_map,
    require_launchable,
    sglang_location,
    tensorrt_balancer,
    vllm_config,
    vllm_mapping,
)
from planner.experts.model_layers import ModelLayers

SGLANG_MAP, VLLM_MAP, ASCEND_MAP = "expert-location.json", "expert-mapping.jsonl", "expert-map.json"
TENSORRT_MAP = "load-balancer.yaml"


@dataclass(frozen=True, slots=True, eq=False)
class LaunchRows:
    """Experts by layer and slot, the ranks that hold them, and the model's layers; `launch_rows` makes checked ones."""

    expert_LP: Ints
    ranks: int
    layers: ModelLayers

    @property
    def layer_ids(self) -> tuple[int, ...]:
        return self.layers.ids_of(len(self.expert_LP))

    @property
    def num_redundant(self) -> int:
        return int(self.expert_LP.shape[1]) - self.layers.num_experts


@dataclass(frozen=True, slots=True)
class Form:
    """One engine's files: `files` gives names and texts, of which `layout` is the one that holds the layout."""

    layout: str
    files: Callable[[LaunchRows], dict[str, str]]


def launch_rows(expert_LP: Ints, ranks: int, layers: ModelLayers, *, free_shares: bool = False) -> LaunchRows:
    """Rows that engines can hold; PlannerError says why others cannot, layers of another model among them."""
    require_launchable(expert_LP, ranks, layers.num_experts, free_shares=free_shares)
    layers.ids_of(len(expert_LP))
    return LaunchRows(expert_LP, ranks, layers)


def files_of(form: str, rows: LaunchRows) -> dict[str, str]:
    """File name -> text for the engine called `form`, the layout itself first."""
    return find_form(form).files(rows)


def find_form(name: str) -> Form:
    """A form of files by name; raises PlannerError for an unknown one."""
    if name not in FORMS:
        raise PlannerError(
            f"unknown form `{name}`",
            where="--form",
            hint=did_you_mean(name, ["npz", *FORMS], otherwise=f"use one of npz, {', '.join(FORMS)}"),
        )
    return FORMS[name]


def _sglang(rows: LaunchRows) -> dict[str, str]:
    laid = max(rows.layers.num_layers, rows.layer_ids[-1] + 1)
    flags = f"--ep-size {rows.ranks} --ep-num-redundant-experts {rows.num_redundant}"
    return {
        SGLANG_MAP: sglang_location(rows.expert_LP, rows.layer_ids, laid, rows.layers.num_experts),
        "flags.txt": f"{flags} --init-expert-location {SGLANG_MAP}\n",
    }


def _vllm(rows: LaunchRows) -> dict[str, str]:
    """`flags.txt` starts from the layout, which versions without vLLM #41141 refuse; `flags-online.txt` starts those.

    They begin with the experts in order and move them by themselves.
    """
    flags = "--enable-expert-parallel --enable-eplb --eplb-config"
    return {
        VLLM_MAP: vllm_mapping(rows.expert_LP, rows.layers.num_experts),
        "eplb-config.json": vllm_config(rows.num_redundant),
        "eplb-config-static.json": vllm_config(rows.num_redundant, VLLM_MAP),
        "flags.txt": f'{flags} "$(cat eplb-config-static.json)"\n',
        "flags-online.txt": f'{flags} "$(cat eplb-config.json)"\n',
    }


def _ascend(rows: LaunchRows) -> dict[str, str]:
    settings = {"eplb_config": {"expert_map_path": ASCEND_MAP, "num_redundant_experts": rows.num_redundant}}
    return {ASCEND_MAP: ascend_map(rows.expert_LP, rows.ranks), "additional-config.json": json.dumps(settings) + "\n"}


def _tensorrt(rows: LaunchRows) -> dict[str, str]:
    balancer = tensorrt_balancer(rows.expert_LP, rows.layer_ids, rows.layers.mtp_ids, rows.layers.num_experts)
    return {
        TENSORRT_MAP: balancer,
        "extra-llm-api-options.yaml": f"moe_config:\n  load_balancer: {TENSORRT_MAP}\n",
    }


FORMS: Mapping[str, Form] = {
    "sglang": Form(SGLANG_MAP, _sglang),
    "vllm": Form(VLLM_MAP, _vllm),
    "vllm-ascend": Form(ASCEND_MAP, _ascend),
    "tensorrt-llm": Form(TENSORRT_MAP, _tensorrt),
}
