"""Instance types that a plan states, in the terms of the search: shapes and names of roles, types of a proof.

A check that prices roles again starts here: `setting_of_plan` solves nothing, it only prices the recorded problem.
"""

from dataclasses import replace

from planner.errors import PlannerError
from planner.kinds.serve.steady.search import ServeSetting, prepare
from planner.kinds.serve.steady.shapes import InstanceShape
from planner.plan.findings import Finding
from planner.plan.instance_types import all_degrees
from planner.plan.schema import Envelope, Role
from planner.problem.recorded import INPUTS, tables_at_hand
from planner.problem.resolve import resolve
from planner.problem.schema import Problem
from planner.solvers.mix import MixShape as MixShape
from planner.solvers.mix_data import problem_from_dict


def shape_of(role: Role) -> InstanceShape:
    """The degrees of a role."""
    return InstanceShape(*all_degrees(role))


def stated_types(envelope: Envelope, name: str) -> list[MixShape]:
    """The instance types of that name in the proof, one a channel; none where the proof has no mix."""
    data = envelope.certificate.proof.get("mix")
    if not isinstance(data, dict):
        return []
    try:
        shapes = problem_from_dict(data).shapes
    except (PlannerError, TypeError, ValueError):
        return []
    return [shape for shape in shapes if shape.name.partition("#")[0] == name]


def not_judged(rule: str, why: str, where: str) -> Finding:
    """The finding of a rule that cannot be judged here."""
    return Finding(rule, True, f"not judged: {why}", where, skipped=True)


def setting_of_plan(envelope: Envelope, problem: Problem, rule: str) -> ServeSetting | Finding:
    """The plan's problem priced again; a finding of `rule` where it cannot be, or where costs have changed."""
    try:
        tables = tables_at_hand(envelope.digests.profiles)
        costs = problem.costs.model_copy(update={"profiles": tables})
        resolved = resolve(problem.model_copy(update={"costs": costs}), INPUTS)
        setting = prepare(replace(resolved, confidence=envelope.certificate.confidence), reserving=False)
    except PlannerError as error:
        return not_judged(rule, error.what, "roles")
    if setting.calibration.digest != envelope.digests.calibration:
        return not_judged(rule, "the calibration has changed", "roles")
    return setting
