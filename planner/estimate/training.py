"""Predicts rows of measured training runs: step time with interval, tokens per second and GPU, memory, whether it fits.

`memory_share` is of the device, with what driver and libraries hold.
"""

import csv
import json
from collections.abc import Iterator, Mapping

from planner.costs.training.config import TrainingConfig
from planner.costs.training.intervals import step_interval_s
from planner.costs.training.memory import memory
from planner.costs.training.rates import default_rates
from planner.costs.training.step import step_time
from planner.errors import PlannerError
from planner.estimate.training_rows import REQUIRED, choices_of, completed, config_of_row


def is_training_table(path: str) -> bool:
    """Whether the columns of this table are those of training runs; false for what cannot be read."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            header = next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return False
    return "isl" not in header and {"seq", "gbs", "num_gpus"} <= set(header)


def training_lines(path: str) -> Iterator[str]:
    """One line of JSON for every row, in order; raises PlannerError for a table that lacks a column."""
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [name for name in REQUIRED if name not in (reader.fieldnames or ())]
        if missing:
            raise PlannerError(
                f"has no column `{missing[0]}`", where=f"{path}:1", hint=f"its columns must hold {', '.join(REQUIRED)}"
            )
        yield from (_line(row) for row in reader)


def _line(row: Mapping[str, str]) -> str:
    name = row.get("id") or ""
    try:
        stated = config_of_row(row)
        config = completed(stated)
        return json.dumps({"id": name, "prediction": _prediction(config), "chosen": choices_of(stated, config)})
    except PlannerError as error:
        return json.dumps({"id": name, "error": error.what})


def _prediction(config: TrainingConfig) -> dict[str, object]:
    time, fullest = step_time(config), memory(config)
    return {
        "step_time_s": time.step_s,
        "step_time_s_interval": step_interval_s(config, time.step_s, default_rates()),
        "tokens_per_s_per_gpu": time.tokens_per_s_per_gpu(config),
        "memory_bytes": fullest.allocated_bytes,
        "memory_share": fullest.total_bytes / config.machine.memory_bytes,
        "fits": fullest.total_bytes <= config.machine.memory_bytes,
    }
