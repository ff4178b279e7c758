"""Problems without a plan: the smallest set of limits in conflict, and the nearest value of each that works."""

import re
from typing import Any

import pytest
from serve_problems import small
from static_level import solve

from planner.check import check_plan
from planner.documents.files import digest
from planner.errors import Infeasible, PlannerError
from planner.kinds.serve.options import ServeDecision
from planner.problem.lengths import LengthFacts, length_quantile
from planner.problem.schema import TraceLengths, UniformLengths
from planner.progress import Limits
from planner.simulate.requests.arrivals import arrivals

LEAST = {"minimize": "gpus"}
NO_LIMITS = {"workloads.0.slo": ...}


def conflict_of(edits: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(Infeasible) as raised:
        solve(small(edits))
    assert raised.value.proved
    return [(row["limit"], row["nearest"]) for row in raised.value.conflict]


def feasible(edits: dict[str, Any]) -> bool:
    try:
        solve(small(edits), Limits(explain=False))
    except Infeasible:
        return False
    return True


def number(text: str) -> float:
    return float(re.findall(r"[\d.]+", text)[0])


def milliseconds(text: str) -> float:
    return number(text) * {"ms": 1.0, "s": 1000.0, "µs": 1e-3}[text.split()[-1]]


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "ttft": ({"workloads.0.slo": {"ttft": "20ms"}}, "workloads.0.slo.ttft", "p95 ttft <= 20.0 ms"),
    "mean ttft": ({"workloads.0.slo": {"ttft": {"mean": "20ms"}}}, "workloads.0.slo.ttft.mean", "mean ttft <= 20.0 ms"),
    "tpot": ({"workloads.0.slo": {"tpot": "1ms"}}, "workloads.0.slo.tpot", "p95 tpot <= 1.00 ms"),
    "itl": ({"workloads.0.slo": {"itl": {"p99": "1ms"}}}, "workloads.0.slo.itl.p99", "p99 itl <= 1.00 ms"),
    "latency": ({"workloads.0.slo": {"latency": "500ms"}}, "workloads.0.slo.latency", "p95 latency <= 500 ms"),
}


@pytest.mark.parametrize("case", list(CASES))
def test_a_time_limit_alone_is_named_with_the_nearest_value_that_works(case: str) -> None:
    edits, place, text = CASES[case]
    ((limit, nearest),) = conflict_of(edits)
    assert limit == f"chat: {text}"
    value = milliseconds(nearest)
    assert feasible({**edits, place: f"{value}ms"})
    assert not feasible({**edits, place: f"{value * 0.98}ms"})


def test_an_attainment_is_named_with_the_nearest_share_that_works() -> None:
    edits = {"workloads.0.load": {"rate": "6/s"}, "objective": LEAST, "cluster.pools.0.gpus": 2}

    def rows_at(ttft_ms: float) -> dict[str, str]:
        slo = {"ttft": f"{ttft_ms}ms", "tpot": "15ms", "attainment": 0.99}
        return dict(conflict_of({**edits, "workloads.0.slo": slo}))

    least_ms = milliseconds(rows_at(40.0)["chat: p95 ttft <= 40.0 ms"])  # at which 99 % are attained
    ttft_ms = float(round(0.98 * least_ms))
    rows, slo = rows_at(ttft_ms), {"ttft": f"{ttft_ms}ms", "tpot": "15ms"}
    stated = f"chat: p95 ttft <= {ttft_ms:.1f} ms"
    assert set(rows) == {stated, "chat: attainment >= 0.99", "chat: rate 6.00/s", "gpus <= 2"}
    share = number(rows["chat: attainment >= 0.99"])
    assert 0.95 < share < 0.99
    assert feasible({**edits, "workloads.0.slo": {**slo, "attainment": share}})
    assert not feasible({**edits, "workloads.0.slo": {**slo, "attainment": share + 0.002}})


def test_a_rate_and_the_gpus_are_named_together_with_their_nearest_values() -> None:
    edits = {"workloads.0.load": {"rate": "150/s"}, "objective": LEAST}
    rows = dict(conflict_of(edits))
    assert set(rows) == {"chat: rate 150/s", "gpus <= 4"}
    rate, gpus = number(rows["chat: rate 150/s"]), int(number(rows["gpus <= 4"]))
    assert feasible({**edits, "workloads.0.load": {"rate": f"{rate}/s"}})
    assert not feasible({**edits, "workloads.0.load": {"rate": f"{rate * 1.02}/s"}})
    whole = {"gpu": "h100", "nodes": gpus // 8}
    assert gpus % 8 == 0
    assert feasible({**edits, "cluster.pools.0": whole})


def test_a_few_gpus_more_inside_a_node_are_named_exactly() -> None:
    edits = {"workloads.0.load": {"rate": "20/s"}, "objective": LEAST, "cluster.pools.0.gpus": 1}
    rows = dict(conflict_of(edits))
    gpus = int(number(rows["gpus <= 1"]))
    assert 1 < gpus < 8
    assert feasible({**edits, "cluster.pools.0.gpus": gpus})
    assert not feasible({**edits, "cluster.pools.0.gpus": gpus - 1})


def test_a_cap_below_the_gpus_at_hand_is_named_exactly() -> None:
    edits = {"workloads.0.load": {"rate": "12/s"}, "objective": LEAST, "limits.gpus": 1}
    rows = dict(conflict_of(edits))
    gpus = int(number(rows["gpus <= 1"]))
    assert feasible({**edits, "limits.gpus": gpus})
    assert not feasible({**edits, "limits.gpus": gpus - 1})


def test_a_price_is_named_with_the_nearest_one() -> None:
    edits = {
        "workloads.0.load": {"rate": "12/s"},
        "objective": LEAST,
        "limits.price": "4USD/h",
        "cluster.pools.0.price": "3USD/h",
    }
    rows = dict(conflict_of(edits))
    price = number(rows["price <= 4.00 USD/h"])
    assert feasible({**edits, "limits.price": f"{price}USD/h"})
    assert not feasible({**edits, "limits.price": f"{price * 0.98}USD/h"})


def test_clients_that_do_not_fit_are_named_with_the_number_that_does() -> None:
    edits = {"workloads.0.load": {"concurrency": 4000}, "objective": LEAST}
    rows = dict(conflict_of(edits))
    clients = int(number(rows["chat: concurrency 4000"]))
    assert feasible({**edits, "workloads.0.load": {"concurrency": clients}})
    assert not feasible({**edits, "workloads.0.load": {"concurrency": round(clients * 1.03)}})


def test_two_limits_that_only_conflict_together_are_both_named() -> None:
    edits = {
        "options": {"modes": ["colocated"], "tp": [1], "pp": [1], "max_batch": [1], "chunk_tokens": [4096]},
        "workloads.0.slo": {"ttft": "60s", "tpot": "15ms"},
        "workloads.0.load": {"rate": "30/s"},
        "objective": LEAST,
    }
    assert [limit for limit, _ in conflict_of(edits)] == ["chat: rate 30.0/s", "gpus <= 4"]


@pytest.mark.parametrize("rate", ["1e18/s", "1e300/s"])
def test_a_rate_beyond_all_measure_is_named_as_what_cannot_be(rate: str) -> None:
    ((limit, _),) = conflict_of({"workloads.0.load": {"rate": rate}, "objective": LEAST})
    assert limit.startswith("chat: rate 1e+")


@pytest.mark.parametrize("rate_per_s", [1e-4, 1e-30])
def test_a_rate_of_almost_nothing_is_served_by_the_least_that_serves(rate_per_s: float) -> None:
    envelope = solve(small({"workloads.0.load": {"rate": f"{rate_per_s}/s"}, "objective": LEAST}))
    assert envelope.certificate.objective.value == envelope.certificate.bound == 1.0
    (served,) = (row.value for row in envelope.predictions if row.metric == "requests_per_s")
    assert served == pytest.approx(rate_per_s, rel=1e-6)
    broken = [
        finding.rule
        for finding in check_plan(envelope, ServeDecision.model_validate(envelope.decision))
        if not finding.ok
    ]
    assert broken == []


def test_a_rate_that_the_solver_takes_for_none_is_refused_where_the_most_is_sought() -> None:
    free = {"name": "free", "input_tokens": 2000, "output_tokens": 300}  # without a load, as much as fits
    with pytest.raises(PlannerError, match="1e-12 requests/s cannot be told from none") as refused:
        solve(small({"workloads.0.load": {"rate": "1e-12/s"}, "workloads.1": free}))
    assert "write at least `rate: 0.0" in refused.value.hint


FULL: dict[str, Any] = {  # 99 % of the memory of a device
    "options": {"modes": ["colocated"], "tp": [1], "pp": [1], "max_batch": [244], "chunk_tokens": [4096]},
    "workloads.0.input_tokens": 2000,
    "workloads.0.output_tokens": 2000,
    **NO_LIMITS,
}


def test_the_reserve_binds_what_is_chosen_and_no_plan_that_is_there() -> None:
    assert conflict_of(FULL) == [("memory_reserve = 2 %", "memory_reserve 0 %")]
    envelope = solve(small({**FULL, "options.memory_reserve": 0.0}))
    decision = ServeDecision.model_validate(envelope.decision)
    memory = decision.roles[0].memory
    assert memory is not None
    assert 0.98 < memory.used_bytes / memory.capacity_bytes < 1.0
    options = {**FULL["options"], "judged_by": "queueing"}
    inputs = {**envelope.inputs, "options": options}  # as of a plan from before there was a reserve
    digests = envelope.digests.model_copy(update={"problem": digest(inputs)})
    older = envelope.model_copy(update={"inputs": inputs, "digests": digests})
    for plan in (envelope, older):
        assert [finding.rule for finding in check_plan(plan, decision) if not finding.ok] == []


def test_a_model_that_fits_nowhere_is_said_to_fit_nowhere() -> None:
    edits = {
        "models.llama": {"name": "meta-llama/Llama-3.1-405B", "weights": "bf16"},
        "cluster.pools.0": {"gpu": "l40s", "gpus": 2},
        "options": {"tp": [1, 2], "pp": [1]},
    }
    ((limit, nearest),) = conflict_of(edits)
    assert "fits no allowed shape" in limit
    assert nearest == ""


@pytest.mark.parametrize(
    ("options", "named"),
    [({"tp": [16]}, "tp"), ({"tp": [2], "pp": [3]}, "pp"), ({"roles": {"colocated": {"tp": [16]}}}, "roles")],
)
def test_options_that_leave_no_shape_are_named_and_not_the_load(options: dict[str, Any], named: str) -> None:
    ((limit, nearest),) = conflict_of({"options": {"modes": ["colocated"], **options}})
    assert f"fits no shape that `{named}` of `options` allows" in limit
    assert nearest == f"without `{named}`"
    assert feasible({"options": {key: value for key, value in options.items() if key != named}})


def test_a_limit_on_whole_requests_that_the_longest_answers_break_is_named() -> None:
    edits = {"workloads.0.output_tokens": {"mean": 300, "cv": 2.0}, "workloads.0.slo": {"latency": {"p99": "4s"}}}
    ((limit, nearest),) = conflict_of(edits)
    assert "p99 latency <= 4.00 s (no arrivals keep it: an answer of " in limit
    assert milliseconds(nearest) > 4000.0


def test_a_limit_on_a_trace_is_held_against_its_own_quantiles() -> None:
    facts = LengthFacts(2.0, 0.0, None, (9, 1, 5, 7, 3))
    lengths = TraceLengths(trace="a.csv")
    assert [length_quantile(lengths, facts, q) for q in (0.1, 0.2, 0.21, 0.5, 0.99)] == [1.0, 1.0, 3.0, 5.0, 9.0]
    assert length_quantile(UniformLengths(low=1, high=10), LengthFacts(5.5, 0.5), 0.95) == 10.0
    assert length_quantile(7, LengthFacts(7.0, 0.0), 0.5) == 7.0


def test_bursts_beyond_what_can_be_drawn_are_refused_by_problems_and_streams_alike() -> None:
    limit = small({"workloads.0.load": {"rate": "1/s", "arrival_cv": 20.0}}).problem.workloads[0].load
    assert limit is not None
    assert len(arrivals("gamma", 1.0, 5, cv=limit.arrival_cv)) == 5
    with pytest.raises(PlannerError, match=r"at most 20|less than or equal to 20|<= 20") as refused:
        small({"workloads.0.load": {"rate": "1/s", "arrival_cv": 20.5}})
    assert "workloads.0.load.arrival_cv" in str(refused.value)
    with pytest.raises(PlannerError, match=r"at most 20, found 20\.5"):
        arrivals("gamma", 1.0, 5, cv=20.5)
