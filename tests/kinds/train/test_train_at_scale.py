"""Checkpoints that a training plan decides where its problem says what may fail, and what a check makes of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.errors import PlannerError
from planner.kinds.train.checkpointing import Reliability
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.whole_run.at_scale import surroundings_of, with_checkpoints
from planner.plan.schema import Envelope
from planner.reliability.faults import JobMachines
from planner.reliability.of_plan import facts_of, job_of_plan, running_of, state_of
from planner.reliability.replan import replan

PLAN = Path(__file__).parents[2] / "plans" / "train.json"
STORE = {"remote_write_bytes_per_s": 5e11, "nodes_per_rack": 2}


def _plan(reliability: dict[str, Any] | None = None, **decision: Any) -> tuple[Envelope, TrainDecision]:  # noqa: ANN401
    data = json.loads(PLAN.read_text())
    data["decision"] |= decision
    if reliability is not None:
        data["inputs"]["options"]["reliability"] = reliability
    envelope = Envelope.model_validate(data)
    return envelope, TrainDecision.model_validate(envelope.decision)


def _share(envelope: Envelope) -> float:
    return next(prediction.value for prediction in envelope.predictions if prediction.metric == "effective_share")


def _every(decision: TrainDecision, steps: int) -> TrainDecision:
    """The same with snapshots every `steps` steps."""
    assert decision.checkpointing is not None
    changed = decision.checkpointing.model_copy(update={"interval_steps": steps})
    return decision.model_copy(update={"checkpointing": changed})


def test_a_plan_decides_tier_interval_and_spares_where_the_problem_says_what_fails() -> None:
    made = with_checkpoints(*_plan(STORE))
    checkpointing = TrainDecision.model_validate(made.decision).checkpointing
    assert checkpointing is not None
    assert checkpointing.tier != "synchronous"
    assert checkpointing.interval_steps >= 1
    assert checkpointing.spare_nodes > 0
    assert 0.9 < _share(made) < 0.95
    assert "nothing fails, and no checkpoint is written" not in made.assumptions


def test_wishes_for_tier_and_spares_are_kept() -> None:
    made = with_checkpoints(*_plan({**STORE, "tier": "synchronous", "spare_nodes": 40}))
    checkpointing = TrainDecision.model_validate(made.decision).checkpointing
    assert checkpointing is not None
    assert (checkpointing.tier, checkpointing.spare_nodes) == ("synchronous", 40)
    assert _share(made) < _share(with_checkpoints(*_plan(STORE)))


def test_without_wishes_the_plan_stays_as_it_is() -> None:
    envelope, decision = _plan()
    assert with_checkpoints(envelope, decision) is envelope


def test_days_are_those_of_machines_that_fail() -> None:
    envelope, decision = _plan(STORE)
    days = {"metric": "train_days", "value": 60.0, "interval": [55.0, 70.0]}
    envelope = Envelope.model_validate(
        {
            **envelope.model_dump(by_alias=True),
            "predictions": [*(prediction.model_dump() for prediction in envelope.predictions), days],
        }
    )
    made = with_checkpoints(envelope, decision)
    corrected = next(prediction for prediction in made.predictions if prediction.metric == "train_days")
    assert corrected.value == pytest.approx(60.0 / _share(made))
    assert corrected.interval == pytest.approx((55.0 / _share(made), 70.0 / _share(made)))


def test_checkpoints_that_are_given_are_kept_and_their_share_is_derived_again() -> None:
    envelope, decision = _plan(STORE)
    made = with_checkpoints(envelope, decision)
    decided = TrainDecision.model_validate(made.decision)
    assert _share(with_checkpoints(envelope, decided)) == pytest.approx(_share(made), rel=1e-9)
    assert _share(with_checkpoints(envelope, _every(decided, 900))) < _share(made)


def test_an_interval_shorter_than_the_way_to_the_store_is_found() -> None:
    envelope, decision = _plan({**STORE, "remote_write_bytes_per_s": 1e10})
    made = TrainDecision.model_validate(with_checkpoints(envelope, decision).decision)
    with pytest.raises(PlannerError, match="durable after"):
        with_checkpoints(envelope, _every(made, 1))


@pytest.mark.parametrize(
    ("zero", "copies", "node", "rack"),
    [
        ({"zero_stage": 1}, 1, 0.0, 0.0),
        ({"zero_stage": 1, "zero_shards": 64}, 2, 1.0, 1.0),
        ({"zero_stage": 0}, 128, 1.0, 1.0),
    ],
)
def test_copies_of_a_shard_survive_losses_that_they_reach_beyond(
    zero: dict[str, Any], copies: int, node: float, rack: float
) -> None:
    state = state_of(facts_of(*_plan(**zero)), JobMachines(16384, 8, 2))
    assert (state.copies, state.node_loss_kept, state.rack_loss_kept) == (copies, node, rack)


def test_a_checkpoint_holds_fourteen_bytes_a_parameter() -> None:
    envelope, decision = _plan(STORE)
    job = job_of_plan(envelope, decision, surroundings_of(Reliability(remote_write_bytes_per_s=5e11)))
    assert job.state.total_bytes == pytest.approx(14 * 405.85e9, rel=1e-3)
    assert job.fleet == JobMachines(16384, 8, 1)


def test_a_lost_node_takes_one_cell_of_the_plan() -> None:
    replanned = replan(running_of(*_plan()), [5])
    assert (replanned.lost_gpus, replanned.replicas, replanned.moves.loads) == (8, 127, 0)
