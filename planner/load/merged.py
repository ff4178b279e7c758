"""The merged problem with the origin of every value: flag, environment, file, or default."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.documents.tree import leaves
from planner.interchange.formats import problem_document
from planner.load.overrides import OverriddenWhere
from planner.load.problems import flag_origins, override_problem, resolve_document
from planner.problem.schema import Problem
from planner.schema.base import Path as Keys
from planner.schema.keys import short_names


def merged_config(
    path: str | Path, overrides: Sequence[str], *, profiles: Sequence[str] = (), seed: int | None = None
) -> list[tuple[str, Any, str]]:
    """(dotted path, value, origin) of every field, in the schema's order; the problem is validated on the way.

    Raises PlannerError as `load_problem` does.
    """
    document = problem_document(path)
    base = Path() if str(path) == "-" else Path(path).parent
    resolved = resolve_document(document, base, overrides=overrides, profiles=profiles, seed=seed)
    overridden = override_problem(document, overrides)
    shorts = short_names(Problem)
    where = OverriddenWhere(document, overridden, shorts)
    flags = flag_origins(profiles, seed)
    rows = []
    for keys, value in leaves(resolved.problem.model_dump(mode="json", by_alias=True)):
        written = _written_as(keys, overridden.data, shorts)
        flag = next((text for flagged, text in flags.items() if keys[: len(flagged)] == flagged), None)
        origin = flag or (where(written).partition(": ")[0] if written is not None else "default")
        rows.append((".".join(str(key) for key in keys), value, origin))
    return rows


def _written_as(keys: Keys, data: Any, shorts: Mapping[str, set[str]]) -> Keys | None:  # noqa: ANN401
    """The path under which the document gives this field, its short name perhaps; None when it does not."""
    here, path = data, Keys()
    for key in keys:
        if isinstance(here, dict):
            names = [key, *(short for short, fields in shorts.items() if key in fields)]
            name = next((name for name in names if name in here), None)
            if name is None:
                return None
            here, path = here[name], (*path, name)
        elif isinstance(here, list) and isinstance(key, int) and key < len(here):
            here, path = here[key], (*path, key)
        else:
            # A bare value stands for a mapping: `ttft: 200ms` for `ttft: {p95_s: 0.2}`; the other statistics are unset.
            return path if key == "p95_s" else None
    return path
