"""Lists of kernel families as plain data, which a machine without the cost model reads."""

from planner.errors import PlannerError
from planner.hardware.profiling.shapes import Family


def families_to_json(families: list[Family]) -> list[dict[str, object]]:
    """The families as plain data."""
    return [{"kind": family.kind, "fixed": dict(family.fixed), "sweep": dict(family.sweep)} for family in families]


def families_from_json(data: object) -> list[Family]:
    """Reads `families_to_json`; raises PlannerError for anything else."""
    try:
        assert isinstance(data, list)
        return [
            Family(row["kind"], tuple(row["fixed"].items()), tuple((k, tuple(v)) for k, v in row["sweep"].items()))
            for row in data
        ]
    except (AssertionError, KeyError, TypeError, AttributeError) as error:
        hint = "write the list again with `python benchmarks/gpu/prepare.py`"
        raise PlannerError(f"not a list of shapes: {error!r}", hint=hint) from None
