"""States an expert layout again from its problem, its loads and its own slots. Suffixes: L layer, P slot, E expert."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from pydantic import JsonValue

from planner.arrays import Floats, Ints
from planner.errors import Infeasible, PlannerError
from planner.experts.layout import Layout, at_slots, copies_moved
from planner.experts.ranks import Ranks
from planner.experts.readers import Loads, read_resident
from planner.kinds.experts.check import SIDE_FILE
from planner.kinds.experts.decision import ExpertsDecision, ExpertsOptions
from planner.kinds.experts.plan import envelope
from planner.kinds.experts.recorded import Recorded
from planner.kinds.experts.setting import ExpertsSetting, memory_of, read_setting
from planner.kinds.experts.solve import EVEN, require_room
from planner.plan.findings import Finding, unverifiable
from planner.plan.restated import LeftOut, Restated, unproven
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand, NotAtHand, recorded_problem, resolved_again
from planner.solvers.layouts.spread import SpreadProblem, bin_times, equal_shares, time_bound
from planner.solvers.result import Status

REL_TOL = 1e-9  # of a bound that is computed again

BOUNDS = LeftOut("certificate.proof.bound_by_layer", "whether the bounds of layers hold")
OF_LOADS = ("decision.moved_bytes", "predictions", "certificate", "evidence.sources", "digests.traces")


def restate(stated: Envelope, decision: ExpertsDecision, hand: AtHand) -> Restated:
    """The plan of these slots under the loads of the problem; without them its ranks, memory and places alone.

    Raises NotAtHand for a model that is not, PlannerError for slots that the problem cannot have.
    """
    if SIDE_FILE in decision.side_files:
        raise NotAtHand("the layout is in a side file", where=f"decision.side_files.{SIDE_FILE}")
    try:
        setting = _setting(stated, hand)
    except NotAtHand as missing:
        return _without_loads(stated, decision, missing)
    return Restated(_again(stated, decision, setting), (BOUNDS,) if stated.certificate.proof else ())


def prove(envelope: Envelope, decision: ExpertsDecision, hand: AtHand) -> Iterator[Finding]:
    """Whether the bound of every layer follows from its loads and slots; nothing of a plan that proves nothing.

    Unverifiable where the loads are not at hand.
    """
    if not envelope.certificate.proof:
        return
    stated = stated_bounds(envelope.certificate.proof)
    try:
        again = bounds_again(envelope, decision, hand)
    except NotAtHand as missing:
        yield unverifiable("certificate.proof", missing.what, missing.where, missing.hint)
        return
    except PlannerError as error:
        yield Finding("certificate.proof", False, error.what, error.where, "solve again")
        return
    wrong = [
        layer for layer, (bound, least) in enumerate(zip(stated, again, strict=False)) if bound > least * (1 + REL_TOL)
    ]
    right = not wrong and len(stated) == len(again)
    what = f"the bounds of {len(again)} layers follow from their loads"
    if not right:
        what = f"{len(stated)} bounds of layers, {len(again)} layers"
        if wrong:
            what = f"states the bound {stated[wrong[0]]:.9g} of layer {wrong[0]}, its loads give {again[wrong[0]]:.9g}"
    yield Finding("certificate.proof", right, what, "certificate.proof.bound_by_layer", "solve again")


def bounds_again(stated: Envelope, decision: ExpertsDecision, hand: AtHand) -> tuple[float, ...]:
    """What no layout of each layer beats; raises NotAtHand where the loads are not."""
    setting = _setting(stated, hand)
    expert_LP, share_LP = slots_of(decision)
    if decision.policy in ("realtime", "micro_batches", "affinity"):
        return (EVEN,) * len(expert_LP)
    problems = setting.row_problems()
    rows = zip(problems, expert_LP, share_LP, strict=True)
    return tuple(min(time_bound(row[0]) / _mean_time(row[0]), _imbalance(setting.ranks, *row)) for row in rows)


def stated_bounds(proof: Mapping[str, JsonValue], name: str = "bound_by_layer") -> tuple[float, ...]:
    """The bounds by layer of a proof, or its figures of another name; raises PlannerError where they are no numbers."""
    bounds = proof.get(name)
    if not isinstance(bounds, list) or not all(isinstance(bound, int | float) for bound in bounds):
        raise PlannerError("is no list of numbers", where=f"certificate.proof.{name}", hint="solve again")
    return tuple(float(bound) for bound in bounds if isinstance(bound, int | float))


def _setting(stated: Envelope, hand: AtHand) -> ExpertsSetting:
    return read_setting(resolved_again(stated.inputs, ExpertsOptions, hand))


def _again(stated: Envelope, decision: ExpertsDecision, setting: ExpertsSetting) -> Envelope:
    layers, experts = setting.planned_LE.shape
    expert_LP, share_LP = slots_of(decision)
    if len(expert_LP) != layers or decision.num_experts != experts or decision.num_windows != setting.num_windows:
        what = (
            f"lays out {len(expert_LP)} layers of {decision.num_experts} experts, the loads have {layers} of {experts}"
        )
        raise PlannerError(what, where="decision.layouts")
    problems = setting.row_problems()
    rows = zip(problems, expert_LP, share_LP, strict=True)
    imbalance_L = np.array([_imbalance(setting.ranks, *row) for row in rows])
    quota_LP = share_LP if decision.layouts[0].quota is not None else None
    layout = _with_bounds(stated, Layout(expert_LP, quota_LP, imbalance_L, imbalance_L, Status.FEASIBLE))
    layout = replace(layout, moved_experts=_moved(setting, expert_LP))
    try:
        require_room(setting, layout)
        made = envelope(setting, layout, memory_of(setting))
    except Infeasible as broken:
        raise PlannerError(f"breaks `{broken.conflict[0]['limit']}`", where="decision.layouts") from None
    if stated.certificate.proof:
        return made
    return made.model_copy(update={"certificate": unproven(made.certificate.objective)})


def _moved(setting: ExpertsSetting, expert_NP: Ints) -> int | None:
    """Copies sent from the layout that runs before, and from window to window where each has its own."""
    options, windows = setting.options, expert_NP.reshape(setting.num_windows, -1, expert_NP.shape[1])
    if options.policy == "windows":
        first = () if options.resident is None else (read_resident(options.resident),)
        return sum(copies_moved(setting.ranks, *pair) for pair in itertools.pairwise((*first, *windows)))
    if options.resident is None or options.policy not in ("static", "periodic"):
        return None
    return copies_moved(setting.ranks, read_resident(options.resident), expert_NP)


def _with_bounds(stated: Envelope, layout: Layout) -> Layout:
    """The layout with the bounds that the plan states of its layers; with none where it proves nothing."""
    if not stated.certificate.proof:
        return layout
    bounds = stated_bounds(stated.certificate.proof)
    if len(bounds) != len(layout.bound_L):
        what = f"{len(bounds)} bounds for {len(layout.bound_L)} layers"
        raise PlannerError(what, where="certificate.proof.bound_by_layer", hint="solve again")
    return replace(layout, bound_L=np.array(bounds))


def _without_loads(stated: Envelope, decision: ExpertsDecision, missing: NotAtHand) -> Restated:
    """What hangs on no load, stated again; the rest taken over, and told to be unverifiable."""
    problem = recorded_problem(stated.inputs)
    named = {} if problem is None else {**problem.options}
    inputs = {**stated.inputs, "options": {name: named[name] for name in named if name not in ExpertsOptions.paths}}
    loads = Loads(np.ones((decision.num_windows, decision.num_layers, decision.num_experts)), decision.layer_ids)
    recorded = Recorded(loads)
    setting = read_setting(resolved_again(inputs, ExpertsOptions, AtHand()), recorded)
    expert_LP, share_LP = slots_of(decision)
    ones_L, quota_LP = np.ones(len(expert_LP)), share_LP if decision.layouts[0].quota is not None else None
    made = envelope(setting, Layout(expert_LP, quota_LP, ones_L, ones_L, Status.FEASIBLE), memory_of(setting))
    taken = made.model_copy(
        update={
            "inputs": stated.inputs,
            "decision": {**made.decision, "moved_bytes": decision.moved_bytes},
            "predictions": stated.predictions,
            "certificate": stated.certificate,
            "evidence": made.evidence.model_copy(update={"sources": stated.evidence.sources}),
            "digests": made.digests.model_copy(update={"traces": stated.digests.traces}),
        }
    )
    return Restated(
        taken, tuple(LeftOut(path, missing.what, unverifiable=True, hint=missing.hint) for path in OF_LOADS)
    )


def slots_of(decision: ExpertsDecision) -> tuple[Ints, Floats]:
    """[L, P] the expert of every slot, and the share of its tokens that the slot takes."""
    ordered = sorted(decision.layouts, key=lambda layout: (layout.window, layout.first_layer))
    rows = [layout for layout in ordered for _ in range(layout.num_layers)]
    expert_LP = np.array([layout.expert_of_slot for layout in rows], np.int64)
    equal = (equal_shares(expert_P, decision.num_experts) for expert_P in expert_LP)
    shares = [share_P if row.quota is None else row.quota for row, share_P in zip(rows, equal, strict=True)]
    return expert_LP, np.array(shares, np.float64)


def _imbalance(ranks: Ranks, problem: SpreadProblem, expert_P: Ints, share_P: Floats) -> float:
    """The time of the slowest rank over the mean; raises PlannerError for experts beyond the slots of a layer."""
    slots = at_slots(ranks, problem.slots_R)
    if np.delete(expert_P, slots).max(initial=-1) >= 0:
        raise PlannerError("fills more slots of a rank than the layer has", where="decision.layouts")
    return float(bin_times(problem, expert_P[slots], share_P[slots]).max()) / _mean_time(problem)


def _mean_time(problem: SpreadProblem) -> float:
    return float(problem.weight_E.sum() / problem.speed_R.sum())
