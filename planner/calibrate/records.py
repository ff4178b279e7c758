"""Reads executed steps for a fit: operators and times that `planner check --level execute` wrote, and their plan."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from planner.costs.operators.kernels import Operator
from planner.costs.operators.working_format import BF16
from planner.costs.rates.calibration import Calibration, Efficiencies
from planner.costs.rates.pricer import Pricer, make_pricer, open_store, profile_paths
from planner.documents.read import load_document
from planner.errors import PlannerError
from planner.hardware.accelerator import Accelerator
from planner.hardware.cluster import Pool
from planner.hardware.profiles.store import ProfileStore
from planner.models.architecture import Architecture
from planner.plan.records import PlanDocument
from planner.plan.store import plan_digest

EXECUTION, CHECKS = "planner.execution/1", "planner.checks/1"
_GPU_VENDORS = ("nvidia", "amd")
_FITTED = ("prefill", "decode", "mixed", "expert_layer")  # steps of ranks on their own
_PIPELINE = "pipeline"  # the row of a step that waited for other ranks


@dataclass(frozen=True, slots=True)
class RolePricing:
    """What prices a role: hardware, model, engine and tables; the efficiencies are left open."""

    pool: Pool
    arch: Architecture
    engine: str
    version: str | None
    store: ProfileStore | None
    calibration: Calibration

    def pricer(self, efficiencies: Efficiencies) -> Pricer:
        """Kernel tables where there are any, else the roofline with these efficiencies."""
        return make_pricer(
            self.pool,
            self.arch,
            engine=self.engine,
            version=self.version,
            calibration=replace(self.calibration, efficiencies=efficiencies),
            store=self.store,
            bare=True,
        )


@dataclass(frozen=True, slots=True)
class ExecutedStep:
    """One step that was run: its operators, those alone that were executed, and what was measured of it."""

    group: str  # model, device and kind of step: what is left out together
    pricing: RolePricing
    operators: tuple[Operator, ...]
    measured_s: float
    operators_s: Mapping[str, float]  # seconds of all runs of an operator, where it was timed on its own


@dataclass(frozen=True, slots=True)
class Records:
    """All executed steps of some files, the day of the newest, and why others were left out."""

    steps: tuple[ExecutedStep, ...]
    date: str
    left_out: tuple[str, ...]


def read_records(paths: Sequence[str], base: Calibration, *, profiles: Sequence[str] = ()) -> Records:
    """The executed steps of checks files (or bare `planner.execution/1` documents); their plans lie beside them.

    Raises PlannerError for files that hold no execution, whose plan is not there, or that were run on another kind of
    device than their plan is for.
    """
    store = open_store(profile_paths(profiles))
    steps: list[ExecutedStep] = []
    left_out: list[str] = []
    dates: list[str] = []
    for path in paths:
        execution = _execution(path)
        reader = _Reader(path, _plan_beside(Path(path), str(execution.get("plan"))), execution, base, store)
        results = [reader.step(data) for data in execution.get("steps", ())]
        steps += [result for result in results if isinstance(result, ExecutedStep)]
        left_out += [f"{path}: {result}" for result in results if isinstance(result, str)]
        dates.append(str(execution.get("date") or _day(path)))
    return Records(tuple(steps), max(dates, default=""), tuple(left_out))


def _execution(path: str) -> Mapping[str, Any]:
    document = load_document(path)
    data = document.data if isinstance(document.data, dict) else {}
    if data.get("schema") == CHECKS:
        level = (data.get("levels") or {}).get("execute") or {}
        data = level.get("result") or {}
    if data.get("schema") != EXECUTION:
        raise PlannerError(
            "holds no executed steps", where=document.source, hint="run `planner check PLAN --level execute` first"
        )
    return data


def _plan_beside(path: Path, digest: str) -> PlanDocument:
    """The plan with that digest in the folder of the checks file; the one of its name is looked at first."""
    from planner.plan.reader import read_plan

    stem = path.name.removesuffix(".checks.json")
    named = [path.with_name(f"{stem}.json"), path.with_name(stem)]
    for candidate in [*named, *sorted(path.parent.glob("*.json"))]:
        if candidate != path and candidate.is_file() and _digest(candidate) == digest:
            return read_plan(candidate)
    raise PlannerError(
        f"the plan with the digest {digest[:15]}... is not beside it",
        where=str(path),
        hint="keep the plan beside its checks, or check it again if it was changed",
    )


def _digest(path: Path) -> str:
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return plan_digest(file.read())
    except (OSError, UnicodeDecodeError):
        return ""


def _day(path: str) -> str:
    return datetime.fromtimestamp(Path(path).stat().st_mtime, UTC).strftime("%Y-%m-%d")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Builds the steps of one execution again; the roles of a plan share what prices them."""

    path: str
    plan: PlanDocument
    execution: Mapping[str, Any]
    base: Calibration
    store: ProfileStore | None
    pricings: dict[str, RolePricing] = field(default_factory=dict)

    def step(self, data: Mapping[str, Any]) -> ExecutedStep | str:
        """The step, or why it says nothing."""
        name = f"{data.get('role')} {data.get('step')}"
        try:
            if not data["claimed"]:
                return f"{name}: too little of it was executed"
            if data["step"] not in _FITTED or _PIPELINE in data["operators"] or data["measured_s"] <= 0:
                return f"{name}: steps of this kind are not fitted"
            return self._rebuilt(data)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise PlannerError(
                f"the step `{name}` is not whole: {type(error).__name__} at {error}",
                where=self.path,
                hint="run `planner check PLAN --level execute` again",
            ) from None

    def _rebuilt(self, data: Mapping[str, Any]) -> ExecutedStep:
        from planner.execute.judge.predict import executed_operators
        from planner.execute.shards.cases import Cut, StepCase
        from planner.execute.shards.spec import role_spec

        spec = role_spec(self.plan, str(data["role"]))
        rank = Cut(**self.execution.get("cut", {})).of_rank(spec.rank(int(data["rank"])))
        timed = {name: row["measured_s"] for name, row in data["operators"].items()}
        formats = tuple(data.get("plain", ())), str(data.get("working", BF16))
        whole = executed_operators(spec, rank, StepCase(**data["work"]), *formats)
        operators = [op for op in whole if op.name in timed]
        pricing = self._pricing(spec.name, spec.arch)
        return ExecutedStep(
            group=f"{spec.arch.name} on {pricing.pool.node.accelerator.name}, {data['step']}",
            pricing=pricing,
            operators=tuple(operators),
            measured_s=float(data["measured_s"]),
            operators_s={name: float(value) for name, value in timed.items() if value is not None and value > 0},
        )

    def _pricing(self, role_name: str, arch: Architecture) -> RolePricing:
        from planner.execute.judge.pricing import plan_pool

        if role_name not in self.pricings:
            role = self.plan.role(role_name)
            pool = plan_pool(self.plan, role.pool)
            _refuse_other_device(pool.node.accelerator, self.execution.get("device") or {}, self.plan.source)
            self.pricings[role_name] = RolePricing(
                pool=pool,
                arch=arch,
                engine=role.engine.name if role.engine is not None else "default",
                version=role.engine.version if role.engine is not None else None,
                store=self.store,
                calibration=self.base,
            )
        return self.pricings[role_name]


def _refuse_other_device(accelerator: Accelerator, device: Mapping[str, Any], source: str) -> None:
    """Times of a CPU say nothing of the GPU that a plan is for."""
    if device.get("kind") == "cpu" and accelerator.vendor.lower() in _GPU_VENDORS:
        raise PlannerError(
            f"was executed on a CPU, and is a plan for {accelerator.name}",
            where=source,
            hint="execute it on the device that it is for",
        )


def operators_of(steps: Sequence[ExecutedStep]) -> Iterator[tuple[int, Operator]]:
    """Every operator with the index of its step."""
    for index, step in enumerate(steps):
        for operator in step.operators:
            yield index, operator
