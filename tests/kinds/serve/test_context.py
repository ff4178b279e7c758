"""The context of serving roles: stated or as large as memory allows, what it excludes, refuses and costs."""

import numpy as np
import pytest
from serve_problems import broken_rules, objective_of, small, value_of
from static_level import solve

from planner.costs.operators.work import Shards
from planner.costs.serving.memory import kv_cache_bytes
from planner.errors import Infeasible, PlannerError
from planner.explain import explain_plan
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.steady.points import CONTEXT_RULE
from planner.models.library import find_model
from planner.plan.schema import Envelope, Role
from planner.progress import Limits
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import Traffic, findings, simulate_plan

OWN = 131_072  # tokens of Llama 3.1
TIGHT = {  # weights of 16 GB on GPUs of 24 GB: some 30,000 tokens beside them
    "models.llama.weights": "bf16",
    "models.llama.kv_cache": "bf16",
    "cluster.pools.0": {"gpu": "l4", "gpus": 4},
    "workloads.0.slo": {"ttft": "90s", "tpot": "200ms"},
    "options.max_batch": [1, 4],
    "options.chunk_tokens": [2048],
    "options.modes": ["colocated"],
}
TAIL = {"workloads.0.input_tokens": {"mean": 2000, "cv": 1.0}, "workloads.0.output_tokens": {"mean": 300, "cv": 1.0}}


def roles(plan: Envelope) -> tuple[Role, ...]:
    return ServeDecision.model_validate(plan.decision).roles


def held_bytes(role: Role, tokens: int) -> float:
    model = find_model("meta-llama/Llama-3.1-8B-Instruct")
    return float(kv_cache_bytes(model, Shards.of(role.parallelism.tp), np.array([float(tokens)]))[0])


def test_a_role_takes_what_the_model_takes_or_as_much_as_one_sequence_has_room_for() -> None:
    assert {role.limits["max_context_tokens"] for role in roles(solve(small()))} == {OWN}
    (role,) = roles(solve(small(TIGHT | {"options.tp": [1]})))
    memory, tokens = role.memory, role.limits["max_context_tokens"]
    assert memory is not None
    assert isinstance(tokens, int)
    room = 0.98 * memory.capacity_bytes - memory.workspace_bytes - memory.weights_bytes - memory.activations_bytes
    assert held_bytes(role, tokens) <= room < held_bytes(role, tokens + 16)
    assert tokens < OWN


def test_a_stated_context_leaves_out_what_cannot_hold_it_and_counts_it() -> None:
    free = solve(small(TIGHT))
    (before,) = roles(free)
    most = int(before.limits["max_context_tokens"])
    assert before.parallelism.tp == 1
    same = solve(small(TIGHT | {"engine.max_context_tokens": most}))
    assert objective_of(same) == objective_of(free)
    more = solve(small(TIGHT | {"engine.max_context_tokens": most + 16}))
    assert {role.parallelism.tp for role in roles(more)} == {2}
    assert {role.limits["max_context_tokens"] for role in roles(more)} == {most + 16}
    assert more.certificate.pruned[CONTEXT_RULE] > free.certificate.pruned.get(CONTEXT_RULE, 0) == 0
    assert objective_of(more) < objective_of(free)
    assert not broken_rules(more)


def test_a_longer_stated_context_is_never_better() -> None:
    steps = (2300, 16_000, 40_000, 80_000, OWN)
    worth = []
    for tokens in steps:
        try:
            worth.append(
                objective_of(solve(small(TIGHT | {"engine.max_context_tokens": tokens}), Limits(explain=False)))
            )
        except Infeasible:
            worth.append(0.0)
    assert worth == sorted(worth, reverse=True)
    assert worth[0] > worth[-1]


def test_a_context_that_nothing_holds_names_the_largest_that_fits() -> None:
    (role,) = roles(solve(small(TIGHT | {"options.tp": [1]})))
    with pytest.raises(Infeasible) as raised:
        solve(small(TIGHT | {"options.tp": [1], "engine.max_context_tokens": 100_000}))
    rows = {row["limit"]: row["nearest"] for row in raised.value.conflict}
    assert rows["max_context_tokens = 100000"] == f"max_context_tokens {role.limits['max_context_tokens']}"


@pytest.mark.parametrize(
    ("edits", "what", "hint"),
    [
        ({"engine.max_context_tokens": OWN + 1}, "beyond the own limit", f"max_context_tokens: {OWN}` or less"),
        ({"engine.max_context_tokens": 2299}, "no answer comes to its end", "raise `engine.max_context_tokens`"),
        ({"engine.max_context_tokens": 2000}, "no prompt leaves room", "raise `engine.max_context_tokens`"),
        ({"workloads.0.input_tokens": OWN}, "no prompt leaves room", "name a model with a longer context"),
        (
            TAIL | {"engine.max_context_tokens": 4000, "workloads.0.slo.attainment": "95%"},
            "of the requests of `chat` are refused",
            "lower `attainment`",
        ),
    ],
)
def test_contexts_that_make_no_sense_are_refused(edits: dict[str, object], what: str, hint: str) -> None:
    with pytest.raises(PlannerError, match=what) as raised:
        solve(small(edits))
    assert hint in raised.value.hint


@pytest.fixture(scope="module")
def tailed() -> Envelope:
    return solve(small(TAIL | {"engine.max_context_tokens": 6000, "options.modes": ["colocated"]}))


def test_the_share_beyond_the_context_is_stated_judged_again_and_met_in_simulation(tailed: Envelope) -> None:
    assert not broken_rules(tailed)
    refused, cut = (value_of(tailed, metric, "chat") for metric in ("refused_share", "cut_share"))
    run = simulate_plan(tailed, ServeDecision.model_validate(tailed.decision), Traffic(first=4000), Policies())
    for share, flags in ((refused, run.result.rejected), (cut, run.result.cut)):
        assert float(flags.mean()) == pytest.approx(share, abs=4 * np.sqrt(share / 4000))
    judged = {finding.rule: finding.ok for finding in findings(run, tailed.predictions)}
    assert judged["simulate.fits"]
    assert judged["simulate.context"]
    assert not {finding.rule: finding.ok for finding in findings(run)}["simulate.fits"]
    row = next(i for i, p in enumerate(tailed.predictions) if p.metric == "refused_share")
    forged = tailed.model_copy(
        update={
            "predictions": tuple(
                p.model_copy(update={"value": p.value / 2}) if i == row else p for i, p in enumerate(tailed.predictions)
            )
        }
    )
    assert any(finding.rule == "restated.predictions" for finding in broken_rules(forged))


def test_drawn_lengths_have_their_tail() -> None:
    plan = solve(small(TAIL | {"options.modes": ["colocated"]}))
    run = simulate_plan(plan, ServeDecision.model_validate(plan.decision), Traffic(first=4000), Policies())
    assert run.result.requests.input_tokens.max() > 2000 * (1 + 4 * 1.0)
    assert not run.result.rejected.any()
    assert any("one in a million requests of `chat`" in text for text in plan.assumptions)


def test_explain_says_the_context_why_and_what_more_would_take(tailed: Envelope) -> None:
    def told(plan: Envelope) -> str:
        explained = explain_plan(plan, ServeDecision.model_validate(plan.decision))
        return " ".join(fact.what for fact in explained.facts if "context" in fact.what)

    assert "6000 tokens, as `engine.max_context_tokens` states" in told(tailed)
    assert "all 131072 would take" in told(tailed)
    assert "longer than the context of their roles" in told(tailed)
    assert "the own limit of" in told(solve(small()))
    assert "takes no more beside weights" in told(solve(small(TIGHT | {"options.tp": [1]})))


def test_a_model_that_sees_images_says_that_text_alone_is_priced() -> None:
    plan = solve(small({"models.llama.name": "Qwen/Qwen3-VL-4B-Instruct"}))
    assert any("priced as text alone" in each and "vision tower" in each for each in plan.assumptions)
    assert not any("text alone" in each for each in solve(small()).assumptions)
