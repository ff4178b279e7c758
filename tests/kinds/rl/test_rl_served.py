"""Models with engines of their own, formats and engines that sleep, from problem to plan and check."""

from pathlib import Path
from typing import Any

import pytest

from planner.api import solve
from planner.check import check_plan
from planner.documents.read import given_document
from planner.emit.registry import emit
from planner.errors import Infeasible, PlannerError
from planner.explain.post_training import post_training_facts
from planner.kinds.rl.curves.generation import serves
from planner.kinds.rl.decision import RlDecision, ServedScoring, Turns
from planner.kinds.rl.fresh_streams import judged
from planner.load.problems import resolve_document
from planner.models.library import find_model
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand


def problem(**options: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "schema": "planner.problem/1",
        "kind": "rl",
        "name": "served",
        "models": {"m": {"name": "Qwen/Qwen3-0.6B"}, "judge": {"name": "Qwen/Qwen3-0.6B"}},
        "cluster": {"pools": [{"gpu": "h100_sxm", "nodes": 1, "gpus_per_node": 4, "price": "2 USD/h"}]},
        "workloads": [{"model": "m", "input_tokens": 100, "output_tokens": {"mean": 300, "cv": 0.5}}],
        "objective": {"minimize": "iteration_time"},
        "options": {
            "algorithm": "grpo",
            "actor": "m",
            "prompts": 16,
            "samples_per_prompt": 4,
            "iterations": 1,
            "generation_tp": [1],
            "training_tp": [1],
            "training_pp": [1],
            "training_cp": [1],
            **options,
        },
    }


def planned(**options: Any) -> Envelope:  # noqa: ANN401
    return solve(resolve_document(given_document(problem(**options), "problem.yaml"), Path()))


def decided(envelope: Envelope) -> RlDecision:
    return RlDecision.model_validate(envelope.decision)


def passes(envelope: Envelope, decision: RlDecision | None = None) -> bool:
    return all(finding.ok for finding in check_plan(envelope, decision or decided(envelope), proof=True))


def limits(envelope: Envelope, name: str) -> dict[str, Any]:
    """Of a role."""
    return next(role.limits for role in decided(envelope).roles if role.name == name)


def scoring(envelope: Envelope) -> ServedScoring:
    served = decided(envelope).served_scoring
    assert served is not None
    return served


def turns(envelope: Envelope) -> Turns:
    taken = decided(envelope).turns
    assert taken is not None
    return taken


def worth(envelope: Envelope) -> float:
    value = envelope.certificate.objective.value
    assert value is not None
    return value


ONE = {"tp": [1], "servers": [1], "batch_samples": [8]}


def test_a_served_model_stands_on_gpus_of_its_own_and_takes_its_time_off_training() -> None:
    beside = planned(reference="m", reward="judge")
    apart = planned(reference="m", reward="judge", served=[{"part": "reward", **ONE}])
    assert limits(apart, "reward")["batch_samples"] == 8
    served = scoring(apart)
    assert served.scored_s > served.generated_s
    assert served.busy_s["reward"] <= served.scored_s
    assert passes(apart)
    assert decided(beside).served_scoring is None


def test_what_may_be_served_or_beside_is_no_slower_than_either() -> None:
    times = []
    for served in ([], [{"part": "reference", **ONE}], [{"part": "reference", **ONE, "or_beside": True}]):
        times.append(worth(planned(reference="m", served=served)))
    assert times[2] == pytest.approx(min(times[:2]))


@pytest.mark.parametrize("figure", ["scored_s", "handed_s"])
def test_a_claim_of_a_shorter_wait_for_servers_is_found(figure: str) -> None:
    plan = planned(reference="m", reward="judge", served=[{"part": "reference", **ONE}, {"part": "reward", **ONE}])
    assert scoring(plan).handed_s > 0.0
    assert limits(plan, "reference")["takes"] == "batches"
    shorter = scoring(plan).model_copy(update={figure: getattr(scoring(plan), figure) / 2})
    changed = decided(plan).model_copy(update={"served_scoring": shorter})
    document = changed.model_dump(mode="json", exclude_none=True)
    assert not passes(plan.model_copy(update={"decision": document}), changed)


def test_workers_of_a_sandbox_hold_up_what_waits_for_them() -> None:
    few, many = (
        planned(reward_calls={"by": "sandbox", "time": "2s", "start": "1s", "workers": workers}) for workers in (4, 64)
    )
    assert worth(few) > worth(many) + 30.0
    assert scoring(many).waited_s["sandbox"] == pytest.approx(3.0)
    assert passes(few)


AHEAD: dict[str, Any] = {"in_flight_updates": True, "max_staleness": 2, "synchrony": ["asynchronous"]}


def test_a_sample_is_under_way_until_it_is_scored_where_weights_come_in_flight() -> None:
    served: dict[str, Any] = {"reward": "judge", "served": [{"part": "reward", **ONE}], **AHEAD}
    quick = planned(**served)
    slow = planned(**served, reward_calls={"by": "sandbox", "time": "1s", "workers": 4})
    flows = [decided(plan).in_flight_updates for plan in (quick, slow)]
    assert flows[0] is not None
    assert flows[1] is not None
    assert scoring(slow).busy_s["sandbox"] == pytest.approx(64 / 4)
    assert flows[1].period_s == pytest.approx(scoring(slow).busy_s["sandbox"], rel=0.1)  # servers are what binds
    assert flows[1].residence_s == scoring(slow).scored_s > 2 * flows[0].residence_s
    assert worth(slow) >= scoring(slow).busy_s["sandbox"] > 2 * worth(quick)
    said = [fact.what for fact in post_training_facts(slow, decided(slow))]
    assert any("scoring by sandbox binds" in what for what in said)
    for plan in (quick, slow):
        assert passes(plan)
        findings, _ = judged(plan, decided(plan), AtHand())
        assert all(finding.ok and not finding.skipped for finding in findings)


def test_training_that_hands_over_its_batch_waits_for_it_while_generators_go_on() -> None:
    plan = planned(reference="m", served=[{"part": "reference", **ONE}], **AHEAD)
    phases = {phase.name: phase for phase in decided(plan).phases}
    assert phases["score by reference"].duration_s == pytest.approx(scoring(plan).handed_s)
    assert phases["log-probabilities"].start_s == pytest.approx(scoring(plan).handed_s)
    assert scoring(plan).scored_s == scoring(plan).generated_s
    said = [fact.what for fact in post_training_facts(plan, decided(plan))]
    assert any("training waits for 1 engines of the reference, which it hands its batch" in what for what in said)
    assert passes(plan)


OWN: dict[str, Any] = {"algorithm": "ppo", "critic": "judge", "critic_gpus": ["own"], "arrangements": ["disaggregated"]}


def test_a_critic_on_gpus_of_its_own_trains_while_the_actor_does() -> None:
    plan = planned(**OWN)
    phases = {phase.name: phase for phase in decided(plan).phases}
    assert limits(plan, "critic")["gpus"] == "own"
    assert phases["values"].start_s == phases["log-probabilities"].start_s
    assert phases["train critic"].start_s == phases["train actor"].start_s
    ends_s = max((phase.start_s + (phase.duration_s or 0.0)) for phase in phases.values())
    assert ends_s == pytest.approx(worth(plan))
    assert passes(plan)
    said = [fact.what for fact in post_training_facts(plan, decided(plan))]
    assert any("GPUs generate and 1 train the actor, 1 the critic" in what for what in said)
    assert any("actor and critic train at the same time, and take about as long" in what for what in said)
    closed = planned(**{**OWN, "critic_gpus": ["actor"]}).certificate.axes["not in the space"]
    assert "a critic on GPUs of its own: `critic_gpus`" in closed


def test_whose_gpus_the_critic_trains_on_is_searched() -> None:
    times = [worth(planned(**{**OWN, "critic_gpus": gpus})) for gpus in (["actor"], ["own"], ["actor", "own"])]
    assert times[2] == pytest.approx(min(times[:2]))


def test_a_critic_said_to_train_where_it_does_not_is_found() -> None:
    plan = planned(**OWN)
    roles = [
        role.model_copy(update={"limits": {**role.limits, "gpus": "shared"}}) if role.name == "critic" else role
        for role in decided(plan).roles
    ]
    changed = decided(plan).model_copy(update={"roles": tuple(roles)})
    document = changed.model_dump(mode="json", exclude_none=True)
    findings = check_plan(plan.model_copy(update={"decision": document}), changed, proof=True)
    assert "rl.critic_gpus" in {finding.rule for finding in findings if not finding.ok}


def test_a_critic_that_no_gpu_is_left_for_is_refused() -> None:
    document = problem(**OWN)
    document["cluster"]["pools"][0]["gpus_per_node"] = 1
    with pytest.raises(PlannerError, match="`judge` fits on no pool beside one GPU of an actor") as refused:
        solve(resolve_document(given_document(document, "problem.yaml"), Path()))
    assert "critic_gpus: [actor, own]" in refused.value.hint


def test_openrlhf_gives_the_critic_gpus_of_its_own_and_others_do_not() -> None:
    plan = planned(**OWN)
    rows = {row.strip(" \\") for row in emit(plan, decided(plan), "openrlhf")["launch-openrlhf.sh"].splitlines()}
    assert {"--critic.num_nodes 1", "--critic.num_gpus_per_node 1", "--actor.num_gpus_per_node 1"} <= rows
    for target, what in (("verl", "in turn"), ("areal", "actor and critic in turn")):
        with pytest.raises(PlannerError, match=what):
            emit(plan, decided(plan), target)
    beside = planned(**{**OWN, "critic_gpus": ["actor"]})
    with pytest.raises(PlannerError, match="OpenRLHF gives the critic GPUs of its own") as refused:
        emit(beside, decided(beside), "openrlhf")
    assert "critic_gpus: [own]" in refused.value.hint


def test_rollouts_that_carry_samples_over_end_when_enough_are_scored() -> None:
    carried = {"partial_rollouts": True, "over_sampling": 1.5, "max_staleness": 3, "iterations": 2}
    document = problem(reward="judge", served=[{"part": "reward", **ONE}], synchrony=["synchronous"], **carried)
    document["options"]["reward_calls"] = {"by": "sandbox", "time": "500ms", "workers": 8}
    plan = solve(resolve_document(given_document(document | {"engine": {"name": "sglang"}}, "problem.yaml"), Path()))
    partial, served = decided(plan).partial_rollouts, scoring(plan)
    assert partial is not None
    assert partial.oldest >= 1
    assert 64 * 0.5 / 8 <= served.busy_s["sandbox"] <= served.scored_s < worth(plan)
    assert served.waited_s["sandbox"] >= 0.5
    assert passes(plan)
    findings, _ = judged(plan, decided(plan), AtHand())
    assert all(finding.ok for finding in findings)
    script = emit(plan, decided(plan), "slime")["launch-slime.sh"]
    assert {"--partial-rollout", "--rm-type remote_rm"} <= {row.strip(" \\") for row in script.splitlines()}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"served": [{"part": "critic"}]}, "a critic is trained"),
        ({"served": [{"part": "reward"}]}, "a reward is served, and none is named"),
        ({"reference": "m", "served": [{"part": "reference"}] * 2}, "served twice"),
        ({"critic_gpus": ["own"]}, "`grpo` has no critic"),
        ({**OWN, "fused_training": True}, "run through the same GPUs"),
        ({"reference": "m", "served": [{"part": "reference", "pool": "x"}]}, "no pool is called `x`"),
        (
            {"reference": "m", "served": [{"part": "reference"}], "fusion_thresholds": [0.2]},
            "nothing scores that could be",
        ),
        ({"training_precision": ["nvfp4"]}, "no pool's GPUs train in nvfp4"),
        ({"rollout_weights": ["nvfp4"]}, "no pool's GPUs compute with weights in nvfp4"),
        ({"engine_sleep": ["host"], "arrangements": ["disaggregated"]}, "all arrangements are disaggregated"),
        ({"host_bandwidth": "9GB/s", "arrangements": ["disaggregated"]}, "nothing goes to the host"),
        ({"engine_sleep": ["host"], "synchrony": ["stream"]}, "no synchrony is synchronous"),
    ],
)
def test_what_cannot_be_served_or_computed_is_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(PlannerError, match=what):
        planned(**options)


def test_an_engine_that_fits_nowhere_says_what_would() -> None:
    with pytest.raises(Infeasible) as refused:
        planned(reference="m", served=[{"part": "reference", "batch_samples": [100_000]}])
    assert "batch_samples 1" in str(refused.value.conflict)


def test_fewer_bits_generate_faster_and_a_format_that_trains_slower_is_not_taken() -> None:
    def of_8b(**options: Any) -> Envelope:  # noqa: ANN401
        document = problem(training_tp=[4], arrangements=["colocated"], **options)
        document["models"]["m"] = {"name": "Qwen/Qwen3-8B"}
        return solve(resolve_document(given_document(document, "problem.yaml"), Path()))

    plain, generated = of_8b(), of_8b(rollout_weights=["fp8_block"])
    both = of_8b(training_precision=["bf16", "fp8_block"], rollout_weights=["bf16", "fp8_block"])
    generate_s, shorter_s = (decided(envelope).phases[0].duration_s or 0.0 for envelope in (plain, generated))
    assert 0.0 < shorter_s < 0.8 * generate_s
    assert (
        worth(both) == worth(generated) < worth(of_8b(training_precision=["fp8_block"], rollout_weights=["fp8_block"]))
    )
    assert limits(both, "actor").get("precision", "bf16") == "bf16"
    fixed = planned(training_precision=["fp8_block"], rollout_weights=["fp8_block"])
    assert limits(fixed, "actor")["precision"] == limits(fixed, "rollout")["weights"] == "fp8_block"
    assert passes(fixed)


def test_engines_that_sleep_on_the_host_move_their_weights_both_ways() -> None:
    colocated: dict[str, Any] = {"arrangements": ["colocated"], "host_bandwidth": "40GB/s"}
    dropped, kept = (planned(engine_sleep=[sleep], **colocated) for sleep in ("drop", "host"))
    moved_s = 2.0 * turns(kept).engine_bytes / 10e9  # four GPUs share 40 GB/s
    assert turns(kept).moved_s == pytest.approx(turns(dropped).moved_s + moved_s)
    assert worth(kept) == pytest.approx(worth(dropped) + moved_s)
    said = [fact.what for fact in post_training_facts(kept, decided(kept))]
    assert any("weights of engines are on the host" in what for what in said)
    assert turns(planned(engine_sleep=["host", "drop"], **colocated)).engine_weights == "drop"
    assert passes(kept)


def test_hosts_that_move_more_bytes_never_make_iterations_longer() -> None:
    stated = ({"host_bandwidth": size} for size in ("8GB/s", "255GB/s", "257GB/s"))
    slow, near, beyond, unstated = (worth(planned(arrangements=["colocated"], **each)) for each in (*stated, {}))
    assert slow > near >= beyond == unstated


def test_engines_sleep_as_asked_beside_one_step_ahead() -> None:
    plan = planned(engine_sleep=["host"], synchrony=["synchronous", "one_step"], max_staleness=1)
    modes = {str(mode) for mode in plan.certificate.axes["mode"]}
    assert modes >= {"colocated, synchronous, weights of engines on the host", "disaggregated, one step ahead"}
    assert passes(plan)


def test_generators_and_servers_cut_no_blocks_that_share_a_scale() -> None:
    """Experts of Qwen3-235B are 1,536 wide: 192 on each of 8 ranks, of blocks of 128."""
    blocks = find_model("Qwen/Qwen3-235B-A22B-FP8")
    assert [serves(blocks, 8, moe_tp, 8 // moe_tp) for moe_tp in (1, 2, 4, 8)] == [True, True, True, False]
    assert serves(find_model("Qwen/Qwen3-235B-A22B"), 8, 8, 1)
