"""Reads recorded expert loads of several engines, as tokens by window, layer and expert.

Dense layers, which record no load at all, are left out, and the others keep their number in the model. With a model,
its layers say which those are; without one, only layers in front of all loads are taken to be dense, since a layer
further back may as well have experts that nobody called. Shape suffixes: W window, L layer, E expert, P slot.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from planner.arrays import Bools, Floats, Ints
from planner.documents.read import file_not_found
from planner.errors import PlannerError
from planner.experts.model_layers import ModelLayers
from planner.experts.ranks import require_loads

COLUMNS = ("layer", "expert", "load")
MOST_EXPERTS = 1 << 16
MOST_TOKENS = 1e30  # beyond any recording; sums and squares of it are still numbers


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """Tokens by window, layer and expert; `layer_ids` are the numbers of the layers in the model."""

    load_WLE: Floats
    layer_ids: tuple[int, ...]

    @property
    def total_LE(self) -> Floats:
        """All windows together."""
        total: Floats = self.load_WLE.sum(axis=0)
        return total


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """What a file holds: counts [L, E] or [W, L, E], the numbers of its layers where it gives them, and whether it
    names only experts that were called, so that the last ones may be missing."""

    counts: npt.NDArray[Any]
    layer_ids: tuple[int, ...] | None = None
    sparse: bool = False


def read_loads(path: str | Path, *, array: str | None = None, model: ModelLayers | None = None) -> Loads:
    """The loads in `path`, by what the file is; `model` says which layers have experts.

    `.npz` and `.npy`: [L, E] or [W, L, E]; `array` names one of several. `.parquet`: columns layer, expert, load, and
    window where there are several. `.json` and `.pt`: SGLang's recorder, `logical_count` [L, E] or [step, L, E].
    `.jsonl`: vLLM's `eplb_load_stats` records, or Megatron's routing trace; a folder: all `.jsonl` in it, as Megatron
    writes one file a rank. Raises PlannerError for files that are none of these, for loads that make no sense, for
    layers of experts without any load, and for loads that are not those of `model`.
    """
    place = Path(path)
    if not place.exists():
        raise file_not_found(path, otherwise="name a file of recorded loads")
    readers = {
        ".npz": _npz, ".npy": _npy, ".parquet": _parquet, ".json": _json, ".pt": _torch, ".jsonl": _jsonl, "": _folder
    }  # fmt: skip
    suffix = "" if place.is_dir() else place.suffix
    if suffix not in readers or (suffix == "" and not place.is_dir()):
        raise PlannerError(
            f"files of `{place.suffix}` are not read",
            where=str(path),
            hint="loads come as .npz, .npy, .parquet, .json, .pt, .jsonl, or a folder of .jsonl",
        )
    if place.is_file() and place.stat().st_size == 0:
        raise PlannerError("is empty", where=str(path), hint="record while the engine serves")
    if array is not None and suffix != ".npz":
        raise PlannerError("only .npz files hold arrays by name", where="--array", hint="leave it out")
    try:
        return _loads(readers[suffix](place, array), model)
    except PlannerError as error:
        raise PlannerError(error.what, where=f"{path}: {error.where}".removesuffix(": "), hint=error.hint) from None
    except KeyError as problem:
        raise PlannerError(
            f"has a record without `{problem.args[0]}`", where=str(path), hint="give the file as the engine wrote it"
        ) from None
    except (OSError, ValueError, TypeError, EOFError, RecursionError, BadZipFile) as problem:
        raise PlannerError(
            f"cannot be read: {problem}", where=str(path), hint="name a file of recorded loads"
        ) from None


def _loads(recorded: Counts, model: ModelLayers | None) -> Loads:
    """Counts checked; dense layers, and windows without any load, left out."""
    counts = np.asarray(recorded.counts)
    if counts.dtype.kind not in "iuf":
        raise PlannerError(f"holds no counts but `{counts.dtype}`", where="load", hint="give whole or real numbers")
    load = counts.astype(np.float64)
    load = load[None] if load.ndim == 2 else load
    if load.ndim != 3 or load.size == 0:
        raise PlannerError(
            f"has the shape {np.shape(recorded.counts)}",
            where="load",
            hint="give [layer, expert] or [window, layer, expert]",
        )
    wrong = ~np.isfinite(load) | (load < 0)
    if wrong.any():
        entry = [int(index) for index in np.argwhere(wrong)[0]]
        raise PlannerError(f"is {load[tuple(entry)]} at {entry}", where="load", hint="loads are finite and at least 0")
    if not load.any():
        raise PlannerError("every load is 0", where="load", hint="record while the engine serves")
    if load.max() > MOST_TOKENS:
        raise PlannerError(f"is {load.max():.3g}, more than {MOST_TOKENS:.0e}", where="load", hint="give tokens")
    ids = tuple(range(load.shape[1])) if recorded.layer_ids is None else recorded.layer_ids
    load = load[load.any(axis=(1, 2))]
    load, ids = _without_dense(load, ids) if model is None else _of_model(load, ids, model, sparse=recorded.sparse)
    require_loads(load, "window,layer,expert")
    return Loads(np.ascontiguousarray(load), ids)


def _without_dense(load_WLE: Floats, ids: tuple[int, ...]) -> tuple[Floats, tuple[int, ...]]:
    """Loads without the idle layers in front; an idle layer further back is refused."""
    busy_L: Bools = np.asarray(load_WLE.any(axis=(0, 2)))
    first = int(np.argmax(busy_L))
    if not busy_L[first:].all():
        idle = ids[first + int(np.argmin(busy_L[first:]))]
        raise PlannerError(
            f"layer {idle} has no load, and a layer before it has",
            where="load",
            hint="record until every layer with experts has served, or say with --model which layers are dense",
        )
    return load_WLE[:, first:], ids[first:]


def _of_model(
    load_WLE: Floats, ids: tuple[int, ...], model: ModelLayers, *, sparse: bool
) -> tuple[Floats, tuple[int, ...]]:
    """Loads of the model's layers with experts, by their numbers in it."""
    layers, experts = load_WLE.shape[1:]
    known = f"`{model.name}` has {len(model.expert_ids)} of {model.num_experts}"
    foreign = PlannerError(
        f"holds {layers} layers of {experts} experts, {known}", where="load", hint="name loads recorded with this model"
    )
    if sparse and experts < model.num_experts:
        load_WLE = np.pad(load_WLE, ((0, 0), (0, 0), (0, model.num_experts - experts)))
    if load_WLE.shape[2] != model.num_experts:
        raise foreign
    everywhere = (model.num_layers, model.num_layers + len(model.mtp_ids))
    if ids == tuple(range(layers)) and layers in everywhere:
        chosen = [layer for layer in model.all_expert_ids if layer < layers]
        dense = np.setdiff1d(np.arange(layers), chosen)
        loaded = dense[load_WLE[:, dense].any(axis=(0, 2))]
        if len(loaded):
            raise PlannerError(
                f"layer {loaded[0]} has loads, in `{model.name}` it is dense", where="load", hint=foreign.hint
            )
        load_WLE = load_WLE[:, chosen]
    elif layers in (len(model.expert_ids), len(model.all_expert_ids)):
        chosen = list(model.ids_of(layers))
    else:
        raise foreign
    busy_L: Bools = np.asarray(load_WLE.any(axis=(0, 2)))
    if not busy_L.all():
        raise PlannerError(
            f"layer {chosen[int(np.argmin(busy_L))]} of `{model.name}` has experts and no load",
            where="load",
            hint="record until every layer with experts has served",
        )
    return load_WLE, tuple(chosen)


def _npz(path: Path, array: str | None) -> Counts:
    with np.load(path, allow_pickle=False) as content:
        names = [name for name in content.files if content[name].ndim in (2, 3)]
        name = array or next((name for name in ("load", "logical_count") if name in names), None)
        if name is None and len(names) == 1:
            name = names[0]
        if not names:
            shapes = ", ".join(f"`{name}` of shape {content[name].shape}" for name in content.files) or "nothing"
            raise PlannerError(
                f"holds no array of loads, but {shapes}",
                where="array",
                hint="loads have the axes [layer, expert] or [window, layer, expert]",
            )
        if name is None or name not in content.files:
            raise PlannerError(
                f"holds {', '.join(f'`{name}`' for name in names)}",
                where="array",
                hint="name one of them with `--array`",
            )
        return Counts(content[name])


def _npy(path: Path, _: str | None) -> Counts:
    return Counts(np.load(path, allow_pickle=False))


def _parquet(path: Path, _: str | None) -> Counts:
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except pyarrow.ArrowException as problem:
        raise PlannerError(f"is no parquet file: {problem}") from None
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        known = ", ".join(f"`{name}`" for name in table.column_names)
        raise PlannerError(f"has no column `{missing[0]}`, only {known}", hint="name them layer, expert, load, window")
    layer, expert = (_whole(table[name].to_numpy(), name) for name in COLUMNS[:2])
    window = _whole(table["window"].to_numpy(), "window") if "window" in table.column_names else np.zeros_like(layer)
    return Counts(_scattered(window, layer, expert, table["load"].to_numpy().astype(np.float64)), sparse=True)


def _whole(values: npt.ArrayLike, where: str) -> Ints:
    """Whole numbers; PlannerError for others, for missing ones and for text."""
    numbers = np.asarray(values)
    if numbers.dtype.kind in "iu" or numbers.size == 0:
        return numbers.astype(np.int64)
    if numbers.dtype.kind != "f" or not np.isfinite(numbers).all() or (numbers != np.floor(numbers)).any():
        raise PlannerError(
            "holds values that are no whole numbers", where=where, hint="layers and experts count from 0"
        )
    return numbers.astype(np.int64)


def _scattered(window: Ints, layer: Ints, expert: Ints, load: Floats) -> Floats:
    if len(load) == 0:
        raise PlannerError("holds no rows", where="load", hint="record while the engine serves")
    for name, values in (("window", window), ("layer", layer), ("expert", expert)):
        if int(values.min()) < 0 or int(values.max()) >= MOST_EXPERTS:
            raise PlannerError(f"has the {name} {int(values.min())} to {int(values.max())}", where=name)
    shape = (int(window.max()) + 1, int(layer.max()) + 1, int(expert.max()) + 1)
    counts: Floats = np.zeros(shape)
    np.add.at(counts, (window, layer, expert), load)
    return counts


def _json(path: Path, _: str | None) -> Counts:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or "logical_count" not in content:
        raise PlannerError("holds no `logical_count`", hint="give what SGLang's expert recorder wrote")
    return Counts(np.array(content["logical_count"], np.float64))


def _torch(path: Path, _: str | None) -> Counts:
    try:
        import torch
    except ImportError:
        raise PlannerError(
            "reading `.pt` needs torch", hint="pip install torch, or save `logical_count` as .npy"
        ) from None
    import pickle

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as problem:
        reason = str(problem).splitlines()[0]
        raise PlannerError(
            f"is no file of tensors: {reason}", hint="give what SGLang's expert recorder wrote"
        ) from None
    if not isinstance(content, dict) or "logical_count" not in content:
        raise PlannerError("holds no `logical_count`", hint="record with the modes `stat` or `stat_approx`")
    return Counts(content["logical_count"].to(torch.float64).numpy())


def _folder(path: Path, _: str | None) -> Counts:
    files = sorted(path.glob("*.jsonl"))
    if not files:
        raise PlannerError("holds no .jsonl", hint="name the folder that the routing trace was written to")
    return _of_records(record for file in files for record in _records(file))


def _jsonl(path: Path, _: str | None) -> Counts:
    return _of_records(_records(path))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                record = json.loads(line)
            except json.JSONDecodeError as problem:
                raise PlannerError(f"is no JSON: {problem.msg}", where=f"line {number}") from None
            if not isinstance(record, dict):
                raise PlannerError("is no JSON object", where=f"line {number}")
            yield record


def _of_records(records: Iterator[dict[str, Any]]) -> Counts:
    all_records = list(records)
    stats = [record for record in all_records if record.get("record_type") == "eplb_load_stats"]
    if stats:
        windows = [_vllm_window(record) for record in stats]
        layers, experts = (max(window.shape[axis] for window in windows) for axis in range(2))
        if any(len(window) != layers for window in windows):
            raise PlannerError("has records of different numbers of layers", where="expert_load", hint="name one run")
        return Counts(np.array([np.pad(row, ((0, 0), (0, experts - row.shape[1]))) for row in windows]), sparse=True)
    routed = [record for record in all_records if "top_indices" in record]
    if routed:
        return _megatron(routed)
    raise PlannerError(
        "holds neither load statistics of vLLM nor a routing trace of Megatron",
        hint="vLLM writes records `eplb_load_stats`, Megatron `top_indices`",
    )


def _vllm_window(record: dict[str, Any]) -> Floats:
    """[L, E] one record: loads of slots, added up by the expert that each slot had then."""
    load_LP, expert_LP = np.array(record["expert_load"], np.float64), _whole(record["p2l_map"], "p2l_map")
    if load_LP.shape != expert_LP.shape or load_LP.ndim != 2:
        raise PlannerError(
            f"has loads {load_LP.shape} for slots {expert_LP.shape} at step {record.get('step')}",
            where="expert_load",
            hint="both are [layers, slots]",
        )
    if load_LP.size == 0 or int(expert_LP.min()) < -1 or int(expert_LP.max()) >= MOST_EXPERTS:
        raise PlannerError(f"names an expert out of range at step {record.get('step')}", where="p2l_map")
    counts = np.zeros((len(load_LP), int(expert_LP.max()) + 1))
    layer, slot = np.nonzero(expert_LP >= 0)  # -1: an empty slot
    np.add.at(counts, (layer, expert_LP[layer, slot]), load_LP[layer, slot])
    return counts


def _megatron(records: list[dict[str, Any]]) -> Counts:
    """Every step is a window; layers of multi-token prediction come after the others."""
    last = max(int(record["layer"]) for record in records)
    keys = [
        int(record["layer"]) + (last + 1 + int(record["mtp_idx"]) if "mtp_idx" in record else 0) for record in records
    ]
    layers = sorted(set(keys))
    steps = sorted({int(record["step"]) for record in records})
    chosen = [_whole(record["top_indices"], "top_indices").ravel() for record in records]
    experts = max((int(ids.max()) for ids in chosen if ids.size), default=0) + 1
    if experts > MOST_EXPERTS or any(ids.size and int(ids.min()) < 0 for ids in chosen):
        raise PlannerError("names an expert out of range", where="top_indices")
    counts = np.zeros((len(steps), len(layers), experts))
    step_at, layer_at = ({value: index for index, value in enumerate(values)} for values in (steps, layers))
    for record, key, ids in zip(records, keys, chosen, strict=True):
        counts[step_at[int(record["step"])], layer_at[key]] += np.bincount(ids, minlength=experts)
    return Counts(counts, tuple(layers), sparse=True)


@contextmanager
def opened(path: str | Path, noun: str, hint: str) -> Iterator[Any]:
    """The content of an .npz file; PlannerError where there is none, or its content is not read as that of a `noun`."""
    where = str(path)
    try:
        with np.load(path, allow_pickle=False) as content:
            yield content
    except FileNotFoundError:
        raise file_not_found(path, otherwise=f"name the file of the {noun}") from None
    except (OSError, ValueError, KeyError, EOFError, RecursionError, BadZipFile) as problem:
        raise PlannerError(f"is no {noun}: {problem}", where=where, hint=hint) from None


def read_resident(path: str | Path) -> Ints:
    """[L, P] the layout in a placement file; of windows, the last."""
    with opened(path, "placement", "it holds `phy2log`") as content:
        layout = np.asarray(content["phy2log"])
    if layout.ndim not in (2, 3) or layout.size == 0 or layout.dtype.kind not in "iu":
        raise PlannerError(
            f"has a layout of shape {layout.shape} and type {layout.dtype}",
            where=str(path),
            hint="give whole numbers as [layer, slot]",
        )
    least = int(layout.min())
    if least < -1:
        raise PlannerError(
            f"names expert {least}", where=str(path), hint="experts count from 0, and -1 is an empty slot"
        )
    resident: Ints = (layout[-1] if layout.ndim == 3 else layout).astype(np.int64)
    return resident
