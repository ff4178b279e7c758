"""From artifacts and a question to an audit: findings, answers, the changed artifact, runs that would settle it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from planner.audit.edit import changed_text, diff_of
from planner.audit.records import Audit
from planner.audit.runs import bench_commands
from planner.audit.serving import ServingAnswers, audit_serving, fit_of_serving
from planner.audit.training import TrainingAnswers, audit_training
from planner.errors import PlannerError
from planner.importing.audit import blocks
from planner.importing.files import Gathered, files_beside, gathered, read_gathered, shown_path
from planner.importing.given import with_fields
from planner.importing.plans.question import Question
from planner.importing.records import Reading
from planner.progress import Limits


def audit(
    paths: Sequence[str],
    given: Mapping[str, str],
    fields: Mapping[str, str],
    question: Question,
    limits: Limits | None = None,
) -> Audit:
    """What the artifacts say and do. Raises PlannerError for what cannot be read, and for what the question lacks."""
    limits = limits or Limits()
    texts = gathered(paths)
    reading = with_fields(read_gathered(texts, given), fields)
    blocking = tuple(text for text in reading.findings if blocks(text))
    plain = Audit(reading.findings, blocking, reading.unresolved)
    if blocking:
        said = ("not priced: it cannot start as written",) if asked(reading, question) else ()
        return replace(plain, notes=said)
    if not asked(reading, question):
        return _with_fit(plain, reading, question)
    if reading.fields["kind"] == "serve":
        return _with_serving(plain, audit_serving(reading, question, limits), texts, given, fields)
    answers = audit_training(reading, question, limits)
    return _with_training(plain, answers, texts, given, fields)


def asked(reading: Reading, question: Question) -> bool:
    """Whether there is a question beyond what stands in the text: a load of engines, machines of a training run."""
    machines = reading.fields["kind"] != "serve" and bool(question.cluster)
    return bool(question.workload or question.slo) or machines


def _with_fit(plain: Audit, reading: Reading, question: Question) -> Audit:
    """Whether engines fit where their model and GPUs are known."""
    if reading.fields["kind"] != "serve" or reading.unresolved:
        return plain
    findings, notes = fit_of_serving(reading, question)
    return replace(
        plain,
        findings=(*plain.findings, *findings),
        blocking=(*plain.blocking, *findings),
        notes=tuple(notes),
    )


def _with_serving(
    plain: Audit, answers: ServingAnswers, texts: Gathered, given: Mapping[str, str], fields: Mapping[str, str]
) -> Audit:
    case = answers.case
    assert case is not None
    wanted = {(role, name): value for role, own in (answers.targets or {}).items() for name, value in own.items()}
    changed, diff, missing = changed_files(texts, given, fields, wanted)
    notes = [*answers.notes, *(f"no place in the artifact says {place}" for place in missing)]
    runs: list[str] = []
    if answers.rates_per_s:
        runs = bench_commands(case.resolved, case.instances, answers.rates_per_s)
    return replace(
        plain,
        findings=(*plain.findings, *answers.findings),
        blocking=(*plain.blocking, *answers.findings),
        notes=tuple(notes),
        now=answers.now,
        change=answers.change,
        free=answers.free,
        apart=answers.apart,
        runs=tuple(runs),
        changed=changed,
        diff=diff,
    )


def _with_training(
    plain: Audit, answers: TrainingAnswers, texts: Gathered, given: Mapping[str, str], fields: Mapping[str, str]
) -> Audit:
    changed, diff, missing = changed_files(texts, given, fields, answers.wanted)
    return replace(
        plain,
        findings=(*plain.findings, *answers.findings),
        blocking=(*plain.blocking, *answers.findings),
        notes=(*answers.notes, *(f"no place in the artifact says {place}" for place in missing)),
        now=answers.now,
        change=answers.change,
        free=answers.free,
        changed=changed,
        diff=diff,
    )


def changed_files(
    texts: Gathered,
    given: Mapping[str, str],
    fields: Mapping[str, str],
    wanted: Mapping[tuple[str, str], object],
) -> tuple[dict[str, str], str, list[str]]:
    """The files with the wanted settings by name, the diff of all of them, and the settings that none can say."""
    changed: dict[str, str] = {}
    diffs: list[str] = []
    left = dict(wanted)
    files = [(path, text, own) for own in texts.values() for path, text in own.items()]
    for path, text, own in files if wanted else ():
        name, beside = shown_path(path), {} if path in texts else files_beside(own)

        def read(edited: str, name: str = name, beside: Mapping[str, str] = beside) -> Reading:
            from planner.importing.registry import Artifact, read_artifact

            return read_artifact(Artifact(edited, name, given, beside))

        try:
            here = {role for role, _ in _places(read(text))}
        except PlannerError:
            continue
        asked_here = {place: value for place, value in left.items() if place[0] in here}
        edited, missing = changed_text(text, read, asked_here)
        if edited != text:
            changed[name] = edited
            diffs.append(diff_of(text, edited, name))
        left = {place: value for place, value in left.items() if place not in asked_here or place in missing}
    named = [
        f"{role + '.' if role else ''}{field} {value}"
        for (role, field), value in left.items()
        if f"{role}.{field}" not in fields
    ]
    return changed, "".join(diffs), named


def _places(reading: Reading) -> list[tuple[str, str]]:
    from planner.audit.edit import values_of

    return list(values_of(reading))
