"""Images and sounds of requests: what towers take, where it is planned, simulated, bounded, emitted and refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serve_problems import broken_rules, small, value_of
from static_level import solve

from planner.costs.operators.kernels import Collective, demand
from planner.costs.operators.towers import TowerLoad, tower_operators
from planner.costs.operators.work import Shards, Work
from planner.costs.serving.media import Encoding, cut_by_ranks, encode_times
from planner.costs.training.modalities.networks import Trained, tower_flop
from planner.documents.read import parse_document
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.fleet.options import with_files
from planner.kinds.serve.bounds.bound import proven_bound
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.simulated.load_streams import drawn
from planner.kinds.serve.steady.search import prepare
from planner.load.problems import resolve_document
from planner.models.architecture import Architecture
from planner.models.library import find_model
from planner.plan.schema import Envelope
from planner.problem.encoded import Media
from planner.problem.media import ListedAmounts, MomentAmounts, distribution, listed
from planner.problem.trace_rows import trace_rows
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import Traffic, simulate_plan
from planner.simulate.requests.stream import Requests, together
from planner.simulate.run.engine import simulate
from planner.solvers.workflow.encode_pools import encode_s

SEEING, HEARING = find_model("Qwen/Qwen3-VL-4B-Instruct"), find_model("Qwen/Qwen2-Audio-7B-Instruct")
VISION, EAR = SEEING.encoders[0], HEARING.encoders[0]
GRID = StepGrid.affine(0.01, token_s=1e-4, most_sequences=8)
PICTURES: dict[str, Any] = {
    "models.llama": {"name": "Qwen/Qwen3-VL-4B-Instruct"},
    "workloads.0.slo": {"ttft": "1s", "tpot": "20ms"},
    "workloads.0.images": {"width": 1024, "height": 768},
    "options.modes": ["colocated"],
}
TEXT = {name: value for name, value in PICTURES.items() if "images" not in name}


@pytest.fixture(scope="module")
def pictured() -> Envelope:
    return solve(small(PICTURES))


@pytest.mark.parametrize("load", [TowerLoad(8192.0, 4096.0), TowerLoad(1500.0, 1500.0)])
@pytest.mark.parametrize("arch", [SEEING, HEARING], ids=lambda arch: arch.name)
def test_a_tower_has_the_operations_of_its_forward_pass(arch: Architecture, load: TowerLoad) -> None:
    (tower,) = arch.encoders
    operators = tower_operators(arch, tower, Shards.of(1.0), load)
    flop = sum(float(demand(op).flop[0]) * float(op.count) for op in operators if not isinstance(op, Collective))
    assert flop == pytest.approx(tower_flop(tower, load, Trained(False, False)), rel=0.01)


def test_ranks_share_out_vision_towers_whose_heads_they_divide() -> None:
    tp = np.array([1.0, 2.0, 16.0, 32.0])
    assert cut_by_ranks(VISION, tp).tolist() == [True, True, True, False]
    assert not cut_by_ranks(EAR, tp).any()
    costs = prepare(small(PICTURES)).costs_of_pool["llama", 0].costs
    media = prepare(small(PICTURES)).resolved.workloads[0].media
    assert media is not None
    whole, halved, uncut = encode_times(SEEING, costs.pricer, Shards.of([1.0, 2.0, 32.0]), media).mean.device_s
    assert 0.5 * whole < halved < whole
    assert uncut == whole


def test_encoding_a_request_is_affine_in_its_tokens_between_one_mean_request_and_two() -> None:
    setting = prepare(small(PICTURES))
    costs, media = setting.costs_of_pool["llama", 0].costs, setting.resolved.workloads[0].media
    assert media is not None
    assert media.tokens == (3072.0,)  # 64 x 48 patches
    assert media.prompt_tokens == 768.0
    shards = Shards.of(1.0)
    times, twice = (encode_times(SEEING, costs.pricer, shards, replace(media, tokens=(n,))) for n in (3072.0, 6144.0))
    assert times.of_tokens(np.array([0.0, 3072.0, 6144.0])).tolist() == pytest.approx(
        [0.0, times.mean.device_s[0], twice.mean.device_s[0]]
    )
    assert encode_s(np.array([2.0]), 3.0, 4.0).tolist() == [11.0]  # the formula of pools that encode


def test_a_step_encodes_in_proportion_to_the_prompt_tokens_that_it_prefills() -> None:
    setting = prepare(small(PICTURES))
    costs, target = setting.costs_of_pool["llama", 0].costs, setting.targets[0]
    assert target.encoding is not None
    mean_s = encode_times(SEEING, costs.pricer, Shards.of(1.0), target.encoding.media).mean.device_s[0]
    both = replace(costs, encoding=target.encoding)
    for tokens, wanted in ((2000.0, 1.0), (4000.0, 2.0), (500.0, 0.25)):
        shards, work = Shards.of([1.0, 1.0]), Work.of([tokens, 0.0], [1.0, 0.0], 0.0, 8.0, 100.0)
        added = both.step(shards, work).seconds - costs.step(shards, work).seconds
        assert added.tolist() == pytest.approx([wanted * mean_s, 0.0])
    staged = Shards.of(1.0, 2.0)
    assert Encoding(target.encoding.media, 2000.0).step(SEEING, costs.pricer, staged, Work.prefill(2000.0)).device_s[
        0
    ] == pytest.approx(2.0 * mean_s)  # both stages wait for the first


def test_a_plan_says_what_encoding_takes_and_keeps_its_claims(pictured: Envelope) -> None:
    setting = prepare(small(PICTURES))
    costs, media = setting.costs_of_pool["llama", 0].costs, setting.resolved.workloads[0].media
    assert media is not None
    (role,) = ServeDecision.model_validate(pictured.decision).roles
    tp = float(role.parallelism.tp)
    wanted = encode_times(SEEING, costs.pricer, Shards.of(tp), media).mean.device_s[0]
    assert value_of(pictured, "encode_s", "chat") == pytest.approx(wanted)
    assert any("vision tower" in each and "one run" in each for each in pictured.assumptions)
    assert pictured.evidence.steps is not None
    assert "vision_tower" in pictured.evidence.steps["colocated"].seconds
    assert broken_rules(pictured) == []
    forged = pictured.model_copy(
        update={
            "predictions": tuple(
                p.model_copy(update={"value": 0.5 * p.value}) if p.metric == "encode_s" else p
                for p in pictured.predictions
            )
        }
    )
    assert any("restated" in finding.rule for finding in broken_rules(forged))


def test_vllm_is_told_how_many_images_a_request_has(
    pictured: Envelope,
) -> None:
    def told(plan: Envelope) -> str:
        files = emit(plan, ServeDecision.model_validate(plan.decision), "vllm")
        return " ".join(str(content) for content in files.values())

    assert """--limit-mm-per-prompt '{"image": 1}'""" in told(pictured)
    assert "--mm-encoder-tp-mode" not in told(pictured)
    assert "--limit-mm-per-prompt" not in told(solve(small(TEXT)))


def test_images_take_requests_from_what_gpus_serve_and_more_images_more(pictured: Envelope) -> None:
    more = solve(small(PICTURES | {"workloads.0.images": {"count": 2, "width": 1024, "height": 768}}))
    served = [value_of(plan, "requests_per_s", "chat") for plan in (solve(small(TEXT)), pictured, more)]
    assert served == sorted(served, reverse=True)
    assert len(set(served)) == 3


def test_an_engine_encodes_in_the_step_that_a_prompt_begins_with_what_caches_do_not_spare() -> None:
    engine = Instance(GRID, 40_000, token_budget=512, most_sequences=8, encode_s=((0.5, 0.001),))
    alone = replace(Requests.open_stream([0.0], [400], [3]), encoded=np.array([200.0]))
    first, plain = (simulate(Fleet((engine,)), each) for each in (alone, replace(alone, encoded=np.zeros(1))))
    assert first.ttft_s[0] - plain.ttft_s[0] == pytest.approx(0.7)
    assert first.tpot_s[0] == pytest.approx(plain.tpot_s[0])
    half = simulate(Fleet((engine,)), alone.with_hits(0.5))
    assert half.ttft_s[0] == pytest.approx(0.01 + 200e-4 + 0.35)
    staged = simulate(Fleet((replace(engine, stages=2),)), alone)
    assert staged.ttft_s[0] == pytest.approx(plain.ttft_s[0] + 0.7)  # stages wait for it side by side


def test_workloads_keep_what_they_bring_when_they_are_simulated_together() -> None:
    engine = Instance(GRID, 40_000, token_budget=512, most_sequences=8, encode_s=((0.0, 0.0), (0.1, 0.0)))
    media = Media(VISION, (40.0,), (1.0,), 40.0, 10.0)
    both = together(
        [Requests.open_stream([0.0], [100], [1]), Requests.open_stream([9.0], [100], [1]).with_media(media)]
    )
    assert simulate(Fleet((engine,)), both).ttft_s.tolist() == pytest.approx([0.02, 0.12])


def test_the_longest_prompts_bring_most_and_the_mean_is_that_of_the_workload() -> None:
    media = Media(VISION, (0.0, 100.0, 300.0), (0.25, 0.5, 0.25), 100.0, 31.25)
    prompts = np.random.default_rng(0).integers(1, 10**6, 400)
    tokens = media.of_prompts(prompts)
    assert tokens.mean() == pytest.approx(media.mean_tokens)
    assert (np.diff(tokens[np.argsort(prompts)]) >= 0).all()
    assert media.some == 0.75


def test_amounts_of_moments_and_traces_have_the_mean_of_what_they_stand_for() -> None:
    drawn_amounts = distribution(MomentAmounts(mean=3.0, cv=1.5))
    mean = np.dot(drawn_amounts.values, drawn_amounts.shares)
    spread = np.dot(np.square(drawn_amounts.values), drawn_amounts.shares) / mean**2 - 1.0
    assert mean == pytest.approx(3.0)
    assert 0.75 * 1.5**2 < spread < 1.5**2
    few, many = listed(np.array([0.0, 2.0, 2.0, 1.0])), listed(np.arange(1000.0))
    assert few == ListedAmounts(values=(0.0, 1.0, 2.0), shares=(0.25, 0.25, 0.5))
    assert len(many.values) == 64
    assert np.dot(many.values, many.shares) == pytest.approx(499.5)


def test_media_of_a_trace_are_kept_by_the_plan_as_their_distribution(tmp_path: Path) -> None:
    (tmp_path / "seen.csv").write_text("images\n0\n1\n1\n2\n")
    edited = small(PICTURES).problem.model_dump(mode="json", by_alias=True, exclude_none=True)
    edited["workloads"][0]["images"]["count"] = {"trace": "seen.csv"}
    resolved = resolve_document(parse_document(json.dumps(edited), "problem.json"), tmp_path)
    plan = solve(resolved)
    kept: Any = plan.inputs["workloads"]
    assert kept[0]["images"]["count"] == {"values": [0.0, 1.0, 2.0], "shares": [0.25, 0.5, 0.25]}
    assert broken_rules(plan) == []


def test_a_line_of_a_trace_that_is_no_request_is_named(tmp_path: Path) -> None:
    (tmp_path / "seen.jsonl").write_text('{"images": 1}\n\n5\n')
    with pytest.raises(PlannerError, match=r"line 3 .* is no JSON object"):
        list(trace_rows(tmp_path / "seen.jsonl", "workloads.0.images"))


def test_files_of_media_are_found_from_problems_of_jobs() -> None:
    seen = {"images": {"count": {"trace": "seen.csv"}, "tokens": 4}, "audio_s": {"trace": "heard.csv"}, "name": "x"}
    (placed,) = with_files({"workloads": [seen]}, lambda name: f"jobs/{name}")["workloads"]
    assert placed["images"] == {"count": {"trace": "jobs/seen.csv"}, "tokens": 4}
    assert (placed["audio_s"], placed["name"]) == ({"trace": "jobs/heard.csv"}, "x")


def test_a_plan_is_simulated_with_what_its_requests_bring(pictured: Envelope, tmp_path: Path) -> None:
    decision = ServeDecision.model_validate(pictured.decision)
    own = simulate_plan(pictured, decision, Traffic(first=50), Policies())
    assert own.result.requests.encoded is not None
    assert own.result.requests.encoded.tolist() == [3072.0] * 50
    bare = tmp_path / "bare.csv"
    bare.write_text("arrival_s,input_tokens,output_tokens\n0.0,1000,5\n99.0,1000,5\n")
    traced = simulate_plan(pictured, decision, Traffic(str(bare)), Policies("least-loaded")).result
    inputs = json.loads(json.dumps(pictured.inputs))
    del inputs["workloads"][0]["images"]
    text = pictured.model_copy(update={"inputs": inputs})
    plain = simulate_plan(text, decision, Traffic(str(bare)), Policies("least-loaded")).result
    added = traced.ttft_s - plain.ttft_s
    assert added.tolist() == pytest.approx([value_of(pictured, "encode_s", "chat")] * 2)


def test_the_bound_counts_what_engines_encode() -> None:
    edits = {"workloads.0.slo": {"ttft": "1s"}, "objective": {"minimize": "gpus"}, "cluster.pools.0.gpus": 64}
    edits |= {"workloads.0.load": {"rate_per_s": 400.0}, "options.tp": [1], "options.max_batch": [64]}
    text, pictures = (proven_bound(prepare(small(base | edits))).value for base in (TEXT, PICTURES))
    assert text is not None
    assert pictures is not None
    assert pictures > text


def test_draws_bring_the_same_at_any_rate() -> None:
    (draws,) = drawn(prepare(small(PICTURES)), (1.0,), 20, 0, 1).draws
    encoded = draws.requests(3.0).encoded
    assert encoded is not None
    assert encoded.tolist() == [3072.0] * 20


@pytest.mark.parametrize(
    ("edits", "what"),
    [
        ({"workloads.0.images": {"tokens": 3000}}, "become 3,000 tokens on average, and its prompt has 2,000"),
        ({"workloads.0.images": {"width": 64}}, "either a size or tokens"),
        ({"workloads.0.images": {"width": 64, "height": 64, "tokens": 4}}, "either a size or tokens"),
        ({"workloads.0.images": {"tokens": 4, "count": {"values": [1], "shares": [0.5]}}}, "add up to 0.5"),
        ({"workloads.0.images": {"tokens": 4, "count": {"values": [0], "shares": [1]}}}, "no request has any"),
        ({"workloads.0.images": {"tokens": 4, "count": {"trace": "none.csv"}}}, "cannot read trace"),
        ({"workloads.0.audio_s": 3}, "has images or sounds, not both"),
        ({"workloads.0.images": None, "workloads.0.audio_s": 3}, "has no audio tower"),
        ({"models.llama": {"name": "Qwen/Qwen3-8B"}}, "has no vision tower"),
    ],
)  # fmt: skip
def test_what_cannot_be_encoded_is_refused(edits: dict[str, Any], what: str) -> None:
    with pytest.raises(PlannerError, match=what):
        small(PICTURES | edits)
