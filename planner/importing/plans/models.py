"""Models of the catalog by the sizes that a training script states."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import PlannerError
from planner.models.architecture import Architecture, DenseFfn, GroupedQueryAttention, LatentAttention, MoeFfn
from planner.models.library import find_model, list_models, load_model

SIZES = {"layers": "layers", "hidden": "of hidden size", "heads": "heads", "kv_heads": "query groups",
         "experts": "experts", "width": "of FFN"}  # fmt: skip


def model_entry(stated: object, given: str | None) -> dict[str, Any]:
    """An entry of a problem's `models`: the user's name or path, the artifact's name, or the one model of its sizes.

    Raises PlannerError where the sizes are of no model of the catalog, or nothing is said.
    """
    if given is not None:
        return {"config": given} if Path(given).exists() else {"name": given}
    if isinstance(stated, str):
        return {"name": stated}
    if isinstance(stated, Mapping) and all(isinstance(stated.get(key), int) for key in ("layers", "hidden", "heads")):
        names = models_of_sizes(stated)
        if names:
            return {"name": names[0]}
        told = ", ".join(f"{size} {SIZES[name]}" for name, size in stated.items() if size is not None)
        raise PlannerError(
            f"no model of the catalog has {told}", where="model", hint="write `--model PATH` of its config.json"
        )
    raise PlannerError("the artifact does not say which model it is", where="model", hint="write `--model NAME`")


def heads_for_later_tokens(entry: Mapping[str, str]) -> int:
    """How many heads for further tokens (MTP) the model of an entry has; raises PlannerError for an unknown model."""
    arch = find_model(entry["name"]) if "name" in entry else load_model(entry["config"])
    return arch.num_mtp_heads


def models_of_sizes(stated: Mapping[str, int | None]) -> list[str]:
    """The models of the catalog that have all sizes that are stated: those of text alone first, then in its order."""
    models = [find_model(entry.name) for entry in list_models() if not entry.name.startswith("nvidia/")]
    asked = {name: size for name, size in stated.items() if size is not None}
    alike = [arch for arch in models if asked.items() <= _sizes(arch).items()]
    return [arch.name for arch in sorted(alike, key=lambda arch: bool(arch.parts_beside(sized=True)))]


def _sizes(arch: Architecture) -> dict[str, int]:
    """By the names of `SIZES`; those of experts and of the last dense FFN where there are any."""
    sizes = {"layers": arch.num_layers, "hidden": arch.hidden_size}
    mixers = (layer.mixer for layer in arch.layers)
    attention = next((mixer for mixer in mixers if isinstance(mixer, GroupedQueryAttention | LatentAttention)), None)
    if attention is not None:
        sizes["heads"] = attention.num_heads
    if isinstance(attention, GroupedQueryAttention):
        sizes["kv_heads"] = attention.num_kv_heads
    for layer in arch.layers:
        if isinstance(layer.ffn, MoeFfn):
            sizes["experts"] = layer.ffn.num_experts
        elif isinstance(layer.ffn, DenseFfn):
            sizes["width"] = layer.ffn.intermediate_size
    return sizes
