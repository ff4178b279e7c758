"""Predicts rows of measured training runs: step time with interval, tokens per second and GPU, memory, whether it fits.

`memory_share` is of the device, with what driver and libraries hold.
"""

import csv
import json
from collections.abc import Iterator, Mapping

from planner.costs.rates.pricer import open_store, profile_paths
from planner.costs.training.config import Machine, TrainingConfig
from planner.costs.training.intervals import step_interval_s
from planner.costs.training.memory import memory
from planner.costs.training.optimizers.host import host_room_bytes
from planner.costs.training.rates import Rates, rates_on
from planner.costs.training.step import step_time
from planner.errors import PlannerError, in_one_line
from planner.estimate.training_rows import REQUIRED, choices_of, completed, config_of_row
from planner.hardware.cluster import Pool
from planner.hardware.profiles.store import ProfileStore


def is_training_table(path: str) -> bool:
    """Whether the columns of this table are those of training runs; false for what cannot be read."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            header = next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return False
    return "isl" not in header and {"seq", "gbs", "num_gpus"} <= set(header)


def training_lines(path: str, profiles: tuple[str, ...] = ()) -> Iterator[str]:
    """One line of JSON for every row, in order; raises PlannerError for a table that lacks a column.

    Products take what the kernel tables `profiles` hold of a row's GPU.
    """
    store = open_store(profile_paths(profiles))
    rates_of: dict[Machine, Rates] = {}
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [name for name in REQUIRED if name not in (reader.fieldnames or ())]
        if missing:
            raise PlannerError(
                f"has no column `{missing[0]}`", where=f"{path}:1", hint=f"its columns must hold {', '.join(REQUIRED)}"
            )
        for row in reader:
            yield _line(row, rates_of, store)


def _line(row: Mapping[str, str], rates_of: dict[Machine, Rates], store: ProfileStore | None) -> str:
    """The prediction of one row; `rates_of` keeps what was found for each machine."""
    name = row.get("id") or ""
    try:
        stated = config_of_row(row)
        machine = stated.config.machine
        if machine not in rates_of:
            pool = Pool(machine.node.name, machine.node, num_nodes=1)
            rates_of[machine] = rates_on(pool, stated.config.arch, "default", store)
        rates = rates_of[machine]
        config = completed(stated, rates)
        return json.dumps({"id": name, "prediction": _prediction(config, rates), "chosen": choices_of(stated, config)})
    except PlannerError as error:
        return json.dumps({"id": name, "error": in_one_line(error)})


def _prediction(config: TrainingConfig, rates: Rates) -> dict[str, object]:
    time, held = step_time(config, rates), memory(config, rates)
    total_bytes, host_bytes = float(held.total_R.max()), float(held.host_R.max())
    return {
        "step_time_s": time.step_s,
        "step_time_s_interval": step_interval_s(config, time.step_s, rates),
        "tokens_per_s_per_gpu": time.tokens_per_s_per_gpu(config),
        "memory_bytes": total_bytes - rates.get("memory.context_bytes"),
        "memory_share": total_bytes / config.machine.memory_bytes,
        **({"host_memory_bytes": host_bytes} if config.offload else {}),
        "fits": total_bytes <= config.machine.memory_bytes and host_bytes <= host_room_bytes(config.machine.node),
    }
