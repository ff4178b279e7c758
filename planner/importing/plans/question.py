"""What an artifact does not say and a plan needs: its requests, their limits, and the machines.

`--workload input=1500,output=300,rate=20/s`, `--slo ttft.p99=2s,itl=50ms` and `--cluster gpu=h100,nodes=4` are fields
of a problem under their own names (or short ones), a mapping of YAML, or a file that holds one; so are those of
`--cache`, by tier.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.documents.files import read_text
from planner.documents.read import given_document, parse_document
from planner.errors import PlannerError

_SHORT = {"input": "input_tokens", "output": "output_tokens", "rate": "load.rate", "concurrency": "load.concurrency"}
_HINTS = {
    "--workload": "write `--workload input=1500,output=300,rate=20/s`",
    "--slo": "write `--slo ttft.p99=2s,itl=50ms`",
    "--cluster": "write `--cluster gpu=h100,nodes=4`",
    "--cache": "write `--cache pool.size=512GB,pool.usd_per_gb_hour=0.001,pool.bandwidth=25GB/s`",
}


@dataclass(frozen=True, slots=True)
class Question:
    """Fields of a workload, its limits and a pool, as a problem has them; empty where nothing was said."""

    workload: Mapping[str, Any]
    slo: Mapping[str, Any]
    cluster: Mapping[str, Any]
    model: str | None = None  # what the catalog calls the model, or the path of its config.json
    calibration: str | None = None  # a file of costs
    cache: Mapping[str, Any] = field(default_factory=dict)  # by tier of memory for prefixes, what it costs and gives

    @classmethod
    def of(
        cls,
        workload: str | Mapping[str, Any] | None = None,
        slo: str | Mapping[str, Any] | None = None,
        cluster: str | Mapping[str, Any] | None = None,
        model: str | None = None,
        calibration: str | None = None,
        cache: str | None = None,
    ) -> "Question":
        """From the texts of the flags, or from data. Raises PlannerError, naming the flag and how it is written."""
        stated = {flag: _fields(text, flag) for flag, text in
                  (("--workload", workload), ("--slo", slo), ("--cluster", cluster), ("--cache", cache))}  # fmt: skip
        limits = {**_mapping(stated["--workload"].pop("slo", None)), **stated["--slo"]}
        return cls(stated["--workload"], limits, stated["--cluster"], model, calibration, stated["--cache"])

    @property
    def costs(self) -> dict[str, Any]:
        """The section of a problem that names the costs."""
        return {} if self.calibration is None else {"costs": {"calibration": self.calibration}}


def _fields(text: str | Mapping[str, Any] | None, flag: str) -> dict[str, Any]:
    if text is None:
        return {}
    if isinstance(text, Mapping):
        return _nested(given_document(dict(text), flag.removeprefix("--")).data)
    source = flag
    if text.endswith((".yaml", ".yml", ".json")) or Path(text).is_file():
        text, source = read_text(text), text
    if "\n" not in text and not text.strip().startswith("{"):
        return _assigned(text, flag)
    data = parse_document(text, source).data
    if not isinstance(data, dict):
        raise PlannerError("must be fields with values", where=source, hint=_HINTS[flag])
    return _nested({str(key): value for key, value in data.items()})


def _assigned(text: str, flag: str) -> dict[str, Any]:
    """`a=1,b.c=2` as a mapping; commas inside brackets part nothing."""
    pairs = {}
    for part in re.split(r",(?![^{\[]*[}\]])", text):
        name, equals, value = part.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise PlannerError(f"must be NAME=VALUE, found `{part.strip()}`", where=flag, hint=_HINTS[flag])
        pairs[name.strip()] = parse_document(value.strip(), flag).data
    return _nested(pairs)


def _nested(pairs: Mapping[str, Any]) -> dict[str, Any]:
    """Names with dots as mappings, short names in full."""
    data: dict[str, Any] = {}
    for name, value in pairs.items():
        *holders, last = _SHORT.get(name, name).split(".")
        place = data
        for holder in holders:
            inner = place.setdefault(holder, {})
            if not isinstance(inner, dict):
                inner = place[holder] = {}
            place = inner
        place[last] = value
    load = data.get("load")
    if isinstance(load, dict) and isinstance(load.get("rate"), int | float):
        load["rate_per_s"] = load.pop("rate")
    return data


def _mapping(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}
