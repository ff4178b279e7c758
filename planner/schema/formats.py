"""Fields that hold a format of numbers: read by any of its names, kept by ours."""

from typing import Any, Literal, get_args

from pydantic import BeforeValidator

from planner.errors import PlannerError
from planner.models.formats import OWN, format_named, names_of
from planner.schema.base import refuse


def format_field(formats: Any, what: str, *, own: bool = False) -> BeforeValidator:  # noqa: ANN401 - a Literal
    """Reads a format by any of its names, as one of the Literal `formats`; with `own`, a checkpoint's own is None."""
    known = get_args(formats)
    accepted: Any = Literal[(*(("auto",) if own else ()), *names_of(known))]

    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        if own and value.strip().lower() in OWN:
            return None
        try:
            return format_named(value, known, what=what)
        except PlannerError as error:
            raise refuse(error.what, error.hint) from None

    return BeforeValidator(read, json_schema_input_type=accepted | None if own else accepted)
