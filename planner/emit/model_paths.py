"""Where engines load models that a problem gave by a config.json: plans carry its contents, and no path."""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from planner.errors import PlannerError, require_known
from planner.plan.schema import Envelope
from planner.plan.store import plan_digest, plan_json

FLAG = "--model-path"


def loaded_from(envelope: Envelope, entries: Sequence[str]) -> Envelope:
    """The plan whose models of a config.json stand where `entries` say, each `MODEL=PATH`, or PATH of the only one.

    Raises PlannerError for models that the plan has not, that are loaded by a name, or that are said twice.
    """
    models = envelope.inputs.get("models")
    known: dict[str, JsonValue] = dict(models) if isinstance(models, dict) else {}
    given: dict[str, str] = {}
    for entry in entries:
        key, path = _named(entry, known)
        if key in given:
            raise PlannerError(f"`{key}` is given twice", where=FLAG, hint="write each MODEL=PATH once")
        given[key] = path
    paths: Mapping[str, JsonValue] = {key: _moved(key, known[key], path) for key, path in given.items()}
    return envelope.model_copy(update={"inputs": {**envelope.inputs, "models": {**known, **paths}}})


def told_as(plan: Envelope, moved: Envelope, files: Mapping[str, str]) -> dict[str, str]:
    """The files of a plan whose models were moved, under the digest that the plan has as it is stored."""
    own, other = plan_digest(plan_json(plan)), plan_digest(plan_json(moved))
    return {name: text.replace(other, own) for name, text in files.items()}


def _named(entry: str, known: Mapping[str, JsonValue]) -> tuple[str, str]:
    key, equals, path = entry.partition("=")
    if equals and "/" not in key:
        require_known("model", key, list(known), where=FLAG)
    elif len(known) == 1:
        key, path = next(iter(known)), entry
    else:
        raise PlannerError(f"`{entry}` names no model", where=FLAG, hint=f"write {' or '.join(known)}=PATH")
    if "/" not in path:
        raise PlannerError(f"is no path: `{path}`", where=FLAG, hint="write /FOLDER, ./FOLDER or ORGANISATION/NAME")
    return key, path


def _moved(key: str, spec: JsonValue, path: str) -> JsonValue:
    if not isinstance(spec, dict) or "config" not in spec:
        raise PlannerError(
            f"engines load `{key}` by its name", where=FLAG, hint="leave it out; it is for models given by `config`"
        )
    return {**spec, "config": path}
