"""Parses facts of a deployment that a benchmark report leaves out, given by the user: `tp=8`, `system=h200_sxm`.

Names are the columns of the table of measured deployments (`planner.estimate.measured`).
"""

import math
from collections.abc import Mapping, Sequence

from planner.errors import PlannerError, did_you_mean
from planner.estimate.settings import COLUMNS

DEGREES = ("tp", "pp", "dp", "moe_tp", "moe_ep", "workers")
LOAD = ("isl", "osl", "isl_cv", "concurrency", "rate_per_s")
COUNTS = (*(f"{prefix}{name}" for prefix in ("", "prefill_", "decode_") for name in DEGREES), "gpus", "concurrency")
NAMES = tuple(
    dict.fromkeys(("model", "weights", "system", "backend", "backend_version", "mode", *COLUMNS, *LOAD, *COUNTS[:-1]))
)
EXAMPLES = {
    "model": "Qwen/Qwen3-32B",
    "system": "h200_sxm",
    "backend": "vllm",
    "isl": "1024",
    "osl": "256",
    "concurrency": "64",
    "gpus": "8",
}
_MODES = ("agg", "disagg")


def read_facts(given: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` texts by name; raises PlannerError for names that are unknown and values that do not fit."""
    facts: dict[str, str] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not value:
            raise PlannerError(
                f"must be NAME=VALUE, found `{text}`", where="--fact", hint="write for example `--fact tp=8`"
            )
        if name not in NAMES:
            raise PlannerError(
                f"unknown fact `{name}`",
                where="--fact",
                hint=did_you_mean(name, list(NAMES), otherwise=f"known are {', '.join(NAMES)}"),
            )
        require_fitting(name, value, "--fact")
        facts[name] = value
    return facts


def require_fitting(name: str, value: str, where: str) -> None:
    """Raises PlannerError for a count below 1, a length or rate that is no positive number, and an unknown mode."""
    hint = f"write for example `--fact {name}={EXAMPLES.get(name, '1')}`"
    if name in COUNTS and not (value.isascii() and value.isdecimal() and int(value[:9]) > 0 and len(value) < 9):
        raise PlannerError(f"`{name}` must be a whole number of at least 1, found `{value}`", where=where, hint=hint)
    if name in ("isl", "osl", "isl_cv", "rate_per_s", "memory_utilisation"):
        number = _number(value)
        if not 0 < number < 1e9 or (name == "memory_utilisation" and number > 1):
            raise PlannerError(f"`{name}` must be a positive number, found `{value}`", where=where, hint=hint)
    if name == "mode" and value not in _MODES:
        raise PlannerError(f"`mode` must be agg or disagg, found `{value}`", where=where, hint=hint)


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return math.nan


def missing(name: str, source: str, generator: str) -> PlannerError:
    """The error that names the fact, and the option that gives it."""
    how = f"add `--fact {name}={EXAMPLES.get(name, '8')}`"
    if name not in LOAD:
        how += ", or `--plan PLAN` with the plan whose deployment was measured"
    return PlannerError(f"this report of {generator} does not tell `{name}`", where=source, hint=how)


def completed_row(facts: Mapping[str, str], source: str, generator: str) -> dict[str, str]:
    """The row of a table that `facts` make, with what follows from them; raises PlannerError naming what is missing.

    Pipeline and data parallelism are 1 where not told, and experts are split over no group (expert parallelism 1).
    """
    row = {"mode": "disagg" if "decode_tp" in facts or "prefill_tp" in facts else "agg", **facts}
    for name in ("model", "backend", "system"):
        if name not in row:
            raise missing(name, source, generator)
    apart = row["mode"] == "disagg"
    used = 0
    for prefix in ("prefill_", "decode_") if apart else ("",):
        used += _complete_role(row, prefix, source, generator)
    gpus = int(row.setdefault("gpus", str(used)))
    if not apart and "workers" not in facts and gpus > used and gpus % used == 0:
        row["workers"] = str(gpus // used)
    elif gpus != used:
        raise PlannerError(
            f"`gpus` is {gpus}, and the degrees of parallelism make {used}",
            where=source,
            hint="correct one of them with `--fact`, or add `--fact workers=N`",
        )
    return row


def _complete_role(row: dict[str, str], prefix: str, source: str, generator: str) -> int:
    """Fills in one role's degrees; returns its GPUs."""
    if f"{prefix}tp" not in row:
        raise missing(f"{prefix}tp", source, generator)
    for name in DEGREES:
        if name != "moe_tp":
            row.setdefault(f"{prefix}{name}", "1")
    tp, pp, dp, ep, workers = (int(row[f"{prefix}{name}"]) for name in ("tp", "pp", "dp", "moe_ep", "workers"))
    if tp * dp % ep:
        raise PlannerError(
            f"`{prefix}moe_ep` is {ep}, and does not divide {tp * dp} GPUs of tp x dp",
            where=source,
            hint=f"correct it with `--fact {prefix}moe_ep=N`",
        )
    row.setdefault(f"{prefix}moe_tp", str(tp * dp // ep))
    return tp * pp * dp * workers
