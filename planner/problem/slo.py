"""The schema of service level objectives: limits on statistics of times, and how surely they are kept."""

import math
from collections.abc import Iterator
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from planner.documents.units import FRACTION, TIME_S, parse_quantity
from planner.errors import PlannerError
from planner.problem.statistics import quantile_of
from planner.schema.base import Spec, refuse
from planner.schema.fields import Positive


class Limit(Spec):
    """A limit on statistics of a time, any percentile among them; a bare time such as `ttft: 200ms` means its p95."""

    model_config = ConfigDict(extra="allow")
    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        statistic: (f"{statistic}_s", TIME_S) for statistic in ("mean", "p50", "p90", "p95", "p99")
    }
    mean_s: Positive | None = None
    p50_s: Positive | None = None
    p90_s: Positive | None = None
    p95_s: Positive | None = None
    p99_s: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def any_percentile(cls, data: object) -> object:
        """Percentiles that are no fields, such as `p99.9: 1s` or `p99.9_s: 1.0`, under one name for each."""
        if isinstance(data, (str, int, float)):
            try:
                return {"p95_s": parse_quantity(data, TIME_S)}
            except PlannerError as error:
                raise refuse(error.what, error.hint) from None
        if not isinstance(data, dict):
            return data
        known = {*cls.model_fields, *cls.quantities}
        given = {key: value for key, value in data.items() if key in known}
        for key, value in data.items():
            if key not in known:
                name = _percentile(key)
                if {name, name.removesuffix("_s")} & set(given):
                    raise refuse(f"`{key}` is given twice", f"keep one limit on {name.removesuffix('_s')}", key)
                given[name] = _seconds(key, value)
        return given

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        bare = {"type": "string", "description": f"p95 with its unit, one of {', '.join(TIME_S)}"}
        number = r"(?!0+(\.0+)?(_s)?$)[0-9]{1,2}(\.[0-9]+)?"
        others = {f"^p{number}$": {"type": "string"}, f"^p{number}_s$": {"type": "number", "exclusiveMinimum": 0}}
        return {"anyOf": [bare, {**schema, "patternProperties": others, "additionalProperties": False}]}

    @model_validator(mode="after")
    def some_statistic(self) -> "Limit":
        if not self.statistics():
            raise refuse("a limit names the mean or a percentile at least", "write for example `p95: 200ms`")
        return self

    def statistics(self) -> dict[str, float]:
        """Limits in seconds by statistic name, those given: the mean, then percentiles by size."""
        stated = {**{name: getattr(self, name) for name in type(self).model_fields}, **(self.model_extra or {})}
        given = {name.removesuffix("_s"): value for name, value in stated.items() if value is not None}
        return dict(sorted(given.items(), key=lambda item: quantile_of(item[0]) or 0.0))


def _percentile(key: object) -> str:
    """The field that a percentile has, such as `p99.9_s`; raises for what is no percentile, or none that can be."""
    text = str(key)
    try:
        quantile = quantile_of(text.removesuffix("_s"))
    except PlannerError as error:
        raise refuse(error.what, error.hint, text) from None
    if quantile is None:
        return "mean_s"
    return f"p{100.0 * quantile:.10f}".rstrip("0").rstrip(".") + "_s"


def _seconds(key: str, value: object) -> float | None:
    """Seconds of a limit under its short name, with a unit, or its SI name."""
    if value is None:
        return None
    if key.endswith("_s"):
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            short = key.removesuffix("_s")
            raise refuse(f"must be a number of seconds, found {value!r}", f"write `{short}: 200ms`", key)
        seconds = float(value)
    else:
        try:
            seconds = parse_quantity(value, TIME_S, key=key)
        except PlannerError as error:
            raise refuse(error.what, error.hint, key) from None
    if not 0.0 < seconds < math.inf:
        raise refuse(f"`{key}` must be above 0, found {seconds:g}", "write for example `p99.9: 1s`", key)
    return seconds


class SloSpec(Spec):
    """What users must feel; `attainment` is the share of requests that must meet every stated p-limit at once."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "attainment": ("attainment", FRACTION),
        "confidence": ("confidence", FRACTION),
    }
    ttft: Limit | None = Field(default=None, description="time to first token")
    tpot: Limit | None = Field(default=None, description="time per output token after the first")
    itl: Limit | None = Field(
        default=None,
        description="gap between two tokens of a request; its percentiles are of the gaps of all requests together",
    )
    latency: Limit | None = Field(default=None, description="whole request, arrival to last token")
    attainment: Annotated[float, Field(gt=0, le=1)] | None = None
    confidence: Annotated[float, Field(ge=0.5, le=0.99)] | None = Field(
        default=None,
        description="how sure the limits must be kept, by the error of the predictions; half: by the estimate alone; "
        "where absent 70%, or less where that has no plan or is not worth its price",
    )

    @property
    def has_time_limits(self) -> bool:
        """Whether there is a limit on a time."""
        return any(True for _ in self.limits())

    def limits(self) -> Iterator[tuple[str, str, float]]:
        """Every limit stated on a time (`ttft`, `tpot`, `itl`, `latency`, in this order), its statistic and seconds."""
        for name in ("ttft", "tpot", "itl", "latency"):
            limit: Limit | None = getattr(self, name)
            for statistic, bound_s in limit.statistics().items() if limit is not None else ():
                yield name, statistic, bound_s

    def percentile_limits(self) -> dict[str, float]:
        """The strictest limit in seconds on a percentile of each time that has one: what an attainment is about.

        Gaps between tokens (`itl`) are no times of a request: an attainment leaves their limits out.
        """
        strictest: dict[str, float] = {}
        for name, statistic, bound_s in self.limits():
            if statistic != "mean" and name != "itl":
                strictest[name] = min(bound_s, strictest.get(name, bound_s))
        return strictest
