"""A plan as an object: what is decided, predicted and proven, and what can be done with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.library.predictions import Predictions, html_table

if TYPE_CHECKING:
    from planner.diff.plans import PlanDiff
    from planner.emit.options import ClusterOptions
    from planner.explain import Explanation
    from planner.plan.findings import Finding
    from planner.plan.schema import Block, Certificate, Decision, Envelope, Role, Route
    from planner.problem.recorded import AtHand
    from planner.simulate.plans.simulation import PlanSimulation


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A plan of any kind: its envelope, its decision by the schema of its kind, and where its inputs are looked for."""

    envelope: "Envelope"  # everything that the file holds
    decision: "Decision"  # with the fields of its kind alone
    folder: Path = Path()  # that paths in the problem are relative to
    profiles: tuple[str, ...] = ()  # kernel tables that it was costed with

    @property
    def kind(self) -> str:
        """serve, train, rl, experts, place, fleet or workflow."""
        return self.envelope.kind

    @property
    def name(self) -> str:
        """That of the problem."""
        return self.envelope.name

    @property
    def problem(self) -> Mapping[str, Any]:
        """The problem that it answers, as its user wrote it, defaults filled in."""
        return self.envelope.inputs

    @property
    def roles(self) -> "tuple[Role, ...]":
        """Groups of equal replicas, with function, parallelism and settings of the engine."""
        return self.decision.roles

    @property
    def placement(self) -> "tuple[Block, ...]":
        """Which devices of which nodes each replica has."""
        return self.decision.placement

    @property
    def routing(self) -> "tuple[Route, ...]":
        """Which share of each workload goes to which roles."""
        return self.decision.routing

    @property
    def predictions(self) -> Predictions:
        """What it will do, by metric."""
        return Predictions(self.envelope.predictions)

    @property
    def certificate(self) -> "Certificate":
        """What was proven over which space, and what the figures rest on."""
        return self.envelope.certificate

    @property
    def status(self) -> str:
        """What was proven: optimal, feasible, or stated where the plan was given and not searched.

        `certificate.within` has what was proven of the part of the space that the plan was preferred in.
        """
        return self.certificate.status

    @property
    def objective(self) -> float | None:
        """The value of what is minimised or maximised; None where the plan has none."""
        return self.certificate.objective.value

    @property
    def bound(self) -> float | None:
        """No plan of the space is better than this; None where nothing was proven."""
        return self.certificate.bound

    @property
    def gap(self) -> float | None:
        """Between objective and bound, as a share; None without a bound."""
        return self.certificate.gap

    def check(self, *, proof: bool = False) -> "list[Finding]":
        """One finding a rule and part, each with its verdict; with `proof`, the search is made again too."""
        from planner.check import check_plan

        return check_plan(self.envelope, self.decision, base=self.folder, hand=self._at_hand(), proof=proof)

    def explain(self, field: str | None = None, *, deep: bool = False) -> "Explanation":
        """What binds the plan, what more is worth, what would change it; of one field where one is named."""
        from planner.explain import explain_plan

        return explain_plan(self.envelope, self.decision, field, deep=deep, profiles=self.profiles, base=self.folder)

    def diff(self, after: "Plan") -> "PlanDiff":
        """What changes from this plan to another."""
        from planner.diff import diff_plans

        return diff_plans((self.envelope, self.decision), (after.envelope, after.decision))

    def emit(
        self,
        target: str,
        directory: str | Path | None = None,
        options: "ClusterOptions | None" = None,
        model_paths: Sequence[str] = (),
    ) -> dict[str, str]:
        """Files of a launch target by name, written into `directory` where one is given.

        `model_paths` say where models of a config.json lie, each `MODEL=PATH`, or PATH of the only one. Raises
        PlannerError for what the target cannot express, and for a plan that fails its check.
        """
        from planner.check.sound import require_sound
        from planner.documents.folders import write_folder
        from planner.emit.registry import emit

        files = emit(self.envelope, self.decision, target, options=options, model_paths=model_paths)
        require_sound(self.envelope, self.decision, self.folder, self._at_hand())
        if directory is not None:
            write_folder(files, directory)
        return files

    def simulate(
        self,
        trace: str | Path | None = None,
        *,
        rate_per_s: float | None = None,
        first: int | None = None,
        warm_up: int = 0,
        seed: int = 0,
    ) -> "PlanSimulation":
        """A serving plan on the requests of a trace, or of its own workloads; every step of every engine."""
        from planner.simulate.plans.setting import Policies
        from planner.simulate.plans.simulation import Traffic, simulate_plan

        load = Traffic(None if trace is None else str(trace), first, rate_per_s, warm_up=warm_up)
        return simulate_plan(self.envelope, self.decision, load, Policies(), seed=seed, profiles=self.profiles)

    def report(self, path: str | Path | None = None) -> str:
        """One self-contained page of HTML: decision, limits, map, time and proof; written where a path is given."""
        from planner.documents.files import write_text_atomic
        from planner.report.page import html
        from planner.report.plans import plan_page

        page = html(plan_page(self.envelope, self.decision, Path(f"{self.name}.json")))
        if path is not None:
            write_text_atomic(path, page)
        return page

    def to_json(self) -> str:
        """The text of the plan, as the command writes it."""
        from planner.plan.store import plan_json

        return plan_json(self.envelope)

    def save(self, path: str | Path) -> None:
        """Writes the plan, whole or not at all."""
        from planner.documents.files import write_text_atomic

        write_text_atomic(path, self.to_json())

    def to_frame(self) -> Any:  # noqa: ANN401 - a pandas.DataFrame, where pandas is installed
        """The predictions as a pandas DataFrame; raises ModuleNotFoundError without pandas."""
        import pandas

        columns = ("metric", "of", "statistic", "value", "low", "high", "approximate")
        return pandas.DataFrame([_row(row) for row in self.envelope.predictions], columns=list(columns))

    def _at_hand(self) -> "AtHand":
        from planner.problem.recorded import AtHand

        return AtHand(tuple(dict.fromkeys([self.folder, Path()])), self.profiles)

    def __repr__(self) -> str:
        gap = "" if self.gap is None else f", gap {self.gap:.2%}"
        within = "" if self.certificate.within is None else f", {self.certificate.within_text}"
        return f"<Plan {self.name}: {self.kind}, {self.status}{gap}{within}, {len(self.roles)} roles>"

    def _repr_html_(self) -> str:
        roles = [
            (role.name, role.function, role.replicas, role.parallelism.devices * role.replicas) for role in self.roles
        ]
        parts = [
            f"<p><b>{escape(self.name)}</b>: {escape(repr(self)[1:-1])}</p>",
            html_table(("role", "function", "replicas", "devices"), roles),
            self.predictions._repr_html_(),
        ]
        return "".join(parts)


def _row(row: Any) -> tuple[object, ...]:  # noqa: ANN401 - a Prediction
    low, high = row.interval or (None, None)
    return (row.metric, row.of, row.statistic, row.value, low, high, row.approximate)
