"""Gate reports for CI: JUnit XML, a Markdown summary, GitHub annotations."""

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from planner.sweep.gate import Gate, PointVerdict, changed_inputs
from planner.sweep.results import TableCell

_LISTED = 20  # points shown in a summary or annotated; the files hold all
_NOT_XML = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF], "\ufffd")


def junit_xml(gate: Gate, name: str) -> str:
    """The verdict as JUnit XML: a suite a scenario, a case a point, a failure a broken rule."""
    root = ElementTree.Element("testsuites", _counts(gate.verdicts, _xml(name)))
    for scenario in dict.fromkeys(str(verdict.row["scenario"]) for verdict in gate.verdicts):
        of_scenario = [verdict for verdict in gate.verdicts if verdict.row["scenario"] == scenario]
        suite = ElementTree.SubElement(root, "testsuite", _counts(of_scenario, _xml(scenario)))
        for verdict in of_scenario:
            case = ElementTree.SubElement(
                suite, "testcase", {"classname": _xml(f"{name}.{scenario}"), "name": _xml(verdict.name)}
            )
            if verdict.ok and verdict.uncompared:
                why = f"not compared: {', '.join(verdict.uncompared)}"
                ElementTree.SubElement(case, "skipped", {"message": _xml(why)})
            if verdict.breaches:
                tag = "error" if _unsolved(verdict) else "failure"
                first = verdict.breaches[0]
                failure = ElementTree.SubElement(case, tag, {"message": _xml(first.why), "type": _xml(first.rule)})
                failure.text = _xml("\n".join(f"{breach.rule}: {breach.why}" for breach in verdict.breaches))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _counts(verdicts: Sequence[PointVerdict], name: str) -> dict[str, str]:
    errors = sum(_unsolved(verdict) for verdict in verdicts)
    failures = sum(not verdict.ok for verdict in verdicts) - errors
    counts = {"name": name, "tests": str(len(verdicts)), "failures": str(failures), "errors": str(errors)}
    skipped = sum(verdict.ok and not verdict.passed for verdict in verdicts)
    return counts | ({"skipped": str(skipped)} if skipped else {})


def _unsolved(verdict: PointVerdict) -> bool:
    return verdict.row["status"] in ("error", "stopped")


def _xml(text: str) -> str:
    """`text` without the characters that XML cannot hold."""
    return text.translate(_NOT_XML).encode("utf-8", "replace").decode()


def annotations(gate: Gate, file: str) -> list[str]:
    """GitHub workflow commands, one an annotation, the worst points first."""
    failed = gate.failed
    lines = [
        _command("error", file, f"{breach.rule}", f"{verdict.name}: {breach.why}")
        for verdict in failed[:_LISTED]
        for breach in verdict.breaches
    ]
    if len(failed) > _LISTED:
        lines.append(_command("error", file, "planner sweep", f"{len(failed) - _LISTED} more points fail"))
    return lines + [_command("notice", file, "planner sweep", note) for note in gate.notes]


def _command(kind: str, file: str, title: str, message: str) -> str:
    """Source: GitHub documentation, "Workflow commands": % CR LF are escaped, in properties also : and ,"""
    escaped = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    properties = [
        value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A").replace(":", "%3A").replace(",", "%2C")
        for value in (file, title)
    ]
    return f"::{kind} file={properties[0]},title={properties[1]}::{escaped}"


def markdown_summary(gate: Gate, name: str, break_evens: Sequence[Mapping[str, Any]] = ()) -> str:
    """The verdict for a pull request: the answer first, then why, then what changed."""
    failed = gate.failed
    total = len(gate.verdicts)
    passed = gate.counted if gate.uncompared else f"all {total:,} points pass"
    head = f"{len(failed):,} of {total:,} points fail" if failed else passed
    lines = [f"## {'❌' if failed else '✅'} {_cell(name)}: {head}", ""]
    if gate.rules:
        lines += ["Fails on " + ", ".join(f"`{rule.text}`" for rule in gate.rules) + ".", ""]
    lines += _why(gate) + _failures(gate) + _figures(gate) + _plans(gate) + _break_even_table(break_evens)
    lines += [f"- {_cell(note)}" for note in (*gate.notes, *gate.remarks)]
    return "\n".join(lines).rstrip() + "\n"


MOST_LINES = 10  # of a comment


def comment(gate: Gate, name: str) -> str | None:
    """What a pull request changes, in at most ten lines; None where it changes nothing that the gate sees.

    The verdict first, then the points that fail or decide otherwise, the worst first, then what was not compared.
    """
    moved = [verdict for verdict in gate.verdicts if verdict.breaches or _decides_otherwise(verdict)]
    if not moved and not gate.uncompared and not gate.notes:
        return None
    failed, total = len(gate.failed), len(gate.verdicts)
    verdict = f"{failed:,} of {total:,} points fail" if failed else gate.counted
    lines = [f"**{_cell(name)}**: {verdict}; {sum(map(_decides_otherwise, moved)):,} decide otherwise"]
    rest = [f"- not compared: {_cell(point.name)} ({', '.join(point.uncompared)})" for point in gate.uncompared[:1]]
    rest = ([*rest, *(f"- {_cell(note)}" for note in gate.notes)])[:3]
    room = MOST_LINES - len(lines) - len(rest)
    told = [f"- {_cell(point.name)}: {_cell(_moved(point))}" for point in (*gate.failed, *_passing(gate, moved))]
    if len(told) > room:
        told = [*told[: room - 1], f"- and {len(told) - room + 1:,} more points"]
    return "\n".join([*lines, *told, *rest]) + "\n"


def _passing(gate: Gate, moved: Sequence[PointVerdict]) -> list[PointVerdict]:
    return [verdict for verdict in moved if verdict not in gate.failed]


def _decides_otherwise(verdict: PointVerdict) -> bool:
    return verdict.before is not None and verdict.before.get("plan") != verdict.row.get("plan")


def _moved(verdict: PointVerdict) -> str:
    if verdict.breaches:
        return verdict.breaches[0].why
    before = None if verdict.before is None else verdict.before.get("plan")
    return f"{_plan(before)} -> {_plan(verdict.row.get('plan'))}"


def _why(gate: Gate) -> list[str]:
    inputs = changed_inputs(gate.table, gate.baseline) if gate.baseline is not None else []
    if not inputs:
        return []
    rest = [f"- and {len(inputs) - _LISTED} more"] if len(inputs) > _LISTED else []
    return ["Inputs that changed since the baseline:", "", *(f"- `{line}`" for line in inputs[:_LISTED]), *rest, ""]


def _failures(gate: Gate) -> list[str]:
    failed = gate.failed
    if not failed:
        return []
    rows = [(verdict.name, breach.rule, breach.why) for verdict in failed[:_LISTED] for breach in verdict.breaches]
    more = [f"{len(failed) - _LISTED:,} more points fail.", ""] if len(failed) > _LISTED else []
    return [*_table(("point", "rule", "why"), rows), *more]


def _figures(gate: Gate) -> list[str]:
    """The largest change of every metric, over the points with a plan both then and now."""
    rows = []
    numbers = [name for name, kind in gate.table.columns.items() if kind == "number" and name not in gate.table.axes]
    for metric in numbers:
        if metric in ("gap", "bound"):
            continue
        changes = [
            (abs(now - old) / abs(old), old, now, verdict.name)
            for verdict in gate.verdicts
            if verdict.before is not None
            and isinstance(old := verdict.before.get(metric), int | float)
            and isinstance(now := verdict.row.get(metric), int | float)
            and old
        ]
        if changes:
            size, old, now, point = max(changes)
            if size > 0:
                rows.append((metric, f"{old:.6g}", f"{now:.6g}", f"{(now - old) / abs(old) * 100:+.3g} %", point))
    return _table(("largest change of", "baseline", "now", "change", "at"), rows) if rows else []


def _plans(gate: Gate) -> list[str]:
    changed = [
        (verdict.name, _plan(verdict.before.get("plan")), _plan(verdict.row.get("plan")))
        for verdict in gate.verdicts
        if verdict.before is not None and verdict.before.get("plan") != verdict.row.get("plan")
    ]
    if not changed:
        return []
    more = [f"{len(changed) - _LISTED:,} more plans changed.", ""] if len(changed) > _LISTED else []
    return [*_table(("point", "plan in the baseline", "plan now"), changed[:_LISTED]), *more]


def _plan(cell: TableCell) -> str:
    return str(cell) if cell is not None else "no plan"


def _break_even_table(changes: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        (row["axis"], f"{row['low']:.4g} .. {row['high']:.4g}", _cells_at(row["at"]), row["before"], row["after"])
        for row in changes[:_LISTED]
    ]
    return _table(("break-even along", "between", "at", "below", "above"), rows) if rows else []


def _cells_at(cells: Mapping[str, TableCell]) -> str:
    return ", ".join(
        f"{name}={cell:.6g}" if isinstance(cell, float) else f"{name}={cell}" for name, cell in cells.items()
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return [*lines, *("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows), ""]


def _cell(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
    return " ".join(escaped.split())
