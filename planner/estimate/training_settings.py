"""Columns of a table of runs that set what options of a training problem set, where a table has them."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

from planner.costs.training.config import OptimizerName, TrainingConfig
from planner.errors import PlannerError, require_known
from planner.kinds.train.options import Offload, Overlap


def with_settings(config: TrainingConfig, row: Mapping[str, str]) -> TrainingConfig:
    """The configuration with optimizer, overlap, offloads, documents, stragglers, SHARP and load of experts as stated.

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
        yield "document_tokens", _number(row, "document_tokens", least=1.0, most=config.sequence_tokens)
    if row.get("step_spread"):
        yield "step_spread", _number(row, "step_spread", most=1.0)
    if row.get("in_network_reduction"):
        yield "in_network", _whole(row, "in_network_reduction", most=1.0) > 0.0
    if row.get("expert_fullest"):
        yield "expert_load", replace(config.expert_load, fullest=_number(row, "expert_fullest", least=1.0))


def _words(row: Mapping[str, str], column: str, known: tuple[str, ...]) -> frozenset[str]:
    """The words of a cell; `none` stands for none."""
    words = row[column].split()
    for word in words:
        require_known(column, word, (*known, "none"), where=column)
    return frozenset(words) - {"none"}


def _whole(row: Mapping[str, str], column: str, *, most: float) -> float:
    value = _number(row, column, most=most)
    if not value.is_integer():
        raise PlannerError(f"{value:g} is no whole number", where=column, hint="correct the row")
    return value


def _number(row: Mapping[str, str], column: str, *, least: float = 0.0, most: float = float("inf")) -> float:
    value = float(row[column])
    if not least <= value <= most:
        bounds = f"{least:g} to {most:g}" if most < float("inf") else f"{least:g} or more"
        raise PlannerError(f"{value:g} is not {bounds}", where=column, hint="correct the row")
    return value
