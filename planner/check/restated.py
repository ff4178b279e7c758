"""Holds a plan against the plan that its inputs and its own choices give: every number, name and digest, leaf by leaf.

What was chosen (roles, degrees, batches, counts, places, slots) is taken from the plan, and all else is derived again
by the code that writes plans. So a figure can be true of the decision or not; that a decision is the best one is for
its certificate to say.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.plan.findings import Finding, unverifiable
from planner.plan.restated import LeftOut, Restated
from planner.plan.schema import Decision, Envelope

REL_TOL = 1e-6
"""Of figures that are derived again in another order, or from shares that a plan keeps."""
ABS_TOL = 1e-12
Place = tuple[str, Any, Any]
"""The dotted path of a place that differs, what the plan states there, and what it should."""
MOST_TOLD = 8  # places of a section that are told one by one

RULES = {
    "name": "provenance",
    "software": "provenance",
    "seed": "provenance",
    "digests": "digests",
    "decision": "decision",
    "predictions": "predictions",
    "certificate": "certificate",
    "evidence": "evidence",
    "assumptions": "assumptions",
}
"""Sections of a plan by the rule that judges them; `inputs` is judged by its own digest."""

HINT = "solve again, or `planner check --refresh` to price the same decision anew"


def restated_findings(
    envelope: Envelope, decision: Decision, restated: Restated, *, proof: bool = False
) -> Iterator[Finding]:
    """One finding for each section that is as it should be, one for each place that is not, one for each left out.

    With `proof` what was left out for that level to judge is not told.
    """
    derived = type(decision).model_validate(restated.envelope.decision)
    stated, again = plain(envelope, decision), plain(restated.envelope, derived)
    places: dict[str, list[Place]] = {}
    for section, rule in RULES.items():
        places.setdefault(rule, []).extend(differing(stated.get(section), again.get(section), section))
    for rule, wrong in places.items():
        yield from told(rule, wrong)
    yield from (_left(part) for part in restated.left_out if not (proof and part.proven) or part.unverifiable)


def not_restated(why: str, where: str = "", hint: str = "") -> Finding:
    """The finding of a plan whose numbers cannot be derived again at all."""
    return unverifiable("restated.plan", f"no figure of it was priced again: {why}", where or "decision", hint)


def differing(stated: Any, again: Any, path: str) -> Iterator[Place]:  # noqa: ANN401 - parsed JSON
    """(path, stated, derived) of every smallest place where two JSON values differ, but for rounding of floats.

    Entries of lists are compared by their position; empty collections, empty text and nothing are alike.
    """
    if isinstance(stated, Mapping) and isinstance(again, Mapping):
        for key in (*stated, *(key for key in again if key not in stated)):
            yield from differing(stated.get(key), again.get(key), f"{path}.{key}")
    elif isinstance(stated, list) and isinstance(again, list):
        names = [_name(entry, index) for index, entry in enumerate(stated)]
        for index in range(max(len(stated), len(again))):
            name = names[index] if index < len(names) else str(index)
            yield from differing(_at(stated, index), _at(again, index), f"{path}.{name}")
    elif not _same(stated, again):
        yield path, stated, again


def _same(stated: Any, again: Any) -> bool:  # noqa: ANN401 - parsed JSON
    if _nothing(stated) and _nothing(again):
        return True
    if isinstance(stated, bool) or isinstance(again, bool):
        return stated is again
    if (isinstance(stated, float) and isinstance(again, int | float)) or isinstance(again, float):
        if not isinstance(stated, int | float):
            return False
        return math.isclose(stated, again, rel_tol=REL_TOL, abs_tol=ABS_TOL)
    return bool(stated == again)


def _nothing(value: Any) -> bool:  # noqa: ANN401 - parsed JSON
    return value is None or value == "" or value == [] or value == {}


def _at(values: list[Any], index: int) -> Any:  # noqa: ANN401 - parsed JSON
    return values[index] if index < len(values) else None


def _name(entry: Any, index: int) -> str:  # noqa: ANN401 - parsed JSON
    """What an entry of a list is called in a path: its name, a prediction by metric, what it is of, and statistic."""
    if isinstance(entry, Mapping) and "metric" in entry:
        return ".".join(str(entry[key]) for key in ("metric", "of", "statistic") if entry.get(key))
    if isinstance(entry, Mapping) and isinstance(entry.get("name"), str) and entry["name"]:
        return str(entry["name"])
    return str(index)


def plain(envelope: Envelope, decision: Decision) -> dict[str, Any]:
    """The plan as JSON, its decision with the defaults of its kind."""
    data: dict[str, Any] = envelope.model_dump(mode="json", by_alias=True, exclude_none=True)
    data["digests"].pop("problem", None)
    for proven in (data["certificate"], data["certificate"].get("within") or {}):
        proven.get("proof", {}).pop("checksum", None)  # of what is judged here, by `planner.verify`
    return {**data, "decision": decision.model_dump(mode="json", exclude_none=True)}


def told(rule: str, places: Sequence[Place]) -> Iterator[Finding]:
    """One finding a place that differs, the first of them one by one; one for all where none does."""
    name = f"restated.{rule}"
    if not places:
        yield Finding(name, True, f"{rule}: what inputs and decision give", rule)
    for path, stated, again in places[:MOST_TOLD]:
        yield Finding(name, False, f"states {_shown(stated)}, priced again {_shown(again)}", path, HINT)
    if len(places) > MOST_TOLD:
        yield Finding(name, False, f"and {len(places) - MOST_TOLD} more places differ", places[MOST_TOLD][0], HINT)


def _left(part: LeftOut) -> Finding:
    rule = f"restated.{RULES.get(part.path.split('.', 1)[0], 'plan')}"
    if part.unverifiable:
        return unverifiable(rule, part.why, part.path, part.hint)
    return Finding(rule, True, f"not judged: {part.why}", part.path, part.hint, skipped=True)


def _shown(value: Any) -> str:  # noqa: ANN401 - parsed JSON
    if value is None:
        return "nothing"
    text = f"{value:.9g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
