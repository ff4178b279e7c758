"""Rebuilds the instance-mix problem from the proof in a plan, with the plan as a solution of it."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from planner.errors import PlannerError
from planner.plan.instance_types import name_of_role, read_type, shape_text
from planner.plan.schema import Decision, Envelope, Role
from planner.plan.sides import ffn_roles
from planner.problem.recorded import INPUTS, recorded_problem
from planner.problem.resolve import resolve_pool
from planner.solvers.backends.model import LinearModel
from planner.solvers.mix import MixObjective, MixProblem, MixShape, MixSolution
from planner.solvers.mix_data import problem_from_dict
from planner.solvers.mix_model import Vars, build
from planner.solvers.mix_solve import solve_mix
from planner.solvers.result import SolveResult

TIME_LIMIT_S = 60.0  # of one solve: those of examples take 10 to 50 ms, some 20 times that on a busy machine


class NodeSizes(NamedTuple):
    """GPUs of a node, and of the scale-up domain that it is part of: one node, or several."""

    node: int
    domain: int


@dataclass(frozen=True)
class Mix:
    """The mix of a plan: its problem, its model, the plan's point, and what the objective means."""

    problem: MixProblem
    model: LinearModel
    columns: Vars
    values: tuple[float, ...]
    factor: float  # objective of the mix x factor = metric of the plan
    metric: str
    shape_of_role: Mapping[str, int]
    node_sizes: Mapping[str, NodeSizes] = field(default_factory=dict)  # by pool, as far as the catalog has its nodes

    @property
    def maximising(self) -> bool:
        return self.problem.maximising

    @cached_property
    def devices(self) -> int:
        """Devices in service, all pools together."""
        return sum(free * count for pool in self.problem.pools for free, count in pool.nodes)

    @property
    def whole(self) -> tuple[str, float]:
        """The metric of the whole plan in place of one per GPU, and what turns the latter into it."""
        words = {
            "goodput_per_gpu": "requests/s",
            "tokens_per_s_per_gpu": "tokens/s",
            "usd_per_hour": "USD/h",
            "gpus": "GPUs",
        }
        per_gpu = self.metric.endswith("_per_gpu")
        return words.get(self.metric, self.metric.replace("_", " ")), float(self.devices) if per_gpu else 1.0

    @property
    def objective(self) -> float:
        """Of the plan, in units of the mix."""
        return self.model.objective_at(self.values) * self.columns.objective_unit

    def count(self, shape: int) -> int:
        """How many of a shape the plan has."""
        return round(self.values[self.columns.n[shape].column])

    def busy(self, shape: int) -> float:
        """The share of their time that the instances of a shape work."""
        load = sum(self.values[busy.column] for (c, _), busy in self.columns.u.items() if c == shape)
        return load / max(self.count(shape), 1)

    def best(self, problem: MixProblem) -> float | None:
        """The best objective of another mix problem, in its units; None where nothing is feasible."""
        return _solve(problem).objective

    def solution(self, problem: MixProblem) -> MixSolution | None:
        """The best solution of another mix problem; None where nothing is feasible."""
        return _solve(problem).solution

    def loss(self, objective: float) -> float:
        """By what share an objective is worse than the plan's."""
        worse = self.objective - objective if self.maximising else objective - self.objective
        return worse / max(abs(self.objective), 1e-12)


def limited(problem: MixProblem, most: Mapping[int, int]) -> MixProblem:
    """The problem with at most so many instances of some shapes."""
    shapes = (replace(shape, max_instances=most.get(c, shape.max_instances)) for c, shape in enumerate(problem.shapes))
    return replace(problem, shapes=tuple(shapes))


def _solve(problem: MixProblem) -> SolveResult[MixSolution]:
    return solve_mix(problem, time_limit_s=TIME_LIMIT_S, tie_break=False, gap=1e-6)


def read_mix(envelope: Envelope, decision: Decision) -> Mix | None:
    """The mix in the proof of a plan; None for plans without one.

    Raises PlannerError for a mix that is malformed, or that is not that of the plan.
    """
    proof = envelope.certificate.proof
    data, values, unit = proof.get("mix"), proof.get("values"), proof.get("objective_unit")
    if not isinstance(data, dict) or not isinstance(values, list) or not isinstance(unit, (int, float)):
        return None
    problem = problem_from_dict(data)
    try:
        model, columns = build(problem)
        point = tuple(float(value) for value in values)  # type: ignore[arg-type]  # refused below when not numbers
    except (PlannerError, TypeError, ValueError, IndexError) as error:
        raise _foreign(f"the mix in its proof cannot be rebuilt: {error}") from None
    if len(point) != len(model.names):
        raise _foreign(f"its proof has {len(point)} values for {len(model.names)} variables")
    factor = float(unit) / columns.objective_unit
    metric = envelope.certificate.objective.metric
    if problem.objective is MixObjective.DEVICES:  # also of a rate per GPU in use, whose unit is its reciprocal
        factor, metric = 1.0, "gpus"
    mix = Mix(problem, model, columns, point, factor, metric, {}, dict(_node_sizes(envelope)))
    return replace(mix, shape_of_role=_shapes(mix, decision))


def _node_sizes(envelope: Envelope) -> Iterator[tuple[str, NodeSizes]]:
    recorded = recorded_problem(envelope.inputs)
    for index, pool in enumerate(recorded.cluster.pools if recorded is not None else ()):
        with suppress(PlannerError):  # hardware that this catalog does not have
            node = resolve_pool(pool, index, INPUTS).node
            yield pool.label, NodeSizes(node.num_gpus, max(node.num_gpus, node.scale_up_size))


def _foreign(what: str) -> PlannerError:
    return PlannerError(what, where="certificate.proof", hint="run `planner check` on the plan, or solve again")


def _shapes(mix: Mix, decision: Decision) -> dict[str, int]:
    """The shape of each role: same pool, same type, as many instances."""
    shapes: dict[str, int] = {}
    sides = ffn_roles(decision)
    for role in decision.roles:
        for c, shape in enumerate(mix.problem.shapes):
            same = mix.count(c) == role.replicas and mix.problem.pools[shape.pool].name == role.pool
            if same and c not in shapes.values() and _is_type(shape, role, sides.get(role.name)):
                shapes[role.name] = c
                break
    return shapes


def _is_type(shape: MixShape, role: Role, ffn: Role | None) -> bool:
    """Whether the name of a shape is that of the role."""
    return shape.name.partition("#")[0] == name_of_role(role, ffn)


def shown_shape(mix: Mix, c: int) -> str:
    """`prefill tp2 batch 4 on h200` from the name of a shape."""
    shape = mix.problem.shapes[c]
    where = f"on `{mix.problem.pools[shape.pool].name}`"
    type_ = read_type(shape.name)
    if type_ is None:
        return f"`{shape.name}` {where}"
    other = f" + ffn {shape_text(type_.ffn_degrees)}" if type_.ffn_degrees else ""
    drafted = f", {type_.draft_tokens} drafts" if type_.draft_tokens else ""
    return f"{type_.function} {type_.shape}{other}, batch {type_.max_batch}{drafted} {where}"


def needs_rate(problem: MixProblem) -> bool:
    """Whether the mix serves given rates at the least, in place of as much as it can."""
    return problem.objective in (MixObjective.DEVICES, MixObjective.PRICE)
