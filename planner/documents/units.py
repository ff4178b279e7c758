"""Parses and prints quantities with units: `200ms` or `400Gb/s` to SI numbers and back.

Decimal prefixes are powers of ten (`80GB` is 80e9 bytes), binary ones powers of two (`80GiB`); `b` is bits, `B` bytes.
"""

import re
import sys

from planner.errors import PlannerError

_LARGEST = sys.float_info.max  # a whole number beyond it has no float
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ%$/ ]*?)\s*")
_BARE = re.compile(r"\d{1,15}(?:\.\d{1,9})?")
_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}

TIME_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {f"{p}B": f for p, f in {**_PREFIX, **_BINARY}.items()}
BYTES_PER_S = {f"{u}/s": f for u, f in BYTES.items()} | {f"{p}b/s": f / 8 for p, f in _PREFIX.items()}
BYTES_PER_S |= {f"{p}bps": f / 8 for p, f in _PREFIX.items()}
FLOP_PER_S = {f"{p}{unit}": f for p, f in _PREFIX.items() for unit in ("FLOPS", "FLOP/s", "OPS", "OP/s")}
POWER_W = {"W": 1.0, "kW": 1e3}
USD_PER_HOUR = {"USD/h": 1.0, "$/h": 1.0, "USD/hour": 1.0, "USD/d": 1 / 24}
PER_S = {"/s": 1.0, "req/s": 1.0, "/min": 1 / 60, "req/min": 1 / 60, "/h": 1 / 3600, "req/h": 1 / 3600}
FRACTION = {"%": 0.01, "": 1.0}

_EXAMPLES = {
    id(TIME_S): ("a time", "200ms"),
    id(BYTES): ("a size", "80GB"),
    id(BYTES_PER_S): ("a bandwidth", "400Gb/s"),
    id(FLOP_PER_S): ("a speed", "989TFLOPS"),
    id(POWER_W): ("a power", "700W"),
    id(USD_PER_HOUR): ("a price", "2.50USD/h"),
    id(PER_S): ("a rate", "12/s"),
    id(FRACTION): ("a fraction", "90%"),
}

_SUFFIXES = (  # of a metric's name, and the unit it is printed in
    ("_usd_per_hour", "USD/h"),
    ("_usd_per_gpu_hour", "USD/h"),
    ("_bytes_per_s", "B/s"),
    ("_flop_per_s", "FLOP/s"),
    ("_bytes", "B"),
    ("_w", "W"),
)
_UNITS = {  # of metrics whose name does not say it
    "goodput_per_gpu": "requests/s/gpu",
    "usd_per_mtok": "USD/Mtok",
    "usd_per_iteration": "USD/iteration",
    "tokens_per_usd": "tokens/USD",
    "rate_per_s": "requests/s",
    "usd": "USD",
    "opportunistic_usd": "USD",
}


def parse_quantity(text: object, units: dict[str, float], *, where: str = "", key: str = "") -> float:
    """The SI value of `text` in one of `units`; a bare number is refused unless the table has an empty unit.

    Raises PlannerError naming the value found and an example of the value wanted, under its `key` where it has one.
    """
    kind, example = _EXAMPLES.get(id(units), ("a quantity", next(iter(units))))
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match is not None and match[2] in units:
        return _scaled(float(match[1]), units[match[2]])
    if isinstance(text, (int, float)) and not isinstance(text, bool) and "" in units and abs(text) <= _LARGEST:
        return float(text)
    raise PlannerError(
        f'must be {kind} such as "{example}", found {text!r}',
        where=where,
        hint=f"write `{f'{key}: ' if key else ''}{_with_unit(text, units, example)}`",
    )


def example_of(units: dict[str, float]) -> str:
    """A quantity in one of `units`, as people write it."""
    return _EXAMPLES.get(id(units), ("", f"1{next(iter(units))}"))[1]


def _with_unit(text: object, units: dict[str, float], example: str) -> str:
    """A bare number with the unit of `example`, a time below 1 in seconds; the example for all else."""
    bare = str(text).strip()
    if isinstance(text, bool) or not isinstance(text, (int, float, str)) or not _BARE.fullmatch(bare):
        return example
    unit = example.lstrip("0123456789.")
    return f"{bare}{'s' if units is TIME_S and float(bare) < 1 else unit}"


def _scaled(value: float, factor: float) -> float:
    """`value * factor`; small factors divide by their whole inverse, so that `5us` is exactly the float 5e-06."""
    return value * factor if factor >= 1 else value / round(1 / factor)


def format_si(value: float, unit: str) -> str:
    """`value` with three significant figures and a decimal prefix: `41.2 ms`, `1.83 TB/s`."""
    if value == 0:
        return f"0 {unit}"
    for factor, prefix in (
        (1e15, "P"),
        (1e12, "T"),
        (1e9, "G"),
        (1e6, "M"),
        (1e3, "k"),
        (1.0, ""),
        (1e-3, "m"),
        (1e-6, "µ"),
    ):
        if abs(value) >= factor * 0.9995:
            return f"{significant(value / factor)} {prefix}{unit}"
    return f"{significant(value / 1e-9)} n{unit}"


def significant(value: float, digits: int = 3) -> str:
    """`value` rounded to `digits` significant figures, without an exponent between 1e-4 and 1e6."""
    rounded = float(f"{value:.{digits}g}")
    if rounded != 0 and not 1e-4 <= abs(rounded) < 1e6:
        return f"{rounded:.{digits}g}"
    decimals = max(0, digits - len(str(int(abs(rounded))))) if abs(rounded) >= 1 else digits + 2
    return f"{rounded:.{decimals}f}" if abs(rounded) >= 1 else f"{rounded:.{digits}g}"


def figure(metric: str, value: float | None) -> str:
    """`value` with the unit that the name of its metric ends in, three significant figures: `41.2 ms`."""
    if value is None:
        return "-"
    if metric == "gpus" and float(value).is_integer():
        return str(int(value))
    if metric == "imbalance":  # what is above 1 is what matters of it
        return f"{value:.4f}"
    if metric in _UNITS:
        return f"{significant(value)} {_UNITS[metric]}"
    for suffix, unit in _SUFFIXES:
        if metric.endswith(suffix) or metric == suffix[1:]:
            return f"{significant(value)} {unit}" if unit.startswith("USD") else format_si(value, unit)
    if "per_s" in metric:
        counted = metric.split("_per_s")[0].rpartition("_")[2]
        rest = metric.split("_per_s")[1].replace("_per_", "/").replace("_", " ")
        return f"{significant(value)} {counted}/s{rest}"
    if metric.endswith("_s"):
        return format_si(value, "s")
    return significant(value)


def span(low: str, high: str) -> str:
    """`5.39 to 7.26 s`: two figures, the unit that they share said once."""
    number, _, unit = low.partition(" ")
    return f"{number if unit and high.endswith(f' {unit}') else low} to {high}"


def clock(seconds: float) -> str:
    """`07:30`: seconds since midnight, to the minute."""
    minutes = round(seconds / 60.0)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"
