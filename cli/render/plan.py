"""Renders a plan on a screen of 80 columns: what to launch, what it does against its limits, money, proof."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from planner.cli.errors import plain
from planner.cli.render.columns import fitted, folded, items, ranges, wants_colour, wrapped
from planner.cli.render.limits import render_limits
from planner.cli.render.proof import proof_lines, render_proof
from planner.documents.units import figure, format_si, span

if TYPE_CHECKING:
    from planner.plan.schema import Decision, Envelope, Memory, Parallelism, Prediction, Role

_MOST_ROWS = 16  # of a table on the first screen
_WIDEST = 60  # characters of a list on the first screen
_PARTS = {  # of the money of a plan, and of what it is worth
    "memory_usd_per_hour": "of it memory for prefixes",
    "opportunistic_usd": "of opportunistic jobs beside it",
}
_WORTH = ("usd", "opportunistic_usd")  # of what plans make, not what they cost


def render_plan(envelope: "Envelope", decision: "Decision", *, verbose: bool = False) -> str:
    """What runs where, predictions against limits, money, and the proof in a line; all of the proof where `verbose`."""
    from planner.plan.placement import gpus_in_use

    gpus = gpus_in_use(decision.roles, decision.placement)
    counted = f"{gpus} GPU{'s' if gpus != 1 else ''}, " if decision.roles else ""
    headline = [wrapped(f"{envelope.name}: {envelope.kind}, {counted}{_proof(envelope)}", indent=0)]
    if envelope.certificate.estimate:
        headline.append(wrapped(f"an estimate: {envelope.certificate.estimate}", hanging=0))
    launched = [_roles(decision)] if decision.roles else []  # a workflow of functions alone launches none
    parts = ["\n".join(headline), *launched, *_own_parts(decision, verbose=verbose)]
    limits = render_limits(envelope, decision)
    parts += [part for part in (limits, _predictions(envelope), _overload(envelope), _money(envelope)) if part]
    parts.append("\n".join(proof_lines(envelope, decision) if verbose else render_proof(envelope, decision)))
    return plain("\n\n".join(parts)) if not wants_colour() else "\n\n".join(parts)


def _proof(envelope: "Envelope") -> str:
    certificate = envelope.certificate
    gap = f", gap {certificate.gap_text}" if certificate.gap is not None else ""
    why = f": {certificate.gap_reason}" if certificate.gap_reason else ""
    stopped = (
        "" if certificate.stop_reason in ("finished", certificate.status) else f", stopped: {certificate.stop_reason}"
    )
    by = " by formulas" if certificate.estimate and certificate.status == "optimal" else ""
    within = f"; {certificate.within_text}" if certificate.within is not None else ""
    return f"{certificate.status}{by}{gap}{stopped}{within}{why}"


def _overload(envelope: "Envelope") -> str:
    """What `busy` above 1 means, where engines are asked for more than they serve."""
    served = next((each.value for each in envelope.predictions if each.metric == "load_served"), 1.0)
    if served >= 1.0:
        return ""
    return wrapped(
        f"the stated load is more than the engines serve, {served:.1%} of it: `busy` above 1 is work that waits",
        hanging=0,
    )


def _roles(decision: "Decision") -> str:
    """What to launch: roles alike as one, named after the first and the last."""
    plainly = all(role.name.startswith(role.function) for role in decision.roles)
    header = ("launch", "function", "replicas", "parallel", "gpus", "pool", "memory", "with")
    cells = [_role(role) for role in decision.roles]
    rows = folded([role.name for role in decision.roles], cells, between=" to ", varying=[len(header) - 2])
    kept = [c for c in range(len(header)) if not (plainly and header[c] == "function")]
    return fitted([header[c] for c in kept], [[row[c] for c in kept] for row in rows])


def _role(role: "Role") -> tuple[str, ...]:
    memory = memory_text(role.memory) if role.memory is not None else "-"
    limits = " ".join(f"{name}={value}" for name, value in role.limits.items()) or "-"
    gpus = str(role.replicas * role.parallelism.devices)
    return role.function, str(role.replicas), parallel(role.parallelism), gpus, role.pool, memory, limits


def memory_text(memory: "Memory") -> str:
    """`39.7 of 136 GB (29 %)`: what is used of what may be."""
    used, capacity = format_si(memory.used_bytes, "B"), format_si(memory.capacity_bytes, "B")
    share = f"{100 * memory.used_bytes / memory.capacity_bytes:.0f} %" if memory.capacity_bytes else "-"
    number, unit = used.split(" ")
    return f"{number if capacity.endswith(f' {unit}') else used} of {capacity} ({share})"


def parallel(shape: "Parallelism") -> str:
    """`tp8 ep8`: the degrees above one, or `1` on a single device."""
    degrees = {name: getattr(shape, name) for name in ("tp", "pp", "dp", "cp", "moe_tp", "ep", "vpp")}
    return " ".join(f"{name.replace('_', '-')}{degree}" for name, degree in degrees.items() if degree > 1) or "1"


def _own_parts(decision: "Decision", *, verbose: bool) -> Iterator[str]:
    """What only this kind decides: plain values on a line, lists of entries as tables."""
    from planner.plan.schema import Decision

    values, tables = [], []
    decided = set(decision.model_dump(exclude_defaults=True)) - set(Decision.model_fields)
    for name, value in decision.model_dump(mode="json", include=decided).items():
        if isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
            long = [key for key in value[0] if any(_is_long(entry[key]) for entry in value)]
            short = [key for key in value[0] if key not in long]
            if short and (not long or len(value) <= _MOST_ROWS):
                tables.append(_entries(name, [{key: entry[key] for key in short} for entry in value], verbose=verbose))
                short = []
            if long:
                said = ", ".join(key for key in value[0] if key in long or key in short)
                held = sum(any(entry[key] for key in (*long, *short)) for entry in value)
                values.append(f"{name}: {held} of {said}; `planner show --json` has {'it' if held == 1 else 'them'}")
        else:
            lists = value.values() if isinstance(value, dict) and not verbose else ()
            nested = any(isinstance(part, list) and part and isinstance(part[0], list) for part in lists)
            more = "; `--verbose` has them" if nested else ""
            values.append(f"{name}: {_cell(name, value, cut=not verbose)}{more}")
    if values:
        yield items(values)
    yield from tables


def _entries(name: str, entries: list[Any], *, verbose: bool) -> str:
    """A list of records under their number or their first name, those alike as one."""
    keys = [key for key in entries[0] if any(entry[key] not in (None, [], {}) for entry in entries)]
    named = isinstance(entries[0][keys[0]], str)
    cells = [[_cell(key, entry[key]) for key in (keys[1:] if named else keys)] for entry in entries]
    names = [str(entry[keys[0]]) if named else str(index) for index, entry in enumerate(entries)]
    title = keys[0] if named else name.removesuffix("s").replace("_", " ")
    header = [title, *(_heading(key) for key in (keys[1:] if named else keys))]
    rows = folded(names, cells) if not named else [(n, *row) for n, row in zip(names, cells, strict=True)]
    left = len(rows) - _MOST_ROWS
    if verbose or left <= 1:
        return fitted(header, rows)
    return f"{fitted(header, rows[:_MOST_ROWS])}\n  ... {left} rows more; `--verbose` has them"


def _heading(key: str) -> str:
    return key.removesuffix("_bytes").removesuffix("_s").replace("_", " ")


def _is_long(value: object) -> bool:
    """Whether a list would not fit into a cell."""
    return isinstance(value, list) and len(", ".join(map(str, value))) > _WIDEST


def _cell(name: str, value: Any, *, cut: bool = False) -> str:  # noqa: ANN401 - parsed JSON
    """A value as people write it; a record as what it holds, without what is empty; a plan inside by its kind."""
    from planner.plan.schema import SCHEMA as PLAN_SCHEMA

    whole = isinstance(value, list) and all(isinstance(entry, int) and not isinstance(entry, bool) for entry in value)
    if whole and value == sorted(set(value)):
        text = ranges(value) or "-"
        return f"{text[: _WIDEST - 3]}..." if cut and len(text) > _WIDEST else text
    if isinstance(value, dict) and "certificate" in value:
        return _part_text(value)
    if isinstance(value, dict) and "capacity_bytes" in value:
        from planner.plan.schema import Memory

        return memory_text(Memory.model_validate(value))
    if isinstance(value, dict) and value.get("schema") == PLAN_SCHEMA:
        return f"of kind {value['kind']}; `planner show --json` has it"
    if isinstance(value, float):
        return figure(name, value)
    if isinstance(value, list):
        text = ", ".join(_cell(name, entry) for entry in value) or "-"
    elif isinstance(value, dict):
        counts = {key: entry for key, entry in value.items() if entry == 0}
        said = {key: entry for key, entry in value.items() if entry not in (None, [], {}, 0, "")} or counts
        text = " ".join(_pair(key, entry, name, cut=cut) for key, entry in said.items()) or "-"
    else:
        text = "-" if value is None else str(value)
    return f"{text[: _WIDEST - 3]}..." if cut and isinstance(value, list) and len(text) > _WIDEST else text


def _part_text(plan: dict[str, Any]) -> str:
    """`serve, requests_per_s 4.53 requests/s`: a plan that another one holds, by its kind and its objective."""
    objective = plan["certificate"]["objective"]
    return f"{plan['kind']}, {objective['metric'].removesuffix('_s')} {figure(objective['metric'], objective['value'])}"


def _pair(key: str, value: Any, of: str, *, cut: bool) -> str:  # noqa: ANN401 - parsed JSON
    """A word speaks for itself; a number needs its name, and its unit that of the record where it has none. Of lists in
    a list only their number is said where it is `cut`."""
    if isinstance(value, list) and value and all(isinstance(entry, list) for entry in value):
        told = str(len(value)) if cut else " ".join(f"({_cell(key, entry)})" for entry in value)
        return f"{_heading(key)} {told}"
    if isinstance(value, (str, list)):
        return _cell(key, value, cut=cut)
    metric = of if of.endswith(("_bytes", "_s")) and not key.endswith(("_bytes", "_s")) else key
    return f"{_heading(key)} {_cell(metric, value)}"


def _predictions(envelope: "Envelope") -> str:
    """Predictions of the plan and of its workloads; times that have a limit stand among those."""
    from planner.explain.limits import stated_limits

    limited = {(limit.metric, limit.of, limit.value_of) for limit in stated_limits(envelope)}
    rows = [
        row
        for row in envelope.predictions
        if "usd" not in row.metric and (row.metric, row.of, row.statistic) not in limited
    ]
    if not rows:
        return ""
    header, cells = ("predicted", "of", "value", "80 % interval"), [_prediction(row) for row in rows]
    kept = [c for c in range(len(header)) if header[c] != "of" or any(row.of for row in rows)]
    return fitted([header[c] for c in kept], [[row[c] for c in kept] for row in cells])


def _prediction(row: "Prediction") -> tuple[str, ...]:
    interval = span(*(figure(row.metric, end) for end in row.interval)) if row.interval is not None else "-"
    value = f"{'about ' if row.approximate else ''}{figure(row.metric, row.value)}"
    name = row.metric.removesuffix("_per_s").removesuffix("_s")
    return f"{name}{f' {row.statistic}' if row.statistic != 'mean' else ''}", row.of or "plan", value, interval


def _money(envelope: "Envelope") -> str:
    """What the plan is worth and what it costs, a line each; in brackets what a part of it is of."""
    lines = []
    for title, metrics in (
        ("worth", [row.metric for row in envelope.predictions if row.metric in _WORTH]),
        ("money", [row.metric for row in envelope.predictions if "usd" in row.metric and row.metric not in _WORTH]),
    ):
        rows = [(row, row.of or _PARTS.get(row.metric)) for row in envelope.predictions if row.metric in metrics]
        texts = [f"{figure(row.metric, row.value)}{f' ({of})' if of else ''}" for row, of in rows]
        lines += [items([title, *texts])] if texts else []
    return "\n".join(lines)
