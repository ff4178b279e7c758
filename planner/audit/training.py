"""Training and RL runs judged: what they take, which one or two decisions to change, what their GPUs could do.

The artifact's decisions are fixed in its problem and the plan of it is made; then one of them is freed after the other,
then pairs with the best, and last all of them. What is predicted of plans that differ in few decisions errs alike, so
that the interval of a gain is that of the shorter plan's own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.audit.records import Answer, Setting
from planner.errors import Infeasible, PlannerError
from planner.importing.plans.post_training import rl_notes, rl_problem
from planner.importing.plans.question import Question
from planner.importing.plans.serving import resolved_problem
from planner.importing.plans.training import training_notes, training_problem
from planner.importing.records import Reading
from planner.plan.schema import Envelope
from planner.progress import Limits

CANNOT = "cannot run: "
WORTHWHILE = 0.02  # share of the time that a change must save
_FREED = {
    "train": (("micro_batch",), ("tp", "moe_tp"), ("pp", "vpp"), ("cp",), ("ep",), ("recompute",)),
    "rl": (("generation_tp",), ("training_tp",), ("training_pp",), ("arrangements",)),
}
_DEGREES = ("tp", "pp", "cp", "ep", "vpp", "moe_tp")
_METRIC = {"train": "step_time_s", "rl": "iteration_time_s"}
_FIELDS = {"generation_tp": "rollout.tp", "training_tp": "train.tp", "training_pp": "train.pp"}


@dataclass(frozen=True, slots=True)
class TrainingAnswers:
    """What was found by the costs, and the answers."""

    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    now: Answer | None = None
    change: Answer | None = None
    free: tuple[Answer, ...] = ()
    wanted: Mapping[tuple[str, str], object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Run:
    """A problem whose decisions stand in one mapping of its options."""

    kind: str
    document: Mapping[str, Any]
    limits: Limits

    @property
    def fixed(self) -> dict[str, Any]:
        """The decisions that are fixed."""
        options = self.document["options"]
        names = [name for group in _FREED["rl"] for name in group]
        return dict(options["search"]) if self.kind == "train" else {n: options[n] for n in names if n in options}

    @property
    def recomputing(self) -> dict[str, Any]:
        """What another granularity computes again where nothing else is changed: with Megatron the core attention, and
        all layers."""
        if self.document.get("engine", {}).get("name") not in ("megatron-lm", "megatron-bridge"):
            return {}
        usual = {"recompute_modules": ["core_attention"], "recompute_layers": "all"}
        return {name: self.fixed.get(name, value) for name, value in usual.items()}

    def solved(self, fixed: Mapping[str, Any]) -> Envelope | None:
        """The best plan with these decisions fixed; None where none fits."""
        from planner.api import solve

        options = {k: v for k, v in self.document["options"].items() if self.kind == "train" or k not in self.fixed}
        options |= {"search": dict(fixed)} if self.kind == "train" else dict(fixed)
        try:
            return solve(resolved_problem({**self.document, "options": options}), self.limits)
        except Infeasible:
            return None


def audit_training(reading: Reading, question: Question, limits: Limits) -> TrainingAnswers:
    """The answers on the stated machines. Raises PlannerError for what nobody said, and for names that are unknown."""
    kind = reading.fields["kind"]
    document = training_problem(reading, question) if kind == "train" else rl_problem(reading, question)
    run = _Run(kind, document, limits)
    limits.tell("pricing what runs")
    findings, notes = list[str](), training_notes(reading, question) if kind == "train" else rl_notes(reading)
    now: Envelope | None = None
    try:
        now = _stated(run)
    except Infeasible as refused:
        findings.append(CANNOT + _why(refused))
    except PlannerError as refused:
        return TrainingAnswers((CANNOT + refused.what,))
    limits.tell("trying changes")
    change, freed = _few(run, now)
    limits.tell("with everything free")
    free = run.solved({name: value for name, value in run.fixed.items() if name in ("offload",)})
    base = None if now is None else _time(now, kind)
    settings = tuple(_settings(run, change, freed)) if change is not None else ()
    answers = [_answer("everything free, on the same GPUs", free, run, base)] if free is not None else []
    return TrainingAnswers(
        tuple(findings),
        tuple(notes),
        _answer("as it runs", now, run, None) if now is not None else None,
        _answer("with few changes", change, run, base, settings) if change is not None else None,
        tuple(answers),
        {("", setting.field): setting.after for setting in settings},
    )


def _stated(run: _Run) -> Envelope:
    from planner.api import solve

    return solve(resolved_problem(run.document), run.limits)


def _why(refused: Infeasible) -> str:
    conflict = [row for row in refused.conflict if row.get("nearest")]
    rows = conflict or list(refused.conflict)
    return "; ".join(
        f"{row['limit']}, needs {row['nearest']}" if row.get("nearest") else str(row["limit"]) for row in rows[:3]
    )


def _few(run: _Run, now: Envelope | None) -> tuple[Envelope | None, tuple[str, ...]]:
    """The best plan with one group of decisions freed, or two where that is worth it; None where none is better."""
    best, freed = now, tuple[str, ...]()
    for _ in range(2):
        better, more = best, freed
        for group in _FREED[run.kind]:
            names = (*freed, *group)
            if not any(name in run.fixed and name not in freed for name in group):
                continue
            fixed = {k: v for k, v in run.fixed.items() if k not in names and k != "dp"}
            plan = run.solved(fixed | (run.recomputing if "recompute" in names else {}))
            if plan is not None and _saves(run.kind, better, plan):
                better, more = plan, names
        if better is best:
            break
        best, freed = better, more
    return (None, ()) if best is now else (best, freed)


def _saves(kind: str, best: Envelope | None, plan: Envelope) -> bool:
    return best is None or _time(plan, kind) < _time(best, kind) * (1.0 - WORTHWHILE)


def _time(plan: Envelope, kind: str) -> float:
    return next(p.value for p in plan.predictions if p.metric == _METRIC[kind])


def _answer(title: str, plan: Envelope, run: _Run, base_s: float | None, settings: tuple[Setting, ...] = ()) -> Answer:
    figures: dict[str, Any] = {}
    intervals = _intervals(plan)
    for prediction in plan.predictions:
        if not prediction.of and prediction.metric not in figures:
            figures[prediction.metric] = prediction.value
            if prediction.metric in intervals:
                figures[f"{prediction.metric}_interval"] = list(intervals[prediction.metric])
    if base_s is not None:
        figures["gain"] = base_s / _time(plan, run.kind) - 1.0
        interval = intervals.get(_METRIC[run.kind])
        if interval is not None:
            spread = (interval[1] / interval[0]) ** 0.5
            figures["gain_interval"] = [(1 + figures["gain"]) / spread - 1.0, (1 + figures["gain"]) * spread - 1.0]
    return Answer(title, tuple(_roles(plan)), figures, settings)


def _intervals(plan: Envelope) -> dict[str, tuple[float, float]]:
    """The 80 % intervals of what is predicted, by metric."""
    return {each.metric: each.interval for each in plan.predictions if not each.of and each.interval is not None}


def _roles(plan: Envelope) -> Iterator[str]:
    for role in plan.roles:
        memory = role.memory
        room = f", {memory.used_bytes / 1e9:.1f} of {memory.capacity_bytes / 1e9:.1f} GB a GPU" if memory else ""
        yield f"{role.replicas} x {role.function} {role.parallelism.text or 'one GPU'}{room}"


def _settings(run: _Run, plan: Envelope, freed: tuple[str, ...]) -> Iterator[Setting]:
    """The decisions of the plan where they differ from those that were fixed."""
    decision: Any = plan.decision
    roles = {role["function"]: role["parallelism"] for role in decision["roles"]}
    for name in freed:
        after: Any = None
        if run.kind == "train":
            parallelism = next(iter(roles.values()))
            after = parallelism.get(name, 1) if name in _DEGREES else decision.get(name)
            if name == "moe_tp" and name not in run.fixed:
                continue
            if name == "recompute":
                after = _recompute(decision)
        elif name == "generation_tp":
            after = next((p["tp"] for f, p in roles.items() if f in ("rollout", "generation")), None)
        elif name in ("training_tp", "training_pp"):
            after = next((p[name[-2:]] for f, p in roles.items() if f in ("actor", "train", "trainer")), None)
        before = run.fixed.get(name)
        before = before[0] if isinstance(before, list) else before
        if after is not None and after != before:
            yield Setting("", _FIELDS.get(name, name), before, after)


def _recompute(decision: Any) -> str | None:  # noqa: ANN401 - plain data
    grades = {run.get("recompute", {}).get("granularity") for run in decision.get("stage_runs", ())}
    return grades.pop() if len(grades) == 1 else None
