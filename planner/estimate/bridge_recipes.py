"""What recipes of Megatron Bridge's benchmarks set and tables of its results do not print.

`bridge_recipes.csv` has them by release, model, GPU, precision and task, read off NVIDIA-NeMo/Megatron-Bridge:
`scripts/performance/configs/*.yaml` and `run_script.py` of v0.1.0 (container 25.09), `*workload_base_configs.py` of
v0.2.0, v0.3.0, v0.3.1, v0.4.0, v0.4.1, v0.5.0 and v0.5.1 (25.11 to 26.06.01), `src/megatron/bridge/perf_recipes` of
v0.6.0 (26.08). `graphs` are Megatron-Core's scopes, `capacity` is padded to, `recompute` is empty where a recipe leaves
it to the model's own defaults.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import get_args

from planner.costs.training.config import GraphScope, RecomputeConfig

DEGREES = ("tp", "pp", "vpp", "cp", "ep", "micro_batch")
_COLUMNS = {"micro_batch": "mbs"}  # of tables of runs, where these are called otherwise
_MODULES = {
    "mla_up_proj": "mla_up_projection",
    "moe_act": "moe_activation",
    "core_attn": "core_attention",
    "mhc": "layernorm",
}
"""Modules by Megatron-Core's names, where ours differ; hyper-connections are recomputed with the norms beside them."""


@dataclass(frozen=True, slots=True)
class BridgeRecipe:
    """One variant of a benchmark of a model on a GPU."""

    releases: tuple[str, ...]
    degrees: tuple[int, ...]  # in the order of DEGREES
    graphs: frozenset[GraphScope]
    dispatcher: str  # empty: the model's default
    a2a_overlap: bool
    fused_experts: bool
    capacity: float | None
    recompute: RecomputeConfig | None  # None: the model's default
    offloaded_layers: int


def recipe_of(row: Mapping[str, str]) -> tuple[BridgeRecipe, bool] | None:
    """The recipe that ran a row of a table of runs, and whether its degrees are the row's; None: no recipe is known.

    The variant of the row's degrees, of the release nearest to the row's: results are printed for plans that a release
    of the scripts has only later, or no more. Where none has these degrees, that of the row's release, or of the latest
    before it, that shares most of them.
    """
    release = re.search(r"\d\d\.\d\d(?:\.\d\d)?", row.get("framework") or "")
    if release is None or "Bridge" not in row["framework"]:
        return None
    gpu, task = re.split(r"[-_]", row["gpu"].lower())[0], row.get("task") or "pretrain"
    known = recipes().get((_letters(row["model"]), gpu, _precision(row["precision"]), task), ())
    own = tuple(int(float(row.get(_COLUMNS.get(name, name)) or 1)) for name in DEGREES)
    alike = [recipe for recipe in known if recipe.degrees == own]
    if alike:
        nearest = min(_months_between(release[0], each) for recipe in alike for each in recipe.releases)
        near = [r for r in alike if min(_months_between(release[0], each) for each in r.releases) == nearest]
        return max(near, key=lambda recipe: recipe.releases[-1]), True  # of two variants the one that was kept
    told = {each for recipe in known for each in recipe.releases if each <= release[0]}
    if not told:
        return None
    variants = [recipe for recipe in known if max(told) in recipe.releases]
    return max(variants, key=lambda recipe: sum(map(int.__eq__, recipe.degrees, own))), False


def _months_between(release: str, other: str) -> float:
    """How far two releases lie apart: year and month, and a twentieth of a month for a later build."""
    first, second = (list(map(int, f"{name}.0".split(".")[:3])) for name in (release, other))
    return abs(sum((a - b) * months for a, b, months in zip(first, second, (12.0, 1.0, 0.05), strict=True)))


@cache
def recipes() -> Mapping[tuple[str, str, str, str], tuple[BridgeRecipe, ...]]:
    """All of them by model, GPU, precision and task."""
    text = resources.files("planner.estimate").joinpath("bridge_recipes.csv").read_text(encoding="utf-8")
    known: dict[tuple[str, str, str, str], tuple[BridgeRecipe, ...]] = {}
    for row in csv.DictReader(text.splitlines()):
        key = (row["model"], row["gpu"], row["precision"], row["task"])
        known[key] = (*known.get(key, ()), _read(row))
    return known


def _read(row: Mapping[str, str]) -> BridgeRecipe:
    return BridgeRecipe(
        releases=tuple(row["releases"].split()),
        degrees=tuple(int(row[name]) for name in DEGREES),
        graphs=scopes_of(row["graphs"]),
        dispatcher=row["dispatcher"],
        a2a_overlap=row["a2a_overlap"] == "1",
        fused_experts=row["fused_experts"] == "1",
        capacity=float(row["capacity"]) if row["capacity"] else None,
        recompute=_recompute(row["recompute"], row["recompute_layers"]),
        offloaded_layers=int(row["offloaded_layers"] or 0),
    )


def scopes_of(text: str) -> frozenset[GraphScope]:
    """Scopes of graphs as tables write them: words, or `none`."""
    return frozenset(scope for scope in get_args(GraphScope) if scope in text.split())


def _recompute(modules: str, layers: str) -> RecomputeConfig | None:
    if layers:
        return RecomputeConfig("full", num_layers=int(layers))
    if not modules:
        return None
    names = tuple(_MODULES.get(name, name) for name in modules.split())
    return RecomputeConfig() if names == ("none",) else RecomputeConfig("selective", names)


def _letters(model: str) -> str:
    """A model's name without what is spelled in several ways: llama31405b."""
    return re.sub(r"[^a-z0-9]", "", model.rpartition("/")[2].lower())


def _precision(text: str) -> str:
    names = (("fp8-blockwise", "fp8_block"), ("fp8-sc", "fp8_block"), ("fp8-", "fp8"))
    return next((name for start, name in names if text.startswith(start)), text)
