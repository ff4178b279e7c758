"""Columns of a table of runs that set what options of a training problem set, where a table has them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import inf, isfinite
from typing import Any, get_args

from planner.costs.training.config import Loading, OptimizerName, TrainingConfig
from planner.errors import PlannerError, require_known
from planner.kinds.train.options import LoadingSpec
from planner.kinds.train.search_options import Offload, Overlap

_LOADING = ("sample_bytes", "read_bytes_per_s", "samples_per_s")


def with_settings(config: TrainingConfig, row: Mapping[str, str]) -> TrainingConfig:
    """The configuration with optimizer, overlap, offloads, documents, stragglers, SHARP, load of experts and loading
    as stated.

    Raises PlannerError for a value that no problem takes either.
    """
    return replace(config, **dict(_settings(config, row)))


def _settings(config: TrainingConfig, row: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    if optimizer := row.get("optimizer"):
        require_known("optimizer", optimizer, get_args(OptimizerName), where="optimizer")
        yield "optimizer", optimizer
    if row.get("overlap"):
        yield "overlap", _words(row, "overlap", get_args(Overlap))
    if row.get("offload"):
        yield "offload", _words(row, "offload", get_args(Offload))
    if row.get("moved_layers"):
        yield "moved_layers", int(_whole(row, "moved_layers", most=config.arch.num_layers - 1))
    if row.get("document_tokens"):
        yield "document_tokens", number(row, "document_tokens", least=1.0, most=config.sequence_tokens)
    if row.get("step_spread"):
        yield "step_spread", number(row, "step_spread", below=1.0)
    if row.get("in_network_reduction"):
        yield "in_network", switched(row, "in_network_reduction")
    if any(row.get(name) for name in _LOADING):
        yield "loading", _loading(row)
    if row.get("expert_fullest"):
        yield "expert_load", replace(config.expert_load, fullest=number(row, "expert_fullest", least=1.0))


def switched(row: Mapping[str, str], column: str) -> bool:
    """Whether a column of 1 or 0 is on."""
    value = number(row, column)
    if value not in (0.0, 1.0):
        raise PlannerError(f"{value:g} is not 1 or 0", where=column, hint="write 1 or 0, or leave it empty")
    return value > 0.0


def _loading(row: Mapping[str, str]) -> Loading:
    """What brings samples, as `options.loading` says it."""
    stated = {name: number(row, name, above=0.0) for name in _LOADING if row.get(name)}
    if "read_bytes_per_s" in stated and "sample_bytes" not in stated:
        raise PlannerError(
            "a store that is read by samples of no size", where="read_bytes_per_s", hint="fill in `sample_bytes`"
        )
    return LoadingSpec(**stated).arriving()


def _words(row: Mapping[str, str], column: str, known: tuple[str, ...]) -> frozenset[str]:
    """The words of a cell; `none` stands for none."""
    words = row[column].split()
    for word in words:
        require_known(column, word, (*known, "none"), where=column)
    return frozenset(words) - {"none"}


def _whole(row: Mapping[str, str], column: str, *, most: float) -> float:
    value = number(row, column, most=most)
    if not value.is_integer():
        raise PlannerError(f"{value:g} is no whole number", where=column, hint="round it, or leave it empty")
    return value


def number(
    row: Mapping[str, str], column: str, *, least: float = 0.0, most: float = inf, above: float = -inf,
    below: float = inf,
) -> float:  # fmt: skip
    """A finite number of `least` to `most` that lies above and below what it must not reach."""
    value = _read(row, column)
    if least <= value <= most and above < value < below and isfinite(value):
        return value
    low = f"more than {above:g}" if isfinite(above) else f"{least:g} or more"
    high = f" and at most {most:g}" if isfinite(most) else f" and below {below:g}" if isfinite(below) else ""
    shown = f"{value:g} is not {'finite' if not isfinite(value) else low + high}"
    raise PlannerError(shown, where=column, hint=f"write {low}{high}, or leave it empty")


def _read(row: Mapping[str, str], column: str) -> float:
    try:
        return float(row[column])
    except ValueError:
        raise PlannerError(f"`{row[column]}` is no number", where=column, hint="write one, or leave it empty") from None
