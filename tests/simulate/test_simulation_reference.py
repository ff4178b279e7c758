"""The compiled loop against the slow reference, event for event, on random small cases of every role and policy."""

from dataclasses import replace

from ahead_simulator import AheadSimulator
from elastic_simulator import ElasticSimulator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from operated_simulator import OperatedSimulator
from small_fleets import (
    ahead_fleets,
    assert_same,
    draw,
    elastic_fleets,
    fleets,
    loads,
    mixed_loads,
    operated_fleets,
    pathed_fleets,
    workloads,
)
from step_simulator import StepSimulator

from planner.simulate.fleet.instances import Fleet
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate

CASES = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@CASES
@given(fleet=fleets(), requests=loads())
def test_compiled_loop_equals_the_reference_event_for_event(fleet: Fleet, requests: Requests) -> None:
    reference = StepSimulator(fleet, requests, draw)
    reference.run()
    assert_same(simulate(fleet, requests, seed=7, most_events=100_000), reference)


@CASES
@given(fleet=ahead_fleets(), requests=loads())
def test_steps_formed_ahead_equal_the_reference_event_for_event(fleet: Fleet, requests: Requests) -> None:
    reference = AheadSimulator(fleet, requests, draw)
    reference.run()
    assert_same(simulate(fleet, requests, seed=7, most_events=100_000), reference)


@CASES
@given(fleet=operated_fleets(), data=st.data())
def test_operated_fleets_equal_the_reference_event_for_event(fleet: Fleet, data: st.DataObject) -> None:
    requests = data.draw(mixed_loads(fleet))
    reference = OperatedSimulator(fleet, requests, draw)
    reference.run()
    assert_same(simulate(fleet, requests, seed=7, most_events=100_000), reference)


@settings(CASES, max_examples=100)
@given(fleet=pathed_fleets(), requests=workloads())
def test_fleets_with_paths_equal_the_reference_event_for_event(fleet: Fleet, requests: Requests) -> None:
    reference = StepSimulator(fleet, requests, draw)
    reference.run()
    assert_same(simulate(fleet, requests, seed=7, most_events=100_000), reference)


@settings(CASES, max_examples=150)
@given(fleet=elastic_fleets(), requests=loads().map(lambda requests: replace(requests, hit_tokens=None, encoded=None)))
def test_elastic_fleets_equal_the_reference_event_for_event(fleet: Fleet, requests: Requests) -> None:
    reference = ElasticSimulator(fleet, requests, draw)
    reference.run()
    result = simulate(fleet, requests, most_events=100_000)
    assert_same(result, reference)
    assert result.degree.tolist() == reference.degree
    assert result.num_events == len(reference.moments)
