"""Rows of a table of measured deployments as cases.

Columns (one row a benchmark point): id, source, aic_model or model, weights, system, backend, backend_version, mode
(agg, disagg), isl, osl, concurrency, gpus; agg: tp, pp, dp, moe_tp, moe_ep; disagg: the same with the prefixes
prefill_ and decode_, and workers.
Where `source` is inferencex, lengths are uniform in [0.8, 1.0] of the nominal ones.
"""

import csv
from collections.abc import Iterator
from functools import cache

from planner.errors import PlannerError
from planner.estimate.case import Case, Part, Refused
from planner.hardware.cluster import Pool
from planner.models.architecture import Architecture

REQUIRED = ("id", "system", "backend", "mode", "isl", "osl", "concurrency", "gpus")
UNIFORM_LOW = 0.8
UNIFORM_MEAN = (1.0 + UNIFORM_LOW) / 2.0
UNIFORM_CV = (1.0 - UNIFORM_LOW) / 12**0.5 / UNIFORM_MEAN
MEMORY_UTILISATION = 0.95  # rows ran with settings between 0.80 and 0.95 that the table does not state
_CHECKPOINT = ("", "checkpoint default")


def cases_of_table(path: str) -> Iterator[Case | Refused]:
    """One case a row; raises PlannerError when the file cannot be read or lacks a column."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in REQUIRED if name not in (reader.fieldnames or ())]
            if missing:
                raise PlannerError(
                    f"has no column `{missing[0]}`",
                    where=f"{path}:1",
                    hint=f"its columns must hold {', '.join(REQUIRED)}",
                )
            yield from (_case(row) for row in reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or "it is no table of UTF-8 text"
        raise PlannerError(f"cannot be read: {reason}", where=path, hint="check the path") from None


def _case(row: dict[str, str]) -> Case | Refused:
    try:
        return _build(row)
    except PlannerError as error:
        return Refused(row.get("id") or "", error.what)
    except (ValueError, KeyError, TypeError) as error:
        return Refused(row.get("id") or "", f"a field is missing or no number: {error}")


def _build(row: dict[str, str]) -> Case:
    uniform = row.get("source") == "inferencex"
    scale, spread = (UNIFORM_MEAN, UNIFORM_CV) if uniform else (1.0, 0.0)
    gpus = int(float(row["gpus"]))
    disaggregated = row["mode"] == "disagg"
    return Case(
        id=row["id"],
        arch=_model(row.get("aic_model") or row["model"], row.get("weights") or ""),
        pool=_pool(row["system"], gpus),
        engine=row["backend"],
        version=row.get("backend_version") or None,
        memory_utilisation=MEMORY_UTILISATION,
        isl=float(row["isl"]) * scale,
        osl=float(row["osl"]) * scale,
        isl_cv=spread,
        clients=int(float(row["concurrency"])),
        rate_per_s=0.0,
        prefill=_part(row, "prefill_") if disaggregated else None,
        decode=_part(row, "decode_") if disaggregated else _part(row, ""),
        gpus=gpus,
    )


def _part(row: dict[str, str], prefix: str) -> Part:
    tp, pp, dp, moe_tp, ep = (
        int(float(row[f"{prefix}{name}"] or 1)) for name in ("tp", "pp", "dp", "moe_tp", "moe_ep")
    )
    replicas = int(float(row[f"{prefix}workers"])) if prefix else 1
    return Part(replicas, tp, pp, dp, moe_tp, ep)


@cache
def _model(name: str, weights: str) -> Architecture:
    from planner.models.library import find_model, with_precision

    architecture = find_model(name)
    return architecture if weights in _CHECKPOINT else with_precision(architecture, weights)


@cache
def _pool(system: str, gpus: int) -> Pool:
    from planner.hardware.library import find_node

    node = find_node(system)
    return Pool(node.accelerator.name, node, max(1, -(-gpus // node.num_gpus)))
