"""The problem of each point of a sweep: base problem, scenario and point values, applied through `--set`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import JsonValue

from planner.documents.read import Document, file_not_found
from planner.errors import PlannerError, UnknownKeyError, UnknownNameError, did_you_mean
from planner.interchange.formats import problem_document
from planner.load.problems import override_problem, resolve_document
from planner.problem.resolve import Resolved
from planner.schema.base import Where
from planner.sweep.axes import AxisValue, SweepAxis, SweepPoint
from planner.sweep.fields import SHORT_NAMES, assignments, override
from planner.sweep.schema import SweepFile

_NOWHERE = Where({}, "problem")


@dataclass(frozen=True, slots=True)
class BaseProblem:
    """A base problem with what every point changes in it."""

    sweep: SweepFile
    document: Document
    folder: Path
    overrides: tuple[str, ...] = ()  # of the command line
    profiles: tuple[str, ...] = ()

    def resolve(self, point: SweepPoint) -> Resolved:
        """The problem of `point`; raises PlannerError at the place of the sweep that is wrong."""
        parts = self._parts(point)
        overrides = [*self.overrides, *(override(path, value) for _, path, value in parts)]
        try:
            resolved = resolve_document(self.document, self.folder, overrides=overrides, profiles=self.profiles)
        except PlannerError as error:
            raise self._placed(error, parts) from None
        return replace(resolved, where=_NOWHERE)

    def check(self, axes: Iterable[SweepAxis]) -> None:
        """Refuse what is wrong at every point: a bad base, a field that no problem has, a name in no catalog.

        Raises PlannerError. Values that only do not go together are left to their points.
        """
        for scenario in range(len(self.sweep.scenarios)):
            self.resolve(SweepPoint(scenario, ()))
        for axis in axes:
            for value in axis.values if axis.kind == "text" else axis.values[:1]:
                self._check_value(axis, value)

    def _check_value(self, axis: SweepAxis, value: AxisValue) -> None:
        """`value` alone, at its axis; the axes before it are left as the base has them."""
        alone = SweepPoint(0, (*(AxisValue("", ()) for _ in range(axis.index)), value))
        parts = self._parts(alone)
        try:
            override_problem(self.document, [override(path, value) for _, path, value in parts])
        except PlannerError as error:
            raise self._placed(error, parts) from None
        try:
            self.resolve(alone)
        except UnknownNameError:
            raise
        except PlannerError:
            return

    def _parts(self, point: SweepPoint) -> list[tuple[tuple[str | int, ...], str, JsonValue]]:
        """(place in the sweep file, path in the problem, value) of everything the point sets, in order."""
        spec, data = self.sweep.spec, self.document.data
        written: list[tuple[tuple[str | int, ...], str, JsonValue]] = [
            (("set", field), field, value) for field, value in spec.set.items()
        ]
        if spec.scenarios:
            chosen = spec.scenarios[point.scenario].set
            written += [(("scenarios", point.scenario, "set", field), field, value) for field, value in chosen.items()]
        for index, value in enumerate(point.values):
            cases = spec.axes[index].cases is not None
            for field, amount in value.sets:
                place = ("axes", index, "cases", str(value.cell), field) if cases else ("axes", index, "field")
                written.append((place, field, amount))
        return [
            (place, path, amount)
            for place, field, value in written
            for path, amount in assignments(field, value, data, self.sweep.where(place))
        ]

    def _placed(
        self, error: PlannerError, parts: Sequence[tuple[tuple[str | int, ...], str, JsonValue]]
    ) -> PlannerError:
        """The error at the part of the sweep file whose override it blames; as it is when it blames another file."""
        for place, path, value in reversed(parts):
            if error.where == f"--set {path}" or error.where.startswith(f"--set {path}:"):
                unknown = isinstance(error, UnknownKeyError)
                what = f"{error.what}, in `{path}`" if unknown else f"{error.what} (`{path}` = {_short(value)})"
                hint = _hint(error.hint, path) if unknown else error.hint
                return type(error)(what, where=self.sweep.where(place), hint=hint)
        return error


def open_base(sweep: SweepFile, overrides: Sequence[str] = (), profiles: Sequence[str] = ()) -> BaseProblem:
    """The base problem that `sweep` names; raises PlannerError at the sweep's line when there is no such file."""
    path = sweep.folder / sweep.spec.base
    if not path.is_file():
        error = file_not_found(path, otherwise="give the path relative to the folder of the sweep")
        raise PlannerError(f"{error.what}: `{path}`", where=sweep.where(("base",)), hint=error.hint)
    return BaseProblem(sweep, problem_document(path), path.parent, tuple(overrides), tuple(profiles))


def _hint(hint: str, path: str) -> str:
    """The hint about a field that the problem does not have, with the nearest short names."""
    names = list(SHORT_NAMES)
    otherwise = f"{hint}; short names are {', '.join(names)}"
    return otherwise if "." in path else did_you_mean(path, names, otherwise=otherwise)


def _short(value: JsonValue) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
