"""Reads what is recorded in a plan: its problem, the options of its kind, and its models from the catalog.

A plan names the files that its problem named without their folders. `resolved_again` looks for them where it is told
to; whether they are the same files is for the digests to say.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import JsonValue, ValidationError

from planner.errors import PlannerError
from planner.hardware.profiles.installed import unasked_profiles
from planner.problem.resolve import Resolved, resolve, resolve_model
from planner.problem.schema import Problem, TraceLengths
from planner.schema.base import Spec, Where

if TYPE_CHECKING:
    from planner.models.architecture import Architecture
    from planner.problem.encoded import Media

Options = TypeVar("Options", bound=Spec)

INPUTS = Where({}, "inputs")
"""Places in errors about the recorded problem."""
CALIBRATION = "inputs.costs.calibration"


class NotAtHand(PlannerError):
    """An input that a plan was made from is not where it was looked for."""


@dataclass(frozen=True, slots=True)
class AtHand:
    """Where the inputs of a plan are looked for: folders for its files, kernel tables, and a calibration file."""

    folders: tuple[Path, ...] = ()
    profiles: tuple[str, ...] = ()
    calibration: str | None = None

    def file(self, name: str, where: str) -> Path:
        """The file of that name in the first folder that has one; raises NotAtHand."""
        folder = next((place for place in self.folders if (place / Path(name).name).exists()), None)
        if folder is None:
            what = f"`{Path(name).name}` is not at hand"
            raise NotAtHand(what, where=where, hint="name its folder: `--inputs FOLDER`")
        return folder / Path(name).name


def recorded_problem(inputs: Mapping[str, JsonValue]) -> Problem | None:
    """The problem that a plan carries; None when it is not valid, which the check says by itself."""
    try:
        problem = Problem.model_validate(inputs)
    except ValidationError:
        return None
    return problem if stands_somewhere(problem) else None


def stands_somewhere(problem: Problem) -> bool:
    """Whether there is a pool, or no model that would stand on any."""
    return bool(problem.cluster.pools) or not problem.models


def recorded_options(problem: Problem | None, options: type[Options]) -> Options | None:
    """What the problem states for its kind; None when that is not valid, which the check says by itself."""
    try:
        return options.model_validate(problem.options) if problem is not None else None
    except ValidationError:
        return None


def recorded_model(problem: Problem, key: str | None) -> "Architecture | None":
    """The model under `key`; None for one that the catalog does not know."""
    if key not in problem.models:
        return None
    try:
        return required_model(problem, key)
    except PlannerError:
        return None


def required_model(problem: Problem, key: str) -> "Architecture":
    """The model under `key`; raises PlannerError for one that the catalog does not know."""
    return resolve_model(problem, key, INPUTS, Path())


def media_by_workload(problem: Problem) -> "tuple[Media | None, ...]":
    """What the requests of each workload bring beside text, of models from the catalog."""
    if all(workload.images is None and workload.audio_s is None for workload in problem.workloads):
        return (None,) * len(problem.workloads)
    from planner.problem.encoded import media_of

    return tuple(
        media_of(workload, required_model(problem, problem.model_of(workload)), math.inf, INPUTS, index)
        for index, workload in enumerate(problem.workloads)
    )


def tables_at_hand(digests: Collection[str], given: Sequence[str] = ()) -> tuple[str, ...]:
    """Paths of kernel tables to price a plan with that names these: those given, else what serves unasked, if any."""
    return tuple(given) or (unasked_profiles() if digests else ())


def resolved_again(
    inputs: Mapping[str, JsonValue],
    options: type[Spec],
    hand: AtHand,
    tables: Collection[str] = (),
    confidence: float | None = None,
) -> Resolved:
    """The recorded problem with every name looked up and every file found.

    `tables` are the digests of the kernel tables that it was priced with, `confidence`
    that which was chosen for its limits.

    Raises NotAtHand for files that are not, PlannerError for a problem that is none or names what nobody knows.
    """
    problem = recorded_problem(inputs)
    if problem is None or recorded_options(problem, options) is None:
        raise PlannerError("is no valid problem", where="inputs", hint="restore what the plan was made for")
    named = {name: str(value) for name in options.paths if (value := problem.options.get(name))}
    paths = {name: str(hand.file(value, f"inputs.options.{name}")) for name, value in named.items()}
    located = problem.model_copy(
        update={
            "options": {**problem.options, **paths},
            "workloads": tuple(_traced(problem, hand)),
            "costs": problem.costs.model_copy(update=_costs(problem, hand, tables)),
        }
    )
    return replace(resolve(located, INPUTS), confidence=confidence)


def _traced(problem: Problem, hand: AtHand) -> Iterator[Any]:
    for index, workload in enumerate(problem.workloads):
        sides = {side: getattr(workload, side) for side in ("input_tokens", "output_tokens")}
        yield workload.model_copy(
            update={
                side: spec.model_copy(update={"trace": str(hand.file(spec.trace, f"inputs.workloads.{index}.{side}"))})
                for side, spec in sides.items()
                if isinstance(spec, TraceLengths)
            }
        )


def _costs(problem: Problem, hand: AtHand, tables: Collection[str]) -> dict[str, Any]:
    """Kernel tables and calibration; that of a file must be named again."""
    named, profiles = problem.costs.calibration, tables_at_hand(tables, hand.profiles)
    if named in ("default", "none"):
        return {"profiles": profiles}
    if hand.calibration is None:
        hint = "name the file: `--calibration FILE`"
        raise NotAtHand("the calibration file is not at hand", where=CALIBRATION, hint=hint)
    return {"profiles": profiles, "calibration": hand.calibration}
