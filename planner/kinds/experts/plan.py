"""The plan of an expert layout: slots, predictions, certificate, and what it rests on."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from planner.documents.files import digest
from planner.experts.instance import judged_tokens
from planner.experts.layout import Layout
from planner.experts.model_layers import layers_of
from planner.experts.ranks import linear_layout
from planner.experts.replay import served_imbalance
from planner.experts.step_time import MoeCosts, experts_per_token
from planner.experts.worth import CopiesWorth, copies_worth
from planner.kinds.experts.decision import ExpertsDecision, ExpertsOptions, LayerLayout
from planner.kinds.experts.proof import METHOD, bound_records
from planner.kinds.experts.setting import ExpertsSetting
from planner.plan.blocks import block_on
from planner.plan.schema import (
    Axis,
    Certificate,
    Engine,
    Envelope,
    Evidence,
    Memory,
    Objective,
    Parallelism,
    Prediction,
    Role,
)
from planner.problem.envelope import plan_envelope
from planner.problem.resolve import normalised
from planner.solvers.result import relative_loss

ROLE = "experts"
TOLERANCE = 1e-6
ASSUMPTIONS = (
    "loads come as recorded; copies of an expert share its tokens equally unless the plan gives quotas",
    "a rank's time is its load over its speed; ranks are equally fast unless the problem gives speeds",
)


def envelope(setting: ExpertsSetting, layout: Layout, memory: Memory | None) -> Envelope:
    """The plan of a layout."""
    worth = _worth(setting) if setting.options.policy == "realtime" else None
    return plan_envelope(
        setting.resolved,
        _decision(setting, layout, memory),
        _certificate(setting, layout),
        predictions=(*_predictions(layout), *_of_tokens(setting, layout), *_of_copies(worth)),
        evidence=Evidence(
            basis={"measured": 1.0},
            sources=(f"{len(setting.loads.load_WLE)} windows of recorded loads",),
            notes=("imbalance is that of the recorded loads; loads to come differ", *_notes(worth)),
        ),
        assumptions=ASSUMPTIONS,
        solver="spread local search",
        digests={"traces": {**setting.resolved.digests()["traces"], "loads": _digest_of_loads(setting)}},
        inputs=_inputs(setting),
    )


def _inputs(setting: ExpertsSetting) -> dict[str, JsonValue]:
    """The problem with files by their names alone."""
    inputs = normalised(setting.resolved)
    options = dict(setting.resolved.problem.options)
    for name in ExpertsOptions.paths:
        if options.get(name):
            options[name] = Path(str(options[name])).name
    return {**inputs, "options": options}


def _digest_of_loads(setting: ExpertsSetting) -> str:
    counted = setting.recorded.counted
    return digest((setting.loads.load_WLE if counted is None else counted).tolist())


def _decision(setting: ExpertsSetting, layout: Layout, memory: Memory | None) -> ExpertsDecision:
    options, engine, pool = setting.options, setting.resolved.problem.engine, setting.pool
    moved = layout.moved_experts or 0
    model = setting.model
    by_layer = options.slots_by_layer
    return ExpertsDecision(
        roles=(
            Role(
                name=ROLE,
                function="experts",
                model=setting.key,
                engine=Engine(name=engine.name, version=engine.version),
                pool=pool.name,
                replicas=1,
                parallelism=Parallelism(dp=options.ep, ep=options.ep),
                memory=memory,
            ),
        ),
        placement=(
            block_on(
                setting.devices.tolist(),
                ROLE,
                pool.name,
                (Axis(name="dp", size=options.ep, stride=1),) if options.ep > 1 else (),
            ),
        ),
        policy=options.policy,
        num_experts=setting.loads.load_WLE.shape[2],
        num_layers=len(layout.expert_LP) // setting.num_windows,
        num_windows=setting.num_windows,
        layer_ids=setting.loads.layer_ids if model is not None else (),
        mtp_layer_ids=layers_of(model).mtp_ids if model is not None else (),
        num_model_layers=model.num_layers if model is not None else 0,
        slots_per_rank=options.slots_by_rank if len(set(options.slots_by_rank)) > 1 else options.slots_by_rank[:1],
        slots_by_layer=by_layer,
        home_slots_per_rank=setting.ranks.home_slots,
        interval_s=options.interval_s,
        moved_bytes=moved * setting.expert_bytes,
        layouts=tuple(_layers(layout, len(layout.expert_LP) // setting.num_windows)),
    )


def _layers(layout: Layout, num_layers: int) -> Iterator[LayerLayout]:
    for row, row_P in enumerate(layout.expert_LP.tolist()):
        quota = None if layout.quota_LP is None else tuple(np.maximum(layout.quota_LP[row], 0.0).tolist())
        window, layer = divmod(row, num_layers)
        yield LayerLayout(first_layer=layer, window=window, expert_of_slot=tuple(row_P), quota=quota)


def _predictions(layout: Layout) -> Iterator[Prediction]:
    yield Prediction(metric="imbalance", value=float(layout.imbalance_L.mean()))
    yield Prediction(metric="imbalance", statistic="max", value=float(layout.imbalance_L.max()))


def _of_tokens(setting: ExpertsSetting, layout: Layout) -> Iterator[Prediction]:
    """Of choices of tokens: nodes that a token visits, and the imbalance to expect of as many fresh ones."""
    if setting.options.policy != "affinity" or setting.recorded.counted is None:
        return
    tokens = judged_tokens(setting.instance, layout.expert_LP)
    yield Prediction(metric="nodes_per_token", value=float(tokens.nodes_per_token_L.mean()))
    yield Prediction(metric="fresh_imbalance", value=float(tokens.fresh_imbalance_L.mean()))


def _worth(setting: ExpertsSetting) -> CopiesWorth:
    """What copies gain in the micro-batches of the loads."""
    load_WLE, options = setting.micro_batch_WLE, setting.options
    routed = float(load_WLE.sum(axis=2).mean())
    tokens = routed / (options.ep * experts_per_token(setting.priced))
    costs = MoeCosts(setting.priced, setting.near, options.ep, tokens)
    return copies_worth(load_WLE, setting.ranks, setting.rules, costs)


def _of_copies(worth: CopiesWorth | None) -> Iterator[Prediction]:
    """Of a mean micro-batch, forward, where copies are planned in each."""
    if worth is None:
        return
    yield Prediction(metric="micro_batch_s", value=worth.copied_s)
    yield Prediction(metric="micro_batch_in_order_s", value=worth.in_order_s)
    yield Prediction(metric="copies_planned_s", value=worth.planned_s)
    yield Prediction(metric="copies_sent_s", value=worth.sent_s)
    yield Prediction(metric="net_gain", value=worth.net_gain)


def _notes(worth: CopiesWorth | None) -> Iterator[str]:
    if worth is not None:
        gained = "save" if worth.net_gain > 0 else "cost"
        yield (
            f"copies in every micro-batch {gained} {abs(worth.net_gain):.1%} of its forward pass, net of planning and "
            "sending them one layer after the other"
        )


def _certificate(setting: ExpertsSetting, layout: Layout) -> Certificate:
    """The mean imbalance over layers beside the mean of the layers' bounds."""
    value, bound = float(layout.imbalance_L.mean()), float(layout.bound_L.mean())
    gap = abs(value - bound) / max(abs(value), 1e-9)
    closed = gap <= TOLERANCE
    space = "of these slots, with any copies, places and shares, for the recorded loads"
    claim = f"no layout {space} is better balanced" if closed else f"no layout {space} is below the bound"
    above = bound_records(setting.row_problems(), layout.bound_L)
    return Certificate(
        claim=claim,
        status="optimal" if closed else "feasible",
        objective=Objective(metric="imbalance", sense="minimize", value=value),
        bound=min(bound, value),
        gap=gap,
        tolerance=TOLERANCE,
        axes={"copies": ["every number"], "places": ["every rank"], "layers": [len(layout.bound_L)]},
        candidates=len(layout.bound_L),
        proof={
            "method": METHOD,
            "bound_by_layer": layout.bound_L.tolist(),
            "imbalance_by_layer": layout.imbalance_L.tolist(),
            "slots": digest(layout.expert_LP.tolist()),
            **({} if above is None else {"bounds_above_1": above}),
            "rules": ["all ranks busy to the end", "slots for the copies that no rank time holds", "heaviest items"],
        },
        next_best=[_in_order(setting, value)],
    )


def _in_order(setting: ExpertsSetting, value: float) -> dict[str, JsonValue]:
    """What engines start with: experts in order over the ranks, no copies, under the same loads."""
    load_LE = setting.planned_LE
    start_LP = np.tile(linear_layout(setting.ranks, load_LE.shape[1]), (len(load_LE), 1))
    before = float(served_imbalance(setting.ranks, start_LP, load_LE).mean())
    return {
        "plan": "experts in order, as engines start",
        "objective": before,
        "loss": relative_loss(value, before, "minimize"),
    }
