"""An audit as text."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from planner.documents.units import figure, format_si, significant

if TYPE_CHECKING:
    from planner.audit.records import Answer, Audit, Setting

_WORDS = {"max_num_seqs": "max-num-seqs", "chunk_tokens": "tokens a step", "gpus_per_replica": "GPUs of a replica"}
_SHOWN = (
    "step_time_s",
    "iteration_time_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "memory_bytes",
    "generation_s",
    "training_s",
)


def audit_text(audit: "Audit") -> str:
    """Findings, answers, notes, the diff, and the runs that would settle it."""
    return "\n".join(_lines(audit))


def _lines(audit: "Audit") -> Iterator[str]:
    for text in audit.findings:
        yield f"{'FAIL' if text in audit.blocking else 'note'}  {text}"
    for name in audit.unresolved:
        yield f"open  {name}: give it with `--env {name}=VALUE`"
    if not audit.findings and not audit.unresolved:
        yield "ok    nothing contradicts itself"
    for text in audit.notes:
        yield f"note  {text}"
    for answer in (audit.now, audit.change, *audit.free):
        if answer is not None:
            yield ""
            yield from _answer(answer)
    for text in audit.apart:
        yield ""
        yield f"apart: {text}"
    if audit.diff:
        yield ""
        yield audit.diff.rstrip("\n")
    if audit.runs:
        yield ""
        yield "runs that would settle it; `planner calibrate rate-*.json -o own.yaml` reads them"
        yield from (f"  {command}" for command in audit.runs)


def _answer(answer: "Answer") -> Iterator[str]:
    yield f"{answer.title}: {'; '.join(answer.roles)}"
    figures = answer.figures
    if answer.settings:
        yield f"  {_change(answer.settings)}{_gain(figures)}"
    elif "gain" in figures:
        yield f"  {_gain(figures).removeprefix(': ')}"
    if "requests_per_s_within_limits" in figures:
        rate = figures["requests_per_s_within_limits"]
        limited = f", limited by {', '.join(figures['limited_by'])}" if figures.get("limited_by") else ""
        ends = _ends(figures.get("requests_per_s_interval"))
        yield f"  within the limits {significant(rate)} requests/s{ends}{limited}"
        yield f"  {'keeps' if figures['keeps_the_load'] else 'does not keep'} the stated load"
    if figures.get("saturated"):
        yield "  at the stated load requests wait without end"
    for name, row in figures.get("times", {}).items():
        metric, _, statistic = name.partition(".")
        text = f"  {metric.removesuffix('_s').upper()} {statistic} {format_si(row['value'], 's')}"
        yield text + (f" [{', '.join(format_si(end, 's') for end in row['interval'])}]" if "interval" in row else "")
    for row in figures.get("memory", ()):
        used, usable = row["used_bytes"] / 1e9, row["usable_bytes"] / 1e9
        yield f"  {row['role']}: {used:.1f} of {usable:.1f} GB a GPU, {usable - used:.1f} GB left"
    for name in _SHOWN:
        if name in figures:
            bounds = figures.get(f"{name}_interval")
            text = f"  {name.removesuffix('_s').removesuffix('_bytes').replace('_', ' ')} {figure(name, figures[name])}"
            yield text + (f" [{figure(name, bounds[0])}, {figure(name, bounds[1])}]" if bounds else "")


def _change(settings: "tuple[Setting, ...]") -> str:
    words = [
        f"{each.role + '.' if each.role not in ('', 'colocated') else ''}{_WORDS.get(each.field, each.field)} "
        f"{'unset' if each.before is None else each.before} -> {each.after}"
        for each in settings
    ]
    return f"change {', '.join(words)}"


def _gain(figures: Mapping[str, Any]) -> str:
    if "gain" not in figures:
        return ""
    ends = figures.get("gain_interval")
    interval = f" [{100 * ends[0]:.0f}, {100 * ends[1]:.0f}]" if ends else ""
    return f": {100 * figures['gain']:+.0f} %{interval}"


def _ends(ends: Any) -> str:  # noqa: ANN401 - plain data
    return "" if ends is None else f" [{significant(ends[0])}, {significant(ends[1])}]"
