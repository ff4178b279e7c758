"""Serving plans on one node with a workload, predictions and limits, and programs that stand in for engines."""

import os
import sys
from pathlib import Path
from typing import Any

from emit_plans import QWEN, Case, RolePlan

from planner.plan.schema import Decision, Envelope, Prediction

HERE = Path(__file__).parent
LOAD = {"concurrency": 12}  # more than the least number of requests that is judged, in one round
LENGTHS = {"input_tokens": 16, "output_tokens": 8}
FAST: dict[str, Any] = {"ttft_s": 0.2, "tpot_s": 0.02}


def plan(
    *,
    load: dict[str, Any] | None = LOAD,
    slo: dict[str, Any] | None = None,
    predicted: dict[str, float] | None = None,
    roles: tuple[RolePlan, ...] = (RolePlan(),),
    **workload: Any,  # noqa: ANN401 - fields of a workload
) -> tuple[Envelope, Decision]:
    """A colocated plan on a node whose one workload has these fields."""
    envelope, decision = Case(roles, {"default": {"name": QWEN}}).build()
    entry: dict[str, Any] = {"name": "chat", **LENGTHS, **workload, "slo": slo or {}}
    entry |= {"load": load} if load is not None else {}
    times = FAST if predicted is None else predicted
    predictions = tuple(
        Prediction(metric=metric, of="chat", statistic="mean", value=value) for metric, value in times.items()
    )
    certificate = envelope.certificate.model_copy(
        update={"objective": envelope.certificate.objective.model_copy(update={"value": 1.0})}
    )
    changed = {"inputs": {**envelope.inputs, "workloads": [entry]}, "predictions": predictions}
    return envelope.model_copy(update={**changed, "certificate": certificate}), decision


def program(path: Path, script: str, *arguments: str) -> None:
    """An executable at `path` that runs a script of this folder with `arguments` before its own."""
    words = " ".join([sys.executable, str(HERE / script), *arguments])
    path.write_text(f'#!/usr/bin/env bash\nexec {words} "$@"\n', encoding="utf-8")
    path.chmod(0o755)


def processes_that_name(text: str) -> list[int]:
    """Processes with `text` in their command line, this one left out."""
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in command:
                processes.append(int(entry.name))
    return processes
