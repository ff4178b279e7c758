"""The registry of plan kinds (serve, train, rl, place, workflow and others): packages here with a `KIND`.

Adding a kind adds a package and edits nothing here or in another kind.
"""

import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from planner.errors import PlannerError, unknown_name
from planner.plan.considered import Considered
from planner.plan.findings import Finding
from planner.plan.restated import Restated
from planner.plan.schema import Decision, Envelope, Proven
from planner.problem.reads import Reads
from planner.schema.base import Spec
from planner.verify import checksum

if TYPE_CHECKING:
    from planner.problem.recorded import AtHand
    from planner.problem.resolve import Resolved
    from planner.progress import Limits
    from planner.solvers.placement.regroup import Copy

P = TypeVar("P", bound=Proven)
Topic = Literal["meaning", "binding", "worth", "alternative", "change", "time", "memory", "limit", "evidence", "note"]
Told = tuple[Topic, str, tuple[str, ...], Mapping[str, float]]
"""The topic of a fact, its sentence, what it is about, and its figures."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What the rest of the program knows of a kind; its modules `check` and `solve` are imported when called."""

    name: str
    purpose: str  # one line
    options: type[Spec]  # schema of the problem's `options`
    decision: type[Decision]  # schema of the plan's `decision`
    reads: Reads  # of the problem and of the limits of a solve; the rest is refused
    proofs: tuple[str, ...] = ()  # methods of proof that the kind, or a search made again, judges
    searched: tuple[str, ...] = ()  # those of methods whose search the level `proof` makes again
    solvable: bool = True  # plans of other kinds are read, not yet made
    levels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # of a solve, with the options of each
    moved: bool = False  # whether its plans stand on copies of models, which can move: functions of the module `keep`
    stated: bool = False  # whether problems may name neither model nor GPU, where options state all figures needed
    tables_unasked: bool = False  # whether kernel tables of the machine price it where none are named

    def check(self, envelope: Envelope, decision: Decision) -> list[Finding]:
        """Findings of `check` in the kind's package: rules beyond those common to all kinds."""
        assert isinstance(decision, self.decision)
        findings: list[Finding] = _module(f"{self.name}.check").check(envelope, decision)
        return findings

    def prove(self, envelope: Envelope, decision: Decision, hand: "AtHand") -> list[Finding]:
        """Findings about the bound beside those of a search made again, by `prove` of the module `restate`, if any."""
        assert isinstance(decision, self.decision)
        judged = getattr(_module(f"{self.name}.restate"), "prove", None)
        findings: list[Finding] = [] if judged is None else list(judged(envelope, decision, hand))
        return findings

    def restate(self, envelope: Envelope, decision: Decision, hand: "AtHand") -> Restated:
        """The plan that its problem and its own choices give, by the module `restate`; only of a solvable kind.

        Raises NotAtHand where an input is missing, PlannerError for a decision that the problem cannot have.
        """
        assert isinstance(decision, self.decision)
        from planner.reliability.left_out import with_left_out
        from planner.reliability.lost_nodes import pools_of

        restated: Restated = _module(f"{self.name}.restate").restate(envelope, decision, hand)
        return replace(restated, envelope=with_left_out(restated.envelope, decision, pools_of(envelope).values()))

    def rules_against(self, resolved: "Resolved") -> tuple[str, ...]:
        """The rules that leave a problem without any candidate, by the module `forbidden`, if any."""
        if importlib.util.find_spec(f"planner.kinds.{self.name}.forbidden") is None:
            return ()
        rules: tuple[str, ...] = tuple(_module(f"{self.name}.forbidden").rules_against(resolved))
        return rules

    def facts(self, envelope: Envelope, decision: Decision) -> "list[Told]":
        """What there is to explain of a plan beyond what is common to all kinds, by the module `facts`, if any."""
        if importlib.util.find_spec(f"planner.kinds.{self.name}.facts") is None:
            return []
        return list(_module(f"{self.name}.facts").facts(envelope, decision))

    def copies(self, decision: Decision) -> "list[Copy]":
        """Copies of models that a plan stands on; raises PlannerError where it states none."""
        if not self.moved:
            known = ", ".join(f"`{name}`" for name in kind_names() if find_kind(name).moved)
            hint = "expert layouts take `options.resident`, training takes `planner faults`"
            raise PlannerError(f"plans of kind {known} can move, not of kind `{self.name}`", where="--from", hint=hint)
        return list(_module(f"{self.name}.keep").copies(decision))

    def near(self, resolved: "Resolved", plan: Envelope, running: Decision, loss: float) -> Envelope:
        """The plan laid where less has to move from what runs, within a loss of its objective."""
        envelope: Envelope = _module(f"{self.name}.keep").near(resolved, plan, running, loss)
        return envelope

    def along(self, resolved: "Resolved", axis: str, limits: "Limits") -> Any:  # noqa: ANN401 - a line of the kind
        """What is best along a line, by `along` of the module `parametric`; raises PlannerError for a kind without."""
        if importlib.util.find_spec(f"planner.kinds.{self.name}.parametric") is None:
            raise PlannerError(
                f"plans of kind `{self.name}` are not solved along a line", where="--parametric", hint="sweep a grid"
            )
        return _module(f"{self.name}.parametric").along(resolved, axis, limits)

    def considered(self, resolved: "Resolved") -> list[Considered]:
        """Every instance type that its answer was chosen from, by the module `considered`; none of a kind without."""
        if importlib.util.find_spec(f"planner.kinds.{self.name}.considered") is None:
            return []
        return list(_module(f"{self.name}.considered").considered(resolved))

    def simulated(self, envelope: Envelope, decision: Decision, hand: "AtHand") -> "tuple[list[Finding], Any] | None":
        """Findings of a plan on streams of its own, by the module `fresh_streams`; None for a kind without."""
        if not self.simulates:
            return None
        assert isinstance(decision, self.decision)
        judged: tuple[list[Finding], Any] = _module(f"{self.name}.fresh_streams").judged(envelope, decision, hand)
        return judged

    @property
    def simulates(self) -> bool:
        """Whether its plans are simulated on streams of their own."""
        return importlib.util.find_spec(f"planner.kinds.{self.name}.fresh_streams") is not None

    def lost(self) -> Any:  # noqa: ANN401 - a module of the kind
        """The module `lost`, which simulates plans without what lost nodes hit; None for a kind without."""
        name = f"{self.name}.lost"
        return None if importlib.util.find_spec(f"planner.kinds.{name}") is None else _module(name)

    def timeline(self) -> Any:  # noqa: ANN401 - a module of the kind
        """The module `timeline`, which draws plans out in time; None for a kind without."""
        name = f"{self.name}.timeline"
        return None if importlib.util.find_spec(f"planner.kinds.{name}") is None else _module(name)

    def solve(self, resolved: "Resolved", limits: "Limits") -> Envelope:
        """The plan of `solve` in the kind's package; only of a solvable kind."""
        envelope: Envelope = _module(f"{self.name}.solve").solve(resolved, limits)
        from planner.reliability.left_out import with_left_out

        decision = self.decision.model_validate(envelope.decision)
        return checksummed(with_left_out(envelope, decision, resolved.pools))


def checksummed(envelope: Envelope) -> Envelope:
    """The plan with the checksum of its certificate, where that has a proof."""
    certificate = envelope.certificate
    if not certificate.proof:
        return envelope
    within = None if certificate.within is None else _with_checksum(certificate.within)
    certificate = _with_checksum(certificate.model_copy(update={"within": within}))
    return envelope.model_copy(update={"certificate": certificate})


def _with_checksum(proven: P) -> P:
    proof = {**proven.proof, "checksum": checksum(proven.model_dump(mode="json"))}
    return proven.model_copy(update={"proof": proof})


def _module(name: str) -> Any:  # noqa: ANN401 - a module of a kind, known by name alone
    return importlib.import_module(f"planner.kinds.{name}")


@cache
def kind_names() -> tuple[str, ...]:
    """Names of all kinds, sorted."""
    import planner.kinds

    return tuple(sorted(module.name for module in pkgutil.iter_modules(planner.kinds.__path__) if module.ispkg))


def find_kind(name: str, *, where: str = "kind") -> Kind:
    """The kind called `name`; unknown names are refused with the nearest ones."""
    if name not in kind_names():
        known = list(kind_names())
        raise unknown_name(
            "kind", name, known, otherwise=f"the kinds are {', '.join(f'`{kind}`' for kind in known)}", where=where
        )
    kind = _module(name).KIND
    assert isinstance(kind, Kind)
    return kind
