"""Schema of a sweep file: the base problem, axes over its fields, and what to report."""

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, JsonValue, model_validator

from planner.documents.read import Document, load_document
from planner.errors import PlannerError
from planner.schema.base import Spec, Where, refuse
from planner.schema.fields import Name
from planner.schema.keys import validated

SCHEMA: Final = "planner.sweep/1"
MAX_POINTS = 200_000
DEFAULT_SCENARIO = "base"  # of a sweep that names none

Text = Annotated[str, Field(min_length=1, max_length=1000)]
End = int | float | str


class AxisSpec(Spec):
    """One axis: a field with its values or its range, or named cases that set several fields together."""

    field: Text | None = Field(default=None, description="a path as `--set` takes it, or a short name such as `rate`")
    name: Name | None = Field(default=None, description="of the column; the field when absent")
    values: Annotated[tuple[JsonValue, ...], Field(min_length=1)] | None = None
    cases: Annotated[dict[Name, dict[Text, JsonValue]], Field(min_length=1)] | None = Field(
        default=None, description="values of several fields by the name of the case"
    )
    from_: End | None = Field(default=None, alias="from", description="first value of a range")
    to: End | None = Field(default=None, description="last value of a range")
    steps: Annotated[int, Field(ge=2, le=MAX_POINTS)] | None = Field(default=None, description="values of a range")
    log: bool = Field(default=False, description="equal ratios in place of equal distances")
    choice: bool = Field(default=False, description="its best value is part of the decision, as the plan is")

    @model_validator(mode="after")
    def one_form(self) -> "AxisSpec":
        forms = [self.values is not None, self.cases is not None, self.from_ is not None or self.to is not None]
        if sum(forms) != 1:
            raise refuse("an axis has either `values`, `cases`, or `from` and `to`", "keep one of the three")
        if forms[2] and (self.from_ is None or self.to is None):
            raise refuse("a range needs both `from` and `to`", "give the other end")
        if self.cases is None and self.field is None:
            raise refuse("an axis needs a `field`", "write for example `field: slo.ttft`")
        if self.cases is not None and (self.field is not None or self.name is None):
            raise refuse("an axis of cases has a `name` and no `field`", "name it; every case names its fields")
        return self

    @property
    def title(self) -> str:
        """What the axis is called."""
        return self.name or self.field or ""


class ScenarioSpec(Spec):
    """A named variation of the base problem; every point is solved in each of them."""

    name: Name
    set: dict[Text, JsonValue] = Field(default_factory=dict, description="values by field")


class SweepSpec(Spec):
    """A whole sweep."""

    schema_: Literal["planner.sweep/1"] = Field(default=SCHEMA, alias="schema")
    name: Name | None = Field(default=None, description="of the cache; the file's own name when absent")
    base: Text = Field(description="path of the problem, relative to this file")
    set: dict[Text, JsonValue] = Field(default_factory=dict, description="values by field, for every point")
    scenarios: tuple[ScenarioSpec, ...] = ()
    axes: tuple[AxisSpec, ...] = ()
    mode: Literal["grid", "zip", "sample"] = "grid"
    samples: Annotated[int, Field(ge=1, le=MAX_POINTS)] | None = Field(default=None, description="of mode `sample`")
    seed: Annotated[int, Field(ge=0)] = 0
    metrics: tuple[Name, ...] | None = Field(default=None, description="columns of figures; the usual ones when absent")
    breakeven: bool = Field(default=False, description="narrow the points where the decision changes by bisection")
    tolerance: Annotated[float, Field(gt=0, lt=1)] = Field(default=0.01, description="of a narrowed point, relative")

    @model_validator(mode="after")
    def consistent(self) -> "SweepSpec":
        if not self.axes and not self.scenarios:
            raise refuse("a sweep needs `axes` or `scenarios`", "add an axis such as `{field: slo.ttft, values: [1s]}`")
        titles = [axis.title for axis in self.axes]
        if len(set(titles)) != len(titles):
            raise refuse("two axes have the same name", "give each its own `name:`", "axes")
        names = [scenario.name for scenario in self.scenarios]
        if len(set(names)) != len(names):
            raise refuse("two scenarios have the same name", "give each its own `name:`", "scenarios")
        if (self.mode == "sample") != (self.samples is not None):
            raise refuse("`samples` and `mode: sample` belong together", "give both or neither", "samples")
        return self


class SweepFile:
    """A sweep with the places of its parts in its file."""

    def __init__(self, spec: SweepSpec, document: Document, path: str) -> None:
        self.spec = spec
        self.where = Where(lambda: document.lines, document.source)
        self.folder = Path() if path == "-" else Path(path).parent
        self.name = spec.name or (Path(path).stem if path != "-" else "stdin")
        self.scenarios = tuple(scenario.name for scenario in spec.scenarios) or (DEFAULT_SCENARIO,)


def load_sweep(path: str) -> SweepFile:
    """The sweep in a YAML or JSON file; `-` is standard input. Raises PlannerError with file, line and hint."""
    document = load_document(path)
    where = Where(lambda: document.lines, document.source)
    if not isinstance(document.data, dict):
        raise PlannerError(
            "a sweep is a mapping of keys to values",
            where=where(()),
            hint=f"start it with `schema: {SCHEMA}` and `base: problem.yaml`",
        )
    _refuse_other(document.data.get("schema"), where)
    return SweepFile(validated(SweepSpec, document.data, where), document, path)


def _refuse_other(schema: object, where: Where) -> None:
    if schema is None or schema == SCHEMA:
        return
    if isinstance(schema, str) and schema.startswith("planner.sweep/"):
        what, hint = f"this sweep has the schema `{schema}`, this program reads `{SCHEMA}`", "use the newer planner"
    else:
        what, hint = f"is no sweep: its schema is {str(schema)[:60]!r}", f"give a file with `schema: {SCHEMA}`"
    raise PlannerError(what, where=where(("schema",)), hint=hint)


def sweep_schema() -> dict[str, Any]:
    """JSON Schema of sweep files, for editors and other programs."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **SweepSpec.model_json_schema(by_alias=True)}
