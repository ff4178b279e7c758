"""Compares two plans: decisions, predictions, problem inputs, and the data they rest on.

The decision is walked as plain data by the schema of its kind, so that a new kind needs nothing here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.diff.tree import FieldChange, changes
from planner.diff.weights import KeptWeights, kept_weights
from planner.documents.files import digest
from planner.plan.placement import device_runs, devices, require_countable
from planner.plan.schema import Decision, Envelope, Prediction

_REFERENCES = ("role", "roles", "to", "source", "group")  # fields that hold the name of a role
_INSIDE = {"side_files", "num_layers", "stages", "parts", "expert_of_slot"}  # fields that say what is inside a shard


@dataclass(frozen=True, slots=True)
class FigureChange:
    """A figure of both plans, or of one; `relative` is after / before - 1 where that means something."""

    metric: str
    of: str  # workload or role; empty: the whole plan
    statistic: str
    before: float | None
    after: float | None

    @property
    def relative(self) -> float | None:
        if self.before is None or self.after is None or self.before == 0:
            return None
        return self.after / self.before - 1.0


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """Everything that differs; all of it empty for equal plans."""

    kinds: tuple[str, str]
    decision: tuple[FieldChange, ...]
    figures: tuple[FigureChange, ...]  # predictions, objective and memory that changed
    inputs: tuple[FieldChange, ...]  # a confidence that was chosen for a plan is of its provenance
    provenance: tuple[FieldChange, ...]  # name, digests, versions, proof, evidence, assumptions
    weights: KeptWeights

    @property
    def same(self) -> bool:
        return not (self.decision or self.figures or self.inputs or self.provenance)

    def count(self, action: str) -> int:
        """How many places of the decision are added, removed or changed."""
        return sum(change.action == action for change in self.decision)

    @property
    def rearranged(self) -> bool:
        """Whether layers or experts move inside the shards, which `weights` does not see."""
        return any(
            _INSIDE & {*change.path.split("."), *_keys(change.before or change.after)} for change in self.decision
        )


def diff_plans(before: tuple[Envelope, Decision], after: tuple[Envelope, Decision]) -> PlanDiff:
    """What differs from `before` to `after`, each an envelope with its validated decision.

    Of plans of different kinds, only what all kinds share is compared. Raises PlannerError for a placement too large to
    be read.
    """
    (first, decision), (second, later) = before, after
    require_countable((*decision.placement, *later.placement))
    shared = set(Decision.model_fields) if first.kind != second.kind else None
    renamed = _renamed(decision, later)
    ours, theirs = _plain(decision, shared, renamed), _plain(later, shared, {})
    memory = _memory_figures(ours, theirs)
    old, new = (envelope.model_dump(mode="json", by_alias=True) for envelope in (first, second))
    role_names = [FieldChange("~", f"roles.{name}.name", name, later_name) for name, later_name in renamed.items()]
    return PlanDiff(
        kinds=(first.kind, second.kind),
        decision=(*role_names, *changes(ours, theirs)),
        figures=(*_objective(first, second), *_predictions(first, second), *memory),
        inputs=tuple(changes(first.inputs, second.inputs)),
        provenance=tuple(changes(_rest(old, new), _rest(new, old))),
        weights=kept_weights(before, after),
    )


def _renamed(before: Decision, after: Decision) -> dict[str, str]:
    """Roles of `before` whose name is gone, paired in order with new ones of the same function, model and pool."""
    ours, theirs = {role.name for role in before.roles}, {role.name for role in after.roles}
    waiting = [role for role in after.roles if role.name not in ours]
    pairs: dict[str, str] = {}
    for role in before.roles:
        key = (role.function, role.model, role.pool)
        match = next((other for other in waiting if (other.function, other.model, other.pool) == key), None)
        if role.name not in theirs and match is not None:
            pairs[role.name] = match.name
            waiting.remove(match)
    return pairs


def _plain(decision: Decision, shared: set[str] | None, renamed: Mapping[str, str]) -> dict[str, Any]:
    """The decision as plain data with the later names of its roles, placement as text by role."""
    data: dict[str, Any] = decision.model_dump(mode="json", include=shared)
    del data["placement"]
    data = {section: _with_names(value, renamed) for section, value in data.items()}
    for role in data["roles"]:
        role["name"] = renamed.get(role["name"], role["name"])
    places = _placed(decision)
    for role in data["roles"]:
        role["placement"] = next((places[old] for old in places if renamed.get(old, old) == role["name"]), None)
    return data


def _with_names(value: Any, renamed: Mapping[str, str], key: str = "") -> Any:  # noqa: ANN401 - parsed JSON
    """`value` with names of roles replaced where a reference to one stands: in `role`, `to`, ..., and as keys."""
    if not renamed:
        return value
    if isinstance(value, dict):
        return {renamed.get(name, name): _with_names(below, renamed, name) for name, below in value.items()}
    if isinstance(value, list):
        return [_with_names(below, renamed, key) for below in value]
    return renamed.get(value, value) if key in _REFERENCES and isinstance(value, str) else value


def _placed(decision: Decision) -> dict[str, str]:
    """Where each role stands, in rank order: `h200:0-7,12`."""
    places: dict[str, list[str]] = {}
    for block in decision.placement:
        runs = ",".join(
            f"{first}-{last}" if first != last else str(first) for first, last in device_runs(devices(block))
        )
        places.setdefault(block.role, []).append(f"{block.pool}:{runs}")
    return {role: " ".join(parts) for role, parts in places.items()}


def _memory_figures(ours: dict[str, Any], theirs: dict[str, Any]) -> list[FigureChange]:
    """Memory of roles in both plans, taken out of the decisions: it follows from them."""
    before, after = _take_memory(ours), _take_memory(theirs)
    figures = []
    for role in before.keys() & after.keys():
        for part in sorted(before[role].keys() | after[role].keys()):
            old, new = before[role].get(part), after[role].get(part)
            if old != new:
                figures.append(FigureChange(part, role, "", old, new))
    return sorted(figures, key=lambda figure: (figure.of, figure.metric))


def _take_memory(data: dict[str, Any]) -> dict[str, dict[str, float]]:
    return {role["name"]: role.pop("memory") or {} for role in data["roles"]}


def _objective(before: Envelope, after: Envelope) -> list[FigureChange]:
    old, new = before.certificate, after.certificate
    metric = old.objective.metric
    if metric != new.objective.metric:
        return []
    rows = [("objective", old.objective.value, new.objective.value), ("bound", old.bound, new.bound)]
    if all(any(_is_objective(p, metric) for p in envelope.predictions) for envelope in (before, after)):
        rows = rows[1:]  # it stands among the predictions
    inside = {each.among: None for each in (old.within, new.within) if each is not None}
    for among in inside:
        bounds = [each.bound if each is not None and each.among == among else None for each in (old.within, new.within)]
        rows.append(("bound within", bounds[0], bounds[1]))
    return [FigureChange(metric, "", name, then, now) for name, then, now in rows if then != now]


def _is_objective(prediction: Prediction, metric: str) -> bool:
    return (prediction.metric, prediction.of, prediction.statistic) == (metric, "", "mean")


def _predictions(before: Envelope, after: Envelope) -> list[FigureChange]:
    old = {(p.metric, p.of, p.statistic): p.value for p in before.predictions}
    new = {(p.metric, p.of, p.statistic): p.value for p in after.predictions}
    keys = (*old, *(key for key in new if key not in old))
    return [FigureChange(*key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def _rest(plan: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What is neither decision, nor inputs, nor a figure; proof and step times by whether they are the same."""
    rest = {key: value for key, value in plan.items() if key not in ("decision", "inputs", "predictions")}
    rest["certificate"] = _claims(rest["certificate"])
    steps = rest["evidence"].get("steps")
    rest["evidence"] = {**rest["evidence"], "steps": digest(steps) if steps else None}
    both = {_prediction_key(row) for row in other["predictions"]}
    told = (row for row in plan["predictions"] if _prediction_key(row) in both)
    rest["predictions"] = [{key: value for key, value in row.items() if key != "value"} for row in told]
    return rest


def _claims(proven: dict[str, Any]) -> dict[str, Any]:
    """What is proven of all plans, and of a part of them, without its figures."""
    claims = {key: value for key, value in proven.items() if key not in ("bound", "gap")}
    claims["objective"] = {key: proven["objective"][key] for key in ("metric", "sense")}
    claims["proof"] = digest(proven["proof"]) if proven["proof"] else None
    return claims | ({"within": _claims(proven["within"])} if proven.get("within") else {})


def _prediction_key(row: dict[str, Any]) -> tuple[str, str, str]:
    return row["metric"], row["of"], row["statistic"]


def _keys(value: Any) -> set[str]:  # noqa: ANN401 - parsed JSON
    """The keys of `value` and of everything below it."""
    if isinstance(value, dict):
        return set(value).union(*(_keys(below) for below in value.values()))
    return set().union(*(_keys(below) for below in value)) if isinstance(value, list) else set()
