"""Verdict on an execution: errors of predicted against measured by operator, step and role, within tolerance or not.

Operators that were not executed, such as collectives with ranks that are absent, are left out of both sides of every
error. A step of which less than `LEAST_SHARE` of the predicted time was executed makes no claim.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from planner.costs.operators.recompute import SUFFIX
from planner.execute.judge.predict import BACKWARD, OperatorTime
from planner.execute.shards.faults import RankFault
from planner.plan.findings import Finding

SCHEMA = "planner.execution/1"
LEAST_SHARE = 0.6
PIPELINE = "pipeline"  # hand-overs between stages, and waiting for other ranks
_STEP, _FAULT = "execute.step", "execute.fault"


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """Seconds of all runs of an operator in a step; `measured_s` is None where it did not run on its own."""

    predicted_s: float
    measured_s: float | None
    count: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What a rank measured of one step, as it writes it down."""

    role: str
    rank: int  # within its replica
    step: str
    median_s: float
    p10_s: float
    p90_s: float
    operators_s: Mapping[str, tuple[float, int]]  # seconds of all runs, and how many
    executed: tuple[str, ...]  # operators that are part of what was timed
    memory_bytes: float | None = None  # peak; None where the device does not say
    graph: bool = False
    note: str = ""
    plain: tuple[str, ...] = ()  # formats of matrices that the device, or this program, ran in the working one
    working: str = "bf16"  # the format of activations, and of weights and KV cache where the plan asks for no other
    micro_batches: int = 0  # that went through the whole pipeline; 0 where the rank ran its own stages alone

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Measured":
        operators = {name: (float(seconds), int(count)) for name, (seconds, count) in data["operators_s"].items()}
        lists = {"executed": tuple(data["executed"]), "plain": tuple(data["plain"])}
        return cls(**{**data, "operators_s": operators, **lists})


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """One step of one rank: what was predicted of what was executed, what was measured, and what that is worth."""

    role: str
    function: str
    rank: int
    step: str
    batch: int
    tokens: int
    context: int
    predicted_s: float  # of the executed operators
    predicted_step_s: float  # of all operators of the step on this rank
    measured_s: float
    p10_s: float
    p90_s: float
    operators: dict[str, OperatorRow]
    absent: tuple[str, ...]  # predicted operators that were not executed
    work: dict[str, Any]
    shape: dict[str, int]  # degrees of parallelism
    layers: tuple[int, ...]  # of the model, that the rank ran
    memory_bytes: float | None = None
    predicted_memory_bytes: float | None = None
    graph: bool = False
    note: str = ""
    plain: tuple[str, ...] = ()  # formats of matrices that ran in the working one
    working: str = "bf16"
    stage_of_plan_s: float | None = None  # that the plan takes for each pipeline stage of a micro-batch
    micro_batches: int = 0  # that followed each other through all stages; 0 where the rank ran its own alone

    @property
    def executed_share(self) -> float:
        """The share of the predicted step time whose operators were executed."""
        return self.predicted_s / self.predicted_step_s if self.predicted_step_s > 0 else 0.0

    @property
    def claimed(self) -> bool:
        """Whether enough was executed to say anything."""
        return self.predicted_s > 0 and self.executed_share >= LEAST_SHARE

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one; None without a claim."""
        return self.predicted_s / self.measured_s - 1.0 if self.claimed and self.measured_s > 0 else None

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured peak memory, less one."""
        if not self.memory_bytes or not self.predicted_memory_bytes:
            return None
        return self.predicted_memory_bytes / self.memory_bytes - 1.0

    def as_json(self) -> dict[str, Any]:
        more = {"executed_share": self.executed_share, "claimed": self.claimed, "error": self.error}
        return {**asdict(self), **more, "memory_error": self.memory_error}


@dataclass(frozen=True, slots=True)
class Execution:
    """Everything that a run of a plan's shards measured, and what went wrong."""

    plan: str  # its digest
    pricer: str
    tolerance: float
    device: Mapping[str, Any]  # name, kind, torch
    steps: tuple[StepVerdict, ...]
    faults: tuple[RankFault, ...] = ()
    unexecuted: Mapping[str, str] = field(default_factory=dict)  # roles that were not run, and why
    cut: Mapping[str, int] = field(default_factory=dict)
    date: str = ""  # of the day on which it ran

    def findings(self) -> list[Finding]:
        """One for each step and fault; steps without a claim, and roles that were not run, are skipped."""
        skipped = [
            Finding(_STEP, True, f"not executed: {why}", f"roles.{role}", skipped=True)
            for role, why in self.unexecuted.items()
        ]
        faults = [
            Finding(_FAULT, False, f"{fault.place}: {fault.what}", f"roles.{fault.role}.{fault.step}", fault.hint)
            for fault in self.faults
        ]
        return [*self._steps(), *faults, *skipped]

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings())

    def _steps(self) -> Iterator[Finding]:
        for step in self.steps:
            where = f"roles.{step.role}.{step.step}"
            if step.error is None:
                what = f"rank {step.rank}: {step.executed_share:.0%} of the predicted time was executed: no claim"
                yield Finding(_STEP, True, step.note or what, where, skipped=True)
                continue
            what = f"rank {step.rank}: predicted {step.predicted_s:.4g} s, measured {step.measured_s:.4g} s"
            what += f" ({step.error:+.1%}, {step.executed_share:.0%} executed)"
            if step.stage_of_plan_s is not None:
                what += f"; the plan takes {step.stage_of_plan_s:.4g} s for each stage of a micro-batch"
            hint = "profile this device and solve again with `--profiles`, or run `planner calibrate`"
            yield Finding(_STEP, abs(step.error) <= self.tolerance, what, where, hint)

    def as_json(self) -> dict[str, Any]:
        """The document of docs/executor.md, section Results."""
        return {
            "schema": SCHEMA,
            "plan": self.plan,
            "ok": self.ok,
            "pricer": self.pricer,
            "tolerance": self.tolerance,
            "date": self.date,
            "device": dict(self.device),
            "cut": dict(self.cut),
            "median_error": self.median_error,
            "steps": [step.as_json() for step in self.steps],
            "faults": [{**fault.as_json(), "hint": fault.hint} for fault in self.faults],
            "unexecuted": dict(self.unexecuted),
        }

    @property
    def median_error(self) -> float | None:
        """The median of the errors' sizes over the steps with a claim."""
        errors = [abs(step.error) for step in self.steps if step.error is not None]
        return float(median(errors)) if errors else None


def operator_rows(
    predicted: Mapping[str, OperatorTime], measured: Mapping[str, tuple[float, int]], executed: Sequence[str]
) -> tuple[dict[str, OperatorRow], tuple[str, ...]]:
    """Predicted operators that were executed, beside what was measured of them; and those that were not executed.

    Where an operator was executed in the forward pass, so were its gradients and its second run in the backward pass.
    """
    ran = {name for name in predicted if base_name(name) in executed}
    rows = {
        name: OperatorRow(time.seconds, measured[name][0] if name in measured else None, time.count)
        for name, time in predicted.items()
        if name in ran
    }
    return rows, tuple(name for name, time in predicted.items() if name not in ran and time.seconds > 0)


def base_name(name: str) -> str:
    """The operator of the forward pass that a name of the backward pass belongs to."""
    if name == "expert_activation" + SUFFIX:
        return "experts"
    return name.removesuffix(BACKWARD).removesuffix(SUFFIX)
