"""Renders plans, check findings and lists as text that reads the same without colour."""

import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from planner.cli.errors import plain
from planner.documents.units import figure as figure
from planner.documents.units import format_si, significant
from planner.errors import Infeasible, PlannerError
from planner.plan.findings import CLOSE, FAILED, NOT_JUDGED, OK, UNVERIFIABLE, counts

if TYPE_CHECKING:
    from pydantic import JsonValue

    from planner.plan.findings import Finding
    from planner.plan.schema import Certificate, Decision, Envelope, Parallelism, Prediction, Role

_PADDING = re.compile(r"\s+((?:\x1b\[[0-9;]*m)*)$")  # after the last column, perhaps before the end of a colour
_WORDS = {FAILED: "FAIL", NOT_JUDGED: "note", UNVERIFIABLE: "unverifiable", CLOSE: "close"}
_WIDEST = 60  # of a cell whose value is a list
_MOST_ROWS = 4  # of a table of lists that do not fit into its cells


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, indent: int = 2) -> str:
    """Aligned columns under lower-case headings, two spaces apart, never wrapped or cut."""

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    columns = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in header:
        columns.add_column(Text(heading), no_wrap=True, overflow="ignore")
    for row in rows:
        columns.add_row(*(_styled(Text(plain(cell).replace("\n", " "))) for cell in row))
    colour = wants_colour()
    console = Console(
        file=io.StringIO(),
        width=100_000,
        force_terminal=colour,
        no_color=not colour,
        highlight=False,
        legacy_windows=False,
    )
    with console.capture() as captured:
        console.print(columns)
    lines = captured.get().rstrip("\n").split("\n")
    return "\n".join(" " * indent + _PADDING.sub(r"\1", line) for line in lines)


def wants_colour() -> bool:
    """Colour only on a terminal, and not where NO_COLOR is set (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _styled(cell: Any) -> Any:  # noqa: ANN401 - rich is imported when a table is printed
    if cell.plain == "FAIL":
        cell.stylize("bold red")
    elif cell.plain == "ok":
        cell.stylize("green")
    return cell


def render_plan(envelope: "Envelope", decision: "Decision") -> str:
    """A plan on one screen: what runs where, what it is predicted to do, what was proven, and what that rests on."""
    gpus = _gpus(decision)
    counted = f"{gpus} GPU{'s' if gpus != 1 else ''}"
    headline = f"{envelope.name}: {envelope.kind}, {counted}, {_proof(envelope.certificate)}"
    if envelope.certificate.estimate:
        headline += f"\n  an estimate: {envelope.certificate.estimate}"
    parts = [headline, _roles(decision), *_own_parts(decision)]
    if envelope.predictions:
        parts.append(_predictions(envelope))
    judged = _judged_limits(envelope.certificate)
    if judged:
        parts.append(judged)
    parts.append("\n".join([*_certificate(envelope.certificate), *_evidence(envelope)]))
    return plain("\n\n".join(parts)) if not wants_colour() else "\n\n".join(parts)


def _gpus(decision: "Decision") -> int:
    """Devices in use, those that roles share in turn counted once where the plan says where its roles stand."""
    from planner.plan import placement

    ranks = sum(role.replicas * role.parallelism.devices for role in decision.roles)
    placed = sum(placement.num_ranks(block) for block in decision.placement)
    whole = placed == ranks and placed <= placement.MOST_DEVICES
    return sum(placement.devices_used(decision.placement).values()) if whole else ranks


def _proof(certificate: "Certificate") -> str:
    gap = f", gap {100 * certificate.gap:.2f} %" if certificate.gap is not None else ""
    stopped = (
        "" if certificate.stop_reason in ("finished", certificate.status) else f", stopped: {certificate.stop_reason}"
    )
    by = " by formulas" if certificate.estimate and certificate.status == "optimal" else ""
    return f"{certificate.status}{by}{gap}{stopped}"


def _roles(decision: "Decision") -> str:
    rows = [_role(role) for role in decision.roles]
    return table(("role", "function", "replicas", "parallel", "gpus", "pool", "memory", "limits"), rows)


def _own_parts(decision: "Decision") -> list[str]:
    """What only this kind decides: plain values on a line, lists of entries as tables."""
    from planner.plan.schema import Decision

    values, tables = [], []
    said = set(decision.model_dump(exclude_defaults=True)) - set(Decision.model_fields)
    for name, value in decision.model_dump(mode="json", include=said).items():
        if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
            header = [key for key in value[0] if any(entry[key] not in (None, [], {}) for entry in value)]
            if len(value) > _MOST_ROWS and any(_is_long(value[0][key]) for key in header):
                values.append(f"{name}: {len(value)} of {', '.join(header)}; `planner show --json` has them")
                continue
            tables.append(table(header, [[_cell(key, entry[key]) for key in header] for entry in value]))
        else:
            values.append(f"{name}: {_cell(name, value)}")
    return [*(["  " + "   ".join(values)] if values else []), *tables]


def _is_long(value: object) -> bool:
    """Whether a cell would be cut."""
    return isinstance(value, list) and len(", ".join(map(str, value))) > _WIDEST


def _cell(name: str, value: object) -> str:
    if isinstance(value, float):
        return figure(name, value)
    if isinstance(value, list):
        text = ", ".join(_cell(name, entry) for entry in value)
    elif isinstance(value, dict):
        text = ", ".join(f"{key} {_cell(key, entry)}" for key, entry in value.items())
    else:
        text = "-" if value is None else str(value)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."


def _role(role: "Role") -> tuple[str, ...]:
    memory = "-"
    if role.memory is not None:
        used, capacity = role.memory.used_bytes, role.memory.capacity_bytes
        memory = f"{format_si(used, 'B')} of {format_si(capacity, 'B')} ({used / capacity:.1%})"
    limits = " ".join(f"{name}={value}" for name, value in role.limits.items()) or "-"
    gpus = str(role.replicas * role.parallelism.devices)
    shape = parallel(role.parallelism)
    return role.name, role.function, str(role.replicas), shape, gpus, role.pool, memory, limits


def parallel(shape: "Parallelism") -> str:
    """`tp8 ep8`: the degrees above one, or `1` on a single device."""
    degrees = {name: getattr(shape, name) for name in ("tp", "pp", "dp", "cp", "moe_tp", "ep", "vpp")}
    return " ".join(f"{name.replace('_', '-')}{degree}" for name, degree in degrees.items() if degree > 1) or "1"


def _predictions(envelope: "Envelope") -> str:
    rows = [_prediction(prediction, envelope) for prediction in envelope.predictions]
    rows += _not_predicted(envelope)
    header = ("predicted", "of", "statistic", "value", "interval", "limit")
    used = [column for column in range(len(header)) if any(row[column] != "-" for row in rows)]
    return table([header[column] for column in used], [[row[column] for column in used] for row in rows])


def _not_predicted(envelope: "Envelope") -> list[tuple[str, ...]]:
    """Limits of workloads on statistics that the plan does not predict: what judged them is another one."""
    predicted = {(row.metric, row.of, row.statistic) for row in envelope.predictions}
    return [
        (time, workload, of, "judged by the mean", "-", f"<= {figure('ttft_s', bound)}")
        for workload, time, of, bound in _stated_limits(envelope)
        if (f"{time}_s", workload, of) not in predicted
    ]


def _stated_limits(envelope: "Envelope") -> Iterator[tuple[str, str, str, float]]:
    """Workload, time, statistic and seconds of every limit of the problem inside the plan, as far as it is one."""
    workloads = envelope.inputs.get("workloads")
    for workload in workloads if isinstance(workloads, list) else []:
        record = workload if isinstance(workload, dict) else {}
        slo = record.get("slo")
        for time, limits in slo.items() if isinstance(slo, dict) else ():
            for name, bound in limits.items() if isinstance(limits, dict) else ():
                if isinstance(bound, (int, float)):
                    yield str(record.get("name")), time, name.removesuffix("_s"), float(bound)


def _prediction(prediction: "Prediction", envelope: "Envelope") -> tuple[str, ...]:
    metric = prediction.metric
    interval = "-"
    if prediction.interval is not None:
        low, high = prediction.interval
        interval = f"{figure(metric, low)} to {figure(metric, high)}"
    limit = _limit(prediction, envelope)
    value = f"{'about ' if prediction.approximate else ''}{figure(metric, prediction.value)}"
    bound = f"<= {figure(metric, limit)}" if limit is not None else "-"
    name = metric.removesuffix("_per_s").removesuffix("_s")
    return name, prediction.of or "plan", prediction.statistic, value, interval, bound


def _judged_limits(certificate: "Certificate") -> str:
    """Every limit that was verified: what was simulated, its 95 % interval, and the share of the limit that is left."""
    verified = certificate.proof.get("verified")
    rows: Any = verified.get("limits") if isinstance(verified, dict) else None
    if not rows:
        return ""
    try:
        cells = [_judged_limit(row) for row in rows]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise PlannerError(
            "what was verified is not stated as limits with their values",
            where="certificate.proof.verified.limits",
            hint="`planner check` names what differs from the plan as it was solved",
        ) from error
    header = ("simulated", "limit on", "of", "limit", "value", "95 % interval", "margin", "verdict")
    return table(header, cells)


def _judged_limit(row: Any) -> tuple[str, ...]:  # noqa: ANN401 - a row of a document that may be anything
    """The cells of a limit; raises what comes of a row that is none."""
    down = "".join(f", {count} of {role} down" for role, count in row.get("down", {}).items())
    form = _share if row["time"] == "attainment" else partial(figure, "ttft_s")
    between = " to ".join(map(form, row["interval_95"])) if row["interval_95"] else "-"
    sign = ">=" if row["time"] == "attainment" else "<="
    limit, margin = f"{sign} {form(row['limit'])}", f"{row['margin']:.1%}"
    names = f"{row['workload']}{down}", str(row["time"]), str(row["statistic"])
    return (*names, limit, form(row["value"]), between, margin, str(row["verdict"]))


def _share(value: float) -> str:
    return f"{value:.2%}"


def _limit(prediction: "Prediction", envelope: "Envelope") -> float | None:
    """The SLO that this prediction must meet, from the problem inside the plan."""
    wanted = prediction.of, prediction.metric.removesuffix("_s"), prediction.statistic
    return next((bound for *of, bound in _stated_limits(envelope) if tuple(of) == wanted), None)


def _certificate(certificate: "Certificate") -> list[str]:
    objective = certificate.objective
    value = figure(objective.metric, objective.value)
    bound = f", bound {figure(objective.metric, certificate.bound)}" if certificate.bound is not None else ""
    lines = [f"  {objective.sense} {objective.metric}: {value}{bound}", f"  claim: {certificate.claim}"]
    if certificate.candidates:
        pruned = ", ".join(f"{count} by {name}" for name, count in certificate.pruned.items() if count)
        lines.append(f"  space: {certificate.candidates} candidates{f'; pruned {pruned}' if pruned else ''}")
    others = certificate.next_best if isinstance(certificate.next_best, list) else []
    return lines + [line for other in others if isinstance(other, dict) for line in _next_best(other, objective.metric)]


def _next_best(other: "dict[str, JsonValue]", metric: str) -> list[str]:
    """How much worse the best plan of another form would be."""
    value, loss = other.get("objective"), other.get("loss")
    if not isinstance(value, (int, float)) or not isinstance(loss, (int, float)):
        return []
    far = other.get("no_measurement_near")
    if isinstance(far, list):
        return [
            f"  faster by the costs alone: {other.get('plan', 'another plan')}: {figure(metric, value)}"
            f" ({-100 * loss:.1f} % better); no measurement near: {', '.join(map(str, far))};"
            " `choice: fastest` takes it"
        ]
    return [f"  next best: {other.get('plan', 'another plan')}: {figure(metric, value)} ({100 * loss:.1f} % worse)"]


def _evidence(envelope: "Envelope") -> list[str]:
    evidence = envelope.evidence
    lines = []
    if evidence.basis:
        shares = ", ".join(f"{name} {significant(100 * share)} %" for name, share in evidence.basis.items() if share)
        lines.append(f"  costs rest on: {shares}")
    lines += [f"  note: {note}" for note in evidence.notes]
    return lines + [f"  assumes: {assumption}" for assumption in envelope.assumptions]


def render_findings(findings: "Sequence[Finding]") -> str:
    """How many of the rules that were judged hold, every failure with its hint, and what was not judged, by verdict."""
    number = counts(findings)
    judged = number[OK] + number[FAILED]
    approximate = sum(finding.verdict == OK and finding.approximate for finding in findings)
    notes = [f"{approximate} by mean-based models only"] if approximate else []
    notes += [f"{number[verdict]} {verdict}" for verdict in (NOT_JUDGED, UNVERIFIABLE, CLOSE) if number.get(verdict)]
    told = f" ({', '.join(notes)})" if notes else ""
    lines = [f"ok    {number[OK]} of {judged} rules{told}"]
    for finding in findings:
        if finding.verdict != OK:
            where = f"{finding.where}: " if finding.where else ""
            lines.append(f"{_WORDS[finding.verdict]:<5} {finding.rule}  {where}{finding.what}")
        if finding.hint and finding.verdict in (FAILED, UNVERIFIABLE, CLOSE):
            lines.append(f"      hint: {finding.hint}")
    return plain("\n".join(lines))


def render_infeasible(answer: "Infeasible") -> str:
    """The smallest set of limits that cannot hold together, and how far each must move."""
    proof = "proved" if answer.proved else "not proved"
    lines = [f"infeasible: no plan meets all limits ({proof})"]
    if answer.conflict:
        limits = ",  ".join(entry["limit"] for entry in answer.conflict)
        together = "this limit cannot hold" if len(answer.conflict) == 1 else "these cannot hold together"
        lines.append(f"  {together}:  {limits}")
    nearest = "   |   ".join(entry["nearest"] for entry in answer.conflict if entry["nearest"])
    return plain("\n".join([*lines, *([f"  nearest:  {nearest}"] if nearest else [])]))
