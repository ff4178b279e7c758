"""Renders the difference between two plans, as text and as JSON."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from planner.cli.errors import plain
from planner.documents.units import figure
from planner.plan.records import Parallelism

if TYPE_CHECKING:
    from planner.diff import FieldChange, FigureChange, PlanDiff

SCHEMA = "planner.diff/1"
_ACTIONS = {"add": "+", "change": "~", "remove": "-"}
_CHANGED = ("action", "path", "before", "after")
_FEW = 4  # changes that are alike in entries of a list, and said one by one
_WIDEST = 56  # of a value: text, a list or a mapping
_DIGEST = 19  # characters of a digest that are shown: `sha256:` and twelve digits


def diff_document(difference: "PlanDiff") -> dict[str, Any]:
    """The difference as JSON data, in the units of the plans."""
    return {
        "schema": SCHEMA,
        "same": difference.same,
        "kinds": list(difference.kinds),
        "decision": [_plain(change) for change in difference.decision],
        "figures": [{**asdict(row), "relative": row.relative} for row in difference.figures],
        "inputs": [_plain(change) for change in difference.inputs],
        "provenance": [_plain(change) for change in difference.provenance],
        "summary": {name: difference.count(action) for name, action in _ACTIONS.items()},
        "gpus": {**asdict(difference.weights), "rearranged": difference.rearranged},
    }


def _plain(change: "FieldChange") -> dict[str, Any]:
    return {name: getattr(change, name) for name in _CHANGED}


def render_diff(difference: "PlanDiff", *, verbose: bool = False) -> str:
    """One line a change, figures with their relative change below, and the sum at the end.

    Of more than a few changes that are alike in entries of a list their number is said, unless `verbose`.
    """
    if difference.same:
        return "no differences"
    lines = []
    if difference.kinds[0] != difference.kinds[1]:
        before, after = difference.kinds
        lines.append(f"kinds differ: {before} -> {after}; only what all kinds share is compared")
    lines += _aligned(_decided(difference.decision, verbose=verbose))
    lines += _aligned((" ", *_figure(row)) for row in difference.figures)
    for heading, rows in (("inputs", difference.inputs), ("rests on", difference.provenance)):
        if rows:
            lines += [f"{heading}:", *_aligned((change.action, change.path, _arrow(change)) for change in rows)]
    return plain("\n".join([*lines, _summary(difference)]))


def _decided(changes: "Sequence[FieldChange]", *, verbose: bool) -> Iterator[tuple[str, str, str]]:
    """A row a change, or one for those of a list that are alike, where the first of them stands."""
    alike: dict[tuple[str, str], list[FieldChange]] = {}
    for change in changes:
        alike.setdefault((change.action, change.alike or change.path), []).append(change)
    for change in changes:
        rows = alike[change.action, change.alike or change.path]
        if verbose or len(rows) <= _FEW:
            yield change.action, short_path(change.path), _arrow(change)
        elif change is rows[0]:
            yield change.action, short_path(change.alike), _counted(rows)


def _counted(rows: "Sequence[FieldChange]") -> str:
    """`28 of 58, most in 12: 93 of 288 differ; `--verbose` has all`."""
    places = [
        sum(was != now for was, now in zip(row.before, row.after, strict=True))
        if isinstance(row.before, list) and isinstance(row.after, list) and len(row.before) == len(row.after)
        else 0
        for row in rows
    ]
    most = max(range(len(rows)), key=lambda index: places[index])
    largest = (
        f", most in {rows[most].place[0]}: {places[most]} of {len(rows[most].after)} differ" if places[most] else ""
    )
    return f"{len(rows)} of {rows[0].entries}{largest}; `--verbose` has all"


def short_path(path: str) -> str:
    """`roles.decode.limits.max_batch` as `decode.max_batch`."""
    steps = path.split(".")
    if steps[0] == "roles" and len(steps) > 1:
        steps = [step for step in steps[1:] if step not in ("limits", "parallelism")]
    return ".".join(steps)


def _aligned(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    cells = list(rows)
    width = max((len(path) for _, path, _ in cells), default=0)
    return [f"  {action} {path.ljust(width)}  {text}".rstrip() for action, path, text in cells]


def _arrow(change: "FieldChange") -> str:
    key = change.path.rpartition(".")[2]
    if change.action == "~":
        return f"{_shown(key, change.before)} -> {_shown(key, change.after)}"
    return _shown(key, change.after if change.action == "+" else change.before)


def _shown(key: str, value: Any) -> str:  # noqa: ANN401 - parsed JSON
    if isinstance(value, dict) and {"function", "parallelism", "replicas"} <= value.keys():
        return _role(value)
    if isinstance(value, dict):
        kept = {name: below for name, below in value.items() if below not in (None, [], {}, "")}
        text = ", ".join(f"{name} {_shown(name, below)}" for name, below in kept.items())
    elif isinstance(value, list):
        text = ", ".join(_shown(key, below) for below in value)
    else:
        return _scalar(key, value)
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def _scalar(key: str, value: Any) -> str:  # noqa: ANN401 - parsed JSON
    if isinstance(value, str):
        return value[:_DIGEST] if value.startswith("sha256:") else _cut(value)
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "-"}[value]
    return figure(key, value) if isinstance(value, float) else str(value)


def _role(role: dict[str, Any]) -> str:
    """`prefill, 2 x tp2 on h200, 4 GPUs` of a role that comes or goes."""
    degrees = Parallelism(**role["parallelism"])
    gpus, shape = role["replicas"] * degrees.devices, degrees.text or "1 GPU"
    where = role.get("placement") or role["pool"]
    return f"{role['function']}, {role['replicas']} x {shape} on {where}, {gpus} GPU{'s' if gpus != 1 else ''}"


def _figure(row: "FigureChange") -> tuple[str, str]:
    name = " ".join(part for part in (row.of, row.statistic if row.statistic != "mean" else "") if part)
    label = f"{row.metric.removesuffix('_per_s').removesuffix('_s')}{f' ({name})' if name else ''}"
    text = f"{figure(row.metric, row.before)} -> {figure(row.metric, row.after)}"
    if row.relative is not None:
        text += f"   ({100 * row.relative:+.1f} %)"
    return label, text


def _summary(difference: "PlanDiff") -> str:
    counts = f"{difference.count('+')} to add, {difference.count('~')} to change, {difference.count('-')} to remove"
    weights = difference.weights
    what = "their shards, whose layers or experts change" if difference.rearranged else "their weights"
    if not weights.after:
        return f"Plan: {counts}."
    return f"Plan: {counts}; {weights.kept} of {weights.after} GPUs keep {what}."
