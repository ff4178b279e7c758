"""The layout in a plan of experts as the rows that launchers' files are made of."""

from dataclasses import dataclass

import numpy as np

from planner.errors import PlannerError
from planner.experts.launchers import require_launchable
from planner.experts.ranks import Ints
from planner.kinds.experts.decision import ExpertsDecision
from planner.models.architecture import MoeFfn
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import recorded_model, recorded_problem


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Experts by layer and slot, and where those layers stand in the model."""

    expert_LP: Ints
    layer_ids: tuple[int, ...]
    mtp_layer_ids: tuple[int, ...]
    num_layers: int  # of the model, dense ones too, without multi-token prediction
    num_experts: int
    ranks: int

    @property
    def num_redundant(self) -> int:
        return int(self.expert_LP.shape[1]) - self.num_experts


def read_rows(envelope: Envelope, decision: Decision) -> Rows:
    """The rows of a plan; PlannerError for layouts that no engine holds, and models that the catalog does not know."""
    assert isinstance(decision, ExpertsDecision)
    if decision.policy == "realtime":
        hint = "plan with `policy: static` or `periodic`"
        raise PlannerError("layouts made step by step are not started from a file", where="decision.policy", hint=hint)
    if not decision.layouts:
        hint = "emit a plan whose layouts are in the plan itself"
        raise PlannerError("the layout is in a side file", where="decision.layouts", hint=hint)
    repeated = [layout.expert_of_slot for layout in decision.layouts for _ in range(layout.num_layers)]
    if len({len(row) for row in repeated}) != 1:
        raise PlannerError("layers have different numbers of slots", where="decision.layouts", hint="solve again")
    expert_LP = np.array(repeated, np.int64)
    role = decision.roles[0]
    free = any(layout.quota is not None for layout in decision.layouts)
    require_launchable(expert_LP, role.parallelism.ep, decision.num_experts, free_shares=free)
    problem = recorded_problem(envelope.inputs)
    model = None if problem is None else recorded_model(problem, role.model)
    if model is None:
        hint = "give the model by its catalog name"
        raise PlannerError(f"the catalog does not know model `{role.model}`", where="decision.roles.0.model", hint=hint)
    ids = [index for index, layer in enumerate(model.layers) if isinstance(layer.ffn, MoeFfn)]
    mtp = [model.num_layers + index for index in range(model.num_mtp_heads)]
    return Rows(
        expert_LP, tuple([*ids, *mtp][: len(expert_LP)]), tuple(mtp), model.num_layers, decision.num_experts,
        role.parallelism.ep,
    )  # fmt: skip
