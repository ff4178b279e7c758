"""`Architecture` to plain data and back: the catalog's format, and what plan digests are taken over.

An entry names its distinct blocks once and lists them in order; `{times: 16, of: [a, a, b]}` repeats a run. Fields have
the names of the data classes in `planner.models.architecture`, and defaults may be left out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from planner.errors import PlannerError, did_you_mean
from planner.models.architecture import (
    BITS,
    Architecture,
    DenseFfn,
    Encoder,
    GroupedQueryAttention,
    Indexer,
    LatentAttention,
    Layer,
    LinearAttention,
    Module,
    MoeFfn,
    Precisions,
    UnsupportedMixer,
)
from planner.models.formats import format_named

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_MIXERS: dict[str, "type[DataclassInstance]"] = {
    "grouped_query": GroupedQueryAttention,
    "latent": LatentAttention,
    "linear": LinearAttention,
    "unsupported": UnsupportedMixer,
}
_FFNS: dict[str, "type[DataclassInstance]"] = {"dense": DenseFfn, "experts": MoeFfn}
_SHORT = {"grouped_query": "full", "latent": "latent", "unsupported": "unpriced", "experts": "moe", "dense": "dense"}
_ORDERED = ("layers", "mtp_layers")
_BESIDE: dict[str, "type[DataclassInstance]"] = {"encoders": Encoder, "modules": Module}
_JOINED_LATER = frozenset(
    {"q_rank", "mean_top_k", "attention_output"}
    | {"patch_size", "tokens_per_s", "chunk_tokens", "merge", "patch_depths", "projector", "projectors"}
    | {"flop_per_pixel"}
)
"""Fields left out at their default even when defaults are written, so that digests of older plans stay as they were."""
_MAX_RUN = 12
_MAX_LAYERS = 10_000


def architecture_to_data(arch: Architecture, *, defaults: bool = False) -> dict[str, object]:
    """Plain data of `arch` without name, source and metadata; `defaults` writes every field out."""
    names = _block_names(arch)
    blocks = {name: _layer_to_data(layer, defaults=defaults) for layer, name in names.items()}
    data = _plain(arch, {"name", "source", "metadata", "precisions", *_BESIDE, *_ORDERED}, defaults=defaults)
    precisions = _plain(arch.precisions, set(), defaults=defaults)
    return {
        **data,
        **({"precisions": precisions} if precisions else {}),
        "blocks": blocks,
        **{key: run_lengths([names[layer] for layer in getattr(arch, key)]) for key in _ORDERED if getattr(arch, key)},
        **{key: _listed(getattr(arch, key), defaults=defaults) for key in _BESIDE if getattr(arch, key)},
    }


def architecture_from_data(name: str, data: Mapping[str, object], *, where: str, source: str = "") -> Architecture:
    """The model that `data` lays out. Raises PlannerError naming `where` for unknown, missing or mistyped fields."""
    listed = _mapping(data, "blocks", where) if "modules" not in data else _as_mapping(data.get("blocks", {}), where)
    blocks = {key: _layer(value, f"{where}.blocks.{key}") for key, value in listed.items()}
    orders = {
        key: tuple(blocks[item] for item in _expand(data.get(key, []), blocks, f"{where}.{key}")) for key in _ORDERED
    }
    rest = {key: value for key, value in data.items() if key not in ("blocks", "precisions", *_BESIDE, *_ORDERED)}
    own = {
        "name": name,
        "source": source,
        "precisions": precisions_from_data(Precisions(), data.get("precisions", {}), f"{where}.precisions"),
        **{key: _networks(cls, data.get(key, []), f"{where}.{key}") for key, cls in _BESIDE.items()},
        **orders,
    }
    if not orders["layers"] and not own["modules"]:
        raise PlannerError("field `layers` is missing", where=where, hint="list the blocks in order")
    return _build(Architecture, rest, where, own)


def _listed(networks: "tuple[DataclassInstance, ...]", *, defaults: bool) -> list[dict[str, object]]:
    return [_plain(network, set(), defaults=defaults) for network in networks]


def _networks(cls: "type[DataclassInstance]", entries: object, where: str) -> "tuple[DataclassInstance, ...]":
    if not isinstance(entries, list):
        raise PlannerError("must be a list", where=where, hint="write one entry a network")
    return tuple(_build(cls, entry, f"{where}[{index}]") for index, entry in enumerate(entries))


def precisions_from_data(base: Precisions, data: object, where: str) -> Precisions:
    """`base` with the fields of `data` replaced. Raises PlannerError for an unknown part or format."""
    merged = {**_plain(base, set(), defaults=True), **_as_mapping(data, where)}
    precisions = _build(Precisions, merged, where)
    return replace(
        precisions, **{key: format_named(str(value), BITS, where=f"{where}.{key}") for key, value in merged.items()}
    )


def run_lengths(names: Sequence[str]) -> list[object]:
    """`names` with repeated runs folded into `{times, of}`, longest cover first; `_expand` undoes it."""
    folded: list[object] = []
    index = 0
    while index < len(names):
        best = max(range(1, _MAX_RUN + 1), key=lambda size: (_repeats(names, index, size) * size, -size))
        times = _repeats(names, index, best)
        if times == 1:
            folded.append(names[index])
            index += 1
        else:
            folded.append({"times": times, "of": list(names[index : index + best])})
            index += times * best
    return folded


def _repeats(names: Sequence[str], index: int, size: int) -> int:
    """How often the run of `size` from `at` comes in a row; 1 for a run that does not repeat, 0 for a short tail."""
    if index + size > len(names):
        return 0
    run, times = names[index : index + size], 1
    while names[index + times * size : index + (times + 1) * size] == run:
        times += 1
    return times if times > 1 or size == 1 else 0


def _expand(order: object, blocks: Mapping[str, object], where: str) -> list[str]:
    if not isinstance(order, list):
        raise PlannerError("must be a list", where=where, hint="list the blocks in order")
    names: list[str] = []
    for index, item in enumerate(order):
        here = f"{where}[{index}]"
        if isinstance(item, str):
            if item not in blocks:
                raise PlannerError(
                    f"unknown block `{item}`",
                    where=here,
                    hint=did_you_mean(item, list(blocks), otherwise=f"blocks are {', '.join(blocks)}"),
                )
            names.append(item)
            continue
        run = _as_mapping(item, here)
        times = run.get("times")
        if set(run) != {"times", "of"} or isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise PlannerError("must be a block or {times, of}", where=here, hint="write {times: 4, of: [block]}")
        inner = _expand(run["of"], blocks, here)
        if len(names) + len(inner) * times > _MAX_LAYERS:
            raise PlannerError(f"more than {_MAX_LAYERS} layers", where=here, hint="lower times")
        names += inner * times
    return names


def _block_names(arch: Architecture) -> dict[Layer, str]:
    """Speaking names for the distinct blocks: `full`, `window_moe`, `latent_dense`, numbered where they clash."""
    names: dict[Layer, str] = {}
    for layer in (*arch.layers, *arch.mtp_layers):
        if layer not in names:
            name = _block_name(layer)
            clashes = sum(other.rstrip("0123456789").rstrip("_") == name for other in names.values())
            names[layer] = f"{name}_{clashes + 1}" if clashes else name
    return names


def _block_name(layer: Layer) -> str:
    words = []
    if isinstance(layer.mixer, GroupedQueryAttention) and layer.mixer.window_tokens:
        words.append("window")
    elif isinstance(layer.mixer, LinearAttention):
        words.append(layer.mixer.kind.rstrip("0123456789"))
    elif layer.mixer is not None:
        words.append(_SHORT[_kind(_MIXERS, layer.mixer)])
    if layer.ffn is not None:
        words.append(_SHORT[_kind(_FFNS, layer.ffn)])
    return "_".join(words) or "empty"


def _kind(kinds: Mapping[str, "type[DataclassInstance]"], part: object) -> str:
    return next(kind for kind, cls in kinds.items() if isinstance(part, cls))


def _layer_to_data(layer: Layer, *, defaults: bool) -> dict[str, object]:
    data: dict[str, object] = {}
    for key, kinds, part in (("mixer", _MIXERS, layer.mixer), ("ffn", _FFNS, layer.ffn)):
        if part is not None:
            data[key] = {_kind(kinds, part): _plain(part, set(), defaults=defaults)}
    if defaults or layer.num_norms != 2:
        data["num_norms"] = layer.num_norms
    return data


def _layer(value: object, where: str) -> Layer:
    data = _as_mapping(value, where)
    parts = {
        key: _part(kinds, data[key], f"{where}.{key}") if key in data else None
        for key, kinds in (("mixer", _MIXERS), ("ffn", _FFNS))
    }
    return _build(Layer, {key: data[key] for key in data if key not in parts}, where, parts)


def _part(kinds: Mapping[str, "type[DataclassInstance]"], value: object, where: str) -> object:
    data = _as_mapping(value, where)
    if len(data) != 1 or next(iter(data)) not in kinds:
        wanted = ", ".join(kinds)
        raise PlannerError(f"must have one key of {wanted}", where=where, hint=f"write {{{next(iter(kinds))}: ...}}")
    kind, inner = next(iter(data.items()))
    own: dict[str, object] = {}
    rest = _as_mapping(inner, f"{where}.{kind}")
    if kind == "latent" and rest.get("indexer") is not None:
        own["indexer"] = _build(Indexer, rest["indexer"], f"{where}.{kind}.indexer")
        rest = {key: rest[key] for key in rest if key != "indexer"}
    return _build(kinds[kind], rest, f"{where}.{kind}", own)


def _plain(part: "DataclassInstance", without: set[str], *, defaults: bool) -> dict[str, object]:
    data: dict[str, object] = {}
    for spec in fields(part):
        value = getattr(part, spec.name)
        written_at_default = defaults and spec.name not in _JOINED_LATER
        if spec.name in without or (not written_at_default and _is_default(spec, value)):
            continue
        data[spec.name] = _plain_value(value, defaults=defaults)
    return data


def _plain_value(value: object, *, defaults: bool) -> object:
    if isinstance(value, Indexer):
        return _plain(value, set(), defaults=defaults)
    return list(value) if isinstance(value, tuple) else value


def _is_default(spec: "Field[Any]", value: object) -> bool:
    return spec.default is not MISSING and spec.default == value


def _build(cls: type[T], data: object, where: str, own: Mapping[str, object] | None = None) -> T:
    """An instance of `cls` from checked plain `data` and ready-made `own` fields."""
    given = _as_mapping(data, where)
    hints = get_type_hints(cls)
    known = [spec.name for spec in fields(cls)]
    for key in given:
        if key not in known or (own and key in own):
            raise PlannerError(
                f"unknown field `{key}`", where=f"{where}.{key}", hint=did_you_mean(key, known, otherwise="remove it")
            )
    values = {key: _checked(value, hints[key], f"{where}.{key}") for key, value in given.items()}
    values |= dict(own or {})
    for spec in fields(cls):
        if spec.name not in values and spec.default is MISSING and spec.default_factory is MISSING:
            raise PlannerError(f"field `{spec.name}` is missing", where=where, hint=f"add `{spec.name}`")
    return cls(**values)


def _checked(value: object, hint: object, where: str) -> object:
    """`value` if it has the plain type of its field; lists of text become tuples."""
    if hint is bool or hint is str:
        fits = isinstance(value, hint)
    elif hint is int:
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    elif hint is float:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
        value = float(value) if fits and isinstance(value, int) else value
    elif isinstance(value, list) and str in get_args(hint):
        return tuple(str(item) for item in value)
    elif isinstance(value, list) and int in get_args(hint):
        return tuple(int(str(_checked(item, int, where))) for item in value)
    else:
        fits = value is None and NoneType in get_args(hint)
    if not fits:
        wanted = getattr(hint, "__name__", str(hint))
        raise PlannerError(f"must be a plain {wanted}, found {value!r}", where=where, hint="correct the value")
    return value


def _mapping(data: Mapping[str, object], key: str, where: str) -> Mapping[str, object]:
    if key not in data:
        raise PlannerError(f"field `{key}` is missing", where=where, hint=f"add `{key}`")
    return _as_mapping(data[key], f"{where}.{key}")


def _as_mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise PlannerError(
            f"must be a mapping, found {type(value).__name__}", where=where, hint="write key: value pairs"
        )
    return value
