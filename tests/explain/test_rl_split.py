"""Why so many GPUs of an RL plan generate and so many train, and what another split would cost."""

from collections.abc import Callable

from planner.explain import explain_plan
from planner.kinds.rl.decision import InFlightUpdates
from planner.plan.schema import Decision, Envelope


def split_of(envelope: Envelope, decision: Decision) -> str:
    facts = explain_plan(envelope, decision).facts
    return next(fact.what for fact in facts if "GPUs generate and" in fact.what)


def predicting(envelope: Envelope, **values: float) -> Envelope:
    rows = tuple(row.model_copy(update={"value": values.get(row.metric, row.value)}) for row in envelope.predictions)
    return envelope.model_copy(update={"predictions": rows})


def test_the_side_that_binds_is_named_and_how_much_longer_the_other_may_take(
    solved: Callable[[str], tuple[Envelope, Decision]],
) -> None:
    envelope, decision = solved("rl-grpo-7b")
    sync_s = decision.model_dump()["weight_sync"]["duration_s"]
    told = split_of(
        predicting(envelope, iteration_time_s=100.0, generation_s=100.0 - sync_s, training_s=80.0 - sync_s), decision
    )
    assert "generation binds; training may take 25 % longer" in told
    told = split_of(
        predicting(envelope, iteration_time_s=100.0, generation_s=50.0 - sync_s, training_s=100.0 - sync_s), decision
    )
    assert "training binds; generation may take 100 % longer" in told
    told = split_of(
        predicting(envelope, iteration_time_s=100.0, generation_s=100.0 - sync_s, training_s=99.5 - sync_s), decision
    )
    assert "both sides take about as long" in told


def test_what_the_iteration_would_gain_from_a_shorter_side_is_told(
    solved: Callable[[str], tuple[Envelope, Decision]],
) -> None:
    envelope, decision = solved("rl-grpo-7b")
    sync_s = decision.model_dump()["weight_sync"]["duration_s"]
    times = predicting(envelope, iteration_time_s=100.0, generation_s=100.0 - sync_s, training_s=80.0 - sync_s)
    facts = explain_plan(times, decision).facts
    assert any(fact.what.endswith("the iteration waits for it and for new weights") for fact in facts)
    changes = [fact for fact in facts if fact.topic == "change"]
    assert any(fact.what.startswith("shorter generation") and "20 % at most" in fact.what for fact in changes)


def test_staleness_binds_where_samples_flow_and_neither_side_is_as_long_as_the_iteration(
    solved: Callable[[str], tuple[Envelope, Decision]],
) -> None:
    envelope, decision = solved("rl-grpo-7b")
    sync_s = decision.model_dump()["weight_sync"]["duration_s"]
    flow = InFlightUpdates(samples=512, period_s=10.0, residence_s=60.0)
    flowing = decision.model_copy(update={"in_flight_updates": flow})
    times = predicting(envelope, iteration_time_s=40.0, generation_s=10.0, training_s=20.0 - sync_s)
    assert "neither side binds, but staleness: a batch is under way for 60.0 s" in split_of(times, flowing)
    changes = [fact.what for fact in explain_plan(times, flowing).facts if fact.topic == "change"]
    assert "a larger `max_staleness` makes iterations shorter by 50 % at most" in changes
    times = predicting(envelope, iteration_time_s=60.0, generation_s=10.0, training_s=60.0 - sync_s)
    assert "training binds; generation may take 100 % longer" in split_of(times, flowing)


def test_one_replica_more_or_less_costs_what_the_certificate_says(
    solved: Callable[[str], tuple[Envelope, Decision]],
) -> None:
    envelope, decision = solved("rl-grpo-7b")
    replicas = next(role.replicas for role in decision.roles if role.function == "rollout")
    others = envelope.model_dump()["certificate"]["next_best"]
    losses = {row["plan"]: row["loss"] for row in others}
    named = [f"{replicas + more} replicas generate in place of {replicas}" for more in (-1, 1)]
    assert set(named) <= set(losses)
    assert all(losses[name] >= 0.0 for name in named)
