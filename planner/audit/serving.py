"""A serving deployment judged under its load: what it keeps, which few settings to change, what its GPUs could do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.audit.closed import as_stream
from planner.audit.likely import Factors, case_of, factors_of, gain_interval, rate_interval
from planner.audit.records import Answer, Setting
from planner.errors import PlannerError
from planner.importing.plans.question import Question
from planner.importing.plans.serving import ServingCase, require_said, serving_case
from planner.importing.plans.shapes import limits_of
from planner.importing.records import Reading
from planner.kinds.serve.deployed.bench import Bench
from planner.kinds.serve.deployed.changes import Changes, Tried
from planner.kinds.serve.deployed.freely import devices, fewest_gpus, most_load
from planner.kinds.serve.deployed.instances import Instances, memory_of, setting_around, type_of, types_at_hand
from planner.kinds.serve.plan.place import Unplaceable
from planner.progress import Limits

CANNOT = "cannot run: "


@dataclass(frozen=True, slots=True)
class ServingAnswers:
    """What was found by the costs, and the answers; `change` is None where nothing is worth changing."""

    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    now: Answer | None = None
    change: Answer | None = None
    free: tuple[Answer, ...] = ()
    apart: tuple[str, ...] = ()
    targets: Mapping[str, Mapping[str, Any]] | None = None  # fields by role that the change asks for
    case: ServingCase | None = None
    rates_per_s: tuple[float, ...] = ()  # that runs would settle
    instances: tuple[Instances, ...] = ()  # after the change


def audit_serving(reading: Reading, question: Question, limits: Limits) -> ServingAnswers:
    """The answers under the stated load. Raises PlannerError for what nobody said, and for names that are unknown."""
    require_said(reading, question, judged=True)
    question, said = as_stream(reading, question)
    case = serving_case(reading, question)
    rate_per_s = case.rate_per_s
    assert rate_per_s is not None
    limits.tell("pricing what runs")
    setting = setting_around(case.resolved, case.instances)
    changes = Changes(Bench.of(setting, limits), rate_per_s)
    try:
        limits.tell("simulating what runs")
        now = changes.tried(case.instances)
    except (PlannerError, Unplaceable) as error:
        return _refused(case, changes, limits, getattr(error, "what", str(error)))
    audited = _Audited(case, changes, factors_of(case.resolved, case_of(case.resolved, case.instances, rate_per_s)))
    limits.tell("simulating changes")
    best = changes.best(now)
    limits.tell("looking for the fewest GPUs")
    fewest = fewest_gpus(changes, limits, [now, best])
    limits.tell("looking for the most load")
    most = most_load(changes, limits, best)
    free = [audited.fewest(fewest, devices(now.instances))]
    free += [audited.answer("everything free, on the same GPUs", most, now)] if most is not best else []
    return ServingAnswers(
        findings=(),
        notes=(*said, *case.notes, *audited.room(now)),
        now=audited.answer("as it runs", now, None),
        change=audited.answer("with few changes", best, now) if best is not now else None,
        free=tuple(answer for answer in free if answer is not None),
        apart=tuple(_apart(case)),
        targets=audited.targets(best) if best is not now else None,
        case=case,
        instances=best.instances,
        rates_per_s=tuple(dict.fromkeys(each.scale * rate_per_s for each in (now, best) if each.scale > 0.0)),
    )


NOMINAL = {"input_tokens": 64, "output_tokens": 16, "load": {"rate_per_s": 1e-3}}  # next to no load


def fit_of_serving(reading: Reading, question: Question) -> tuple[list[str], list[str]]:
    """What keeps the engines from starting, and what is said of their memory, whatever load they have.

    Nothing is said where model or machines are not known. Longest sequences are held against the room for caches.
    """
    asked = replace(question, workload=NOMINAL, slo={})
    try:
        case = serving_case(reading, asked)
    except PlannerError as error:
        return [], [f"memory is not judged: {error.what}"]
    setting = setting_around(case.resolved, case.instances)
    known, findings, notes = types_at_hand(setting), list[str](), list[str]()
    for part in case.instances:
        try:
            candidate = type_of(setting, known, part)
        except PlannerError as error:
            findings.append(f"{CANNOT}{error.what}")
            continue
        weights, room = memory_of(setting, part)
        cache = room - weights - candidate.activations_bytes
        notes.append(f"{part.function}: {weights / 1e9:.1f} GB of weights a GPU, {cache / 1e9:.1f} GB left for caches")
    return findings, notes


def _refused(case: ServingCase, changes: Changes, limits: Limits, what: str) -> ServingAnswers:
    """The answers where what is written cannot run: the fewest GPUs that would do."""
    audited = _Audited(case, changes, None)
    fewest = fewest_gpus(changes, limits, [])
    answer = audited.fewest(fewest, devices(case.instances))
    return ServingAnswers(findings=(CANNOT + what,), notes=case.notes, free=(answer,) if answer else (), case=case)


@dataclass(frozen=True, slots=True)
class _Audited:
    case: ServingCase
    changes: Changes
    factors: Factors | None

    def answer(self, title: str, tried: Tried, now: Tried | None) -> Answer:
        """A deployment with its rate within limits and its times at the stated load."""
        rate = tried.scale * self.changes.rate_per_s
        figures: dict[str, Any] = {"gpus": devices(tried.instances), "requests_per_s_within_limits": rate}
        if self.factors is not None and tried.scale > 0.0:
            figures["requests_per_s_interval"] = list(self._rates(tried))
        figures |= self._times(tried) | {"keeps_the_load": tried.scale >= 1.0, "limited_by": sorted(tried.binding)}
        figures["memory"] = [self._memory(tried, index) for index in range(len(tried.instances))]
        settings: tuple[Setting, ...] = ()
        if now is not None:
            settings = tuple(self._settings(now, tried))
            figures |= self._gain(now, tried)
        return Answer(title, self._shown(tried), figures, settings)

    def _gain(self, now: Tried, tried: Tried) -> dict[str, Any]:
        if now.scale <= 0.0:
            return {}
        rate = self.changes.rate_per_s
        gains = [tried.scale / now.scale]
        if self.factors is not None:
            ends = [self._rates(each) for each in (now, tried)]
            gains += [after / before for before, after in zip(*ends, strict=True) if before > 0.0]
        low, high = gain_interval(gains, *(case_of(self.case.resolved, each.instances, rate) for each in (now, tried)))
        return {"gain": gains[0] - 1.0, "gain_interval": [low - 1.0, high - 1.0]}

    def _rates(self, tried: Tried) -> tuple[float, float]:
        """Both ends of the rate within limits."""
        assert self.factors is not None
        curve = self.changes.bench.curve(tried.variants)
        return rate_interval(self.changes.rate_per_s, tried.scale, curve, self.factors)

    def _times(self, tried: Tried) -> dict[str, Any]:
        """Times at the stated load, each with its 80 % interval."""
        judgement = self.changes.bench.judged(tried.variants)
        if judgement.saturated:
            return {"saturated": True}
        times: dict[str, Any] = {}
        limited = [(limit.time, limit.statistic) for limit in judgement.limits if limit.time != "attainment"]
        for time, statistic in dict.fromkeys([("ttft", "mean"), ("tpot", "mean"), *limited]):
            value = judgement.estimate(0, time, statistic).value
            row: dict[str, Any] = {"value": value}
            if self.factors is not None:
                low, high = self.factors.ttft if time == "ttft" else self.factors.tpot
                row["interval"] = [value * low, value * high]
            times[f"{time}_s.{statistic}"] = row
        return {"times": times}

    def _memory(self, tried: Tried, index: int) -> dict[str, Any]:
        """Bytes on the fullest GPU of a role, and what is left of it."""
        candidate = tried.outcome.formulated.candidates[index]
        costs = self.changes.bench.setting.costs_of_pool[candidate.model, candidate.pool]
        capacity = next(each for each in candidate.capacities if each is not None)
        used = candidate.weights_bytes + candidate.activations_bytes + candidate.workspace_bytes + capacity.kv_bytes
        return {
            "role": candidate.function,
            "weights_bytes": candidate.weights_bytes,
            "kv_cache_bytes": capacity.kv_bytes,
            "used_bytes": used,
            "usable_bytes": costs.memory_bytes,
            "margin_bytes": costs.memory_bytes - used,
        }

    def room(self, now: Tried) -> list[str]:
        """Roles whose caches hold fewer sequences than their limits allow."""
        return [
            f"{part.function}: caches have room for {candidate.max_batch} of {part.max_batch} sequences of this length"
            for part, candidate in zip(self.case.instances, now.outcome.formulated.candidates, strict=True)
            if part.max_batch > candidate.max_batch > 0 and part.function != "prefill"
        ]

    def _settings(self, now: Tried, tried: Tried) -> list[Setting]:
        """The fields in which two deployments of the same roles differ; none where roles differ."""
        if [part.function for part in now.instances] != [part.function for part in tried.instances]:
            return []
        rows = []
        for role, before, after in zip(self.case.roles, now.instances, tried.instances, strict=True):
            changed = role.role_of(before, after)
            rows += [Setting(role.role["role"], name, role.role[name], value) for name, value in changed.items()]
        return rows

    def targets(self, tried: Tried) -> dict[str, dict[str, Any]]:
        """The fields by role that the change asks for."""
        rows = zip(self.case.roles, self.case.instances, tried.instances, strict=True)
        return {role.role["role"]: role.role_of(before, after) for role, before, after in rows}

    def fewest(self, tried: Tried | None, given: int) -> Answer | None:
        """How many of the GPUs the stated load needs."""
        if tried is None:
            return None
        need, rate = devices(tried.instances), self.changes.rate_per_s
        figures = {"gpus": need, "of_gpus": given, "requests_per_s": rate, "confirmed_on_fresh_streams": True}
        return Answer(f"{rate:g} requests/s needs {need} of your {given} GPUs", self._shown(tried), figures)

    def _shown(self, tried: Tried) -> tuple[str, ...]:
        return tuple(shown(part, self.case.reading.fields["engine"]) for part in tried.instances)


def shown(part: Instances, engine: str) -> str:
    """Instances in one line, with the limits that their engine is given."""
    sequences, tokens = limits_of(engine, part)
    limits = [f"{sequences} sequences"] if part.max_batch and part.function != "prefill" else []
    limits += [f"{tokens} tokens a step"] if part.chunk_tokens else []
    return f"{part.replicas} x {part.function} {part.shape.label}, {', '.join(limits)}"


def _apart(case: ServingCase) -> Sequence[str]:
    """Formats that would change answers, not only times."""
    (arch,), gpu = case.resolved.models.values(), case.resolved.pools[0].node.accelerator
    if arch.precisions.ffn in ("bf16", "fp16") and gpu.supports("fp8"):
        return (
            "weights in fp8 would halve them; that changes answers and is a decision about accuracy, so that it is not "
            "among the changes: `planner audit` a checkpoint in fp8 to see what it is worth",
        )
    return ()
