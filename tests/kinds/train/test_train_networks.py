"""Models with towers and generators in training: dearer than their text, on stages or on GPUs of their own."""

import copy
from typing import Any

import pytest
from static_level import solve
from train_problems import every_plan, job, problem
from train_splits import least_and_result, split_s

from planner.check import check_plan
from planner.errors import PlannerError
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.evaluation.evaluate import evaluate
from planner.kinds.train.split.search import ApartSearch
from planner.kinds.train.split.sides import apart_of, joined, sides_of
from planner.plan.schema import Envelope
from planner.progress import Limits
from planner.solvers.modalities.split import Share

IMAGES = [{"share": 1, "images": [{"width": 512, "height": 512, "count": 2}]}]
SOUNDS = [{"share": 1, "audio_s": [30.0, 10.0]}]
SHAPE = {"tp": 4, "pp": 1, "dp": 4, "cp": 1, "micro_batch": 1, "zero_stage": 1, "vpp": 1, "recompute": "selective"}
VL = "Qwen/Qwen3-VL-4B-Instruct"


def small(samples: list[dict[str, Any]], model: str = VL, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    return problem(model, global_batch=16, samples=samples, **{"search": SHAPE, **options})


def step_s(envelope: Envelope) -> float:
    value = envelope.certificate.objective.value
    assert value is not None
    return value


@pytest.mark.parametrize(
    ("model", "text", "samples", "hint"),
    [
        ("Qwen/Qwen3-VL-4B-Instruct", "Qwen/Qwen3-4B", IMAGES, "vision tower"),
        ("Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen3-8B", IMAGES, "vision tower"),
        ("Qwen/Qwen3-VL-32B-Instruct", "Qwen/Qwen3-32B", IMAGES, "vision tower"),
        ("Qwen/Qwen2-Audio-7B", None, SOUNDS, "audio tower"),
    ],
)
def test_a_model_with_a_tower_takes_longer_than_its_text_by_what_the_tower_does(
    model: str, text: str | None, samples: list[dict[str, Any]], hint: str
) -> None:
    """On one stage, micro-batch by micro-batch, and the exchange and update of its own parameters."""
    whole = solve(small(samples, model, frozen=["encoder", "projector"]))
    decided: Any = whole.decision
    (module,) = decided["modules"]
    assert module["name"] == hint
    tower_s = sum(row["forward_s"] + row["backward_s"] for row in module["operators"])
    assert tower_s > 0
    (rank,) = decided["pipeline_ranks"]
    held_s = rank["forward_s"] + rank["backward_input_s"] + rank["backward_weight_s"]
    if text is not None:
        plain: Any = solve(problem(text, global_batch=16, search=SHAPE)).decision
        (alone,) = plain["pipeline_ranks"]
        text_s = alone["forward_s"] + alone["backward_input_s"] + alone["backward_weight_s"]
        assert held_s == pytest.approx(text_s + tower_s, rel=1e-6)
    assert step_s(solve(small(samples, model))) > step_s(whole)


def test_more_images_never_make_a_step_shorter() -> None:
    images = [{"width": 512, "height": 512, "count": count} for count in (1, 2, 4)]
    steps = [step_s(solve(small([{"share": 1, "images": [own]}]))) for own in images]
    assert steps == sorted(steps)
    mean = step_s(solve(small([{"share": 1, "images": images[:1]}, {"share": 1, "images": images[2:]}])))
    assert steps[0] < mean < steps[2]


SPLITS = {
    "vision": small(
        IMAGES,
        nodes=1,
        search={"cp": 1, "tp": [1, 2], "pp": [1, 2], "dp": [1, 2], "micro_batch": 1, "vpp": 1, "zero_stage": [0, 1]},
    ),
    "moved to hosts": small(
        IMAGES,
        nodes=1,
        memory_utilisation=0.3,
        search={
            **{"cp": 1, "tp": 1, "pp": [1, 2], "dp": [2, 4], "micro_batch": 1, "vpp": 1, "zero_stage": 1},
            **{"recompute": ["none", "full"], "offload": ["optimizer", "activations"]},
        },
    ),
    "two of them": small(
        [{"share": 1, "images": [{"width": 224, "height": 224}], "generated": [{"width": 64, "height": 64}]}],
        "DistTrain/MLLM-72B",
        nodes=8,
        search={"cp": 1, "tp": 8, "pp": 4, "dp": 1, "micro_batch": 1, "vpp": 1, "zero_stage": 1, "recompute": "none"},
    ),
}


@pytest.mark.parametrize("case", SPLITS)
def test_the_best_split_is_the_best_of_every_plan_of_the_language_model_with_every_share(case: str) -> None:
    own = apart_of(job(SPLITS[case]))
    result = ApartSearch(own, Limits()).run()
    assert result.best is not None
    assert bool(result.best.choice.offload) == (case == "moved to hosts")
    best = min((split_s(plan, own) for plan in every_plan(own)), default=float("inf"))
    assert best < float("inf")
    assert result.value == pytest.approx(best, rel=1e-9)
    assert result.bound == pytest.approx(best, rel=1e-6)


def test_the_best_split_of_seeded_jobs_is_that_of_all_splits() -> None:
    """Ten of the hundred that `benchmarks/module_splits.py` holds against the same oracle."""
    fitting = 0
    for seed in range(10):
        least, result = least_and_result(seed)
        fitting += least < float("inf")
        assert result.value == (None if least == float("inf") else pytest.approx(least, rel=1e-9))
        assert result.value is None or result.bound == pytest.approx(least, rel=1e-6)
    assert fitting >= 5


def test_networks_apart_and_colocated_are_searched_together() -> None:
    data = small(IMAGES, nodes=1, search={**SHAPE, "tp": [1, 2], "dp": [1, 2, 4]})
    each = []
    for places in ("colocated", "apart", ["colocated", "apart"]):
        data["options"]["search"]["modules"] = places
        each.append(solve(copy.deepcopy(data)))
    assert step_s(each[2]) == pytest.approx(min(step_s(each[0]), step_s(each[1])))
    assert all(finding.ok for envelope in each for finding in checked(envelope))


def checked(envelope: Envelope) -> list[Any]:
    return list(check_plan(envelope, TrainDecision.model_validate(envelope.decision)))


@pytest.fixture(scope="module")
def apart() -> Envelope:
    return solve(small(IMAGES, nodes=1, search={**SHAPE, "tp": 1, "dp": 4, "modules": "apart"}))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"dp": 3}, "train.module_dp"),
        ({"first_rank": 0}, "train.module_ranks"),
        ({"memory": None}, "train.module_memory"),
        ({"place": "colocated"}, "train.modules"),
        ({"tokens": 7.0}, "restated.decision"),
    ],
)
def test_what_a_plan_says_of_its_modules_is_checked(apart: Envelope, change: dict[str, Any], rule: str) -> None:
    decision: Any = copy.deepcopy(apart.decision)
    decision["modules"][0].update(change)
    failed = {finding.rule for finding in checked(apart.model_copy(update={"decision": decision})) if not finding.ok}
    assert rule in failed


def test_given_shares_are_priced_as_chosen_ones_and_others_are_no_better() -> None:
    own = apart_of(job(SPLITS["vision"]))
    best = ApartSearch(own, Limits()).run().best
    assert best is not None
    alone = evaluate(best.choice, best.counts_S)
    sides = sides_of(alone.choice.table)
    again = joined(alone, sides, tuple(Share(side.tp, side.dp) for side in best.sides))
    assert again is not None
    assert again.step_s == pytest.approx(best.step_s)
    assert joined(alone, sides, (Share(1, own.num_gpus),)) is None


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (VL, {"samples": SOUNDS}, "no audio tower"),
        (VL, {"samples": [{"share": 1, "images": [{"width": 9000, "height": 9000}]}]}, "become .* tokens"),
        (VL, {"samples": [{"share": 1}]}, "without images"),
        (
            VL,
            {
                "samples": [{"share": 1, "images": [{"width": 9000, "height": 9000, "count": 2}]}],
                "sequence_tokens": 262144,
                "search": {"modules": "apart"},
            },
            "the vision tower holds .* room for",
        ),
        (VL, {"samples": IMAGES, "search": {"modules": "apart"}, "limits": {"gpus": 1}}, "1 GPUs for a language model"),
        (VL, {"samples": [{"share": 1, "generated": [{"width": 64, "height": 64}]}]}, "no generator"),
        (VL, {"samples": IMAGES, "frozen": ["generator"]}, "trains no generator"),
        ("google/gemma-4-26B-A4B", {"samples": IMAGES}, "no vision tower|has no cost"),
        ("Qwen/Qwen3-8B", {"samples": IMAGES}, "no vision tower"),
        (VL, {"frozen": ["encoder"]}, "without data"),
        (VL, {"samples": IMAGES, "lengths": [{"tokens": 4096, "share": 1}]}, "several lengths"),
    ],
)
def test_data_that_the_model_or_the_sequence_has_no_room_for_is_one_clear_error(
    model: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(PlannerError, match=says) as raised:
        solve(problem(model, global_batch=16, **{"search": SHAPE, **options}))
    assert any(place in str(raised.value) for place in ("options", "models", "limits"))
    assert "hint" in str(raised.value)


def test_an_engine_that_trains_no_towers_is_refused_by_name() -> None:
    data = small(IMAGES) | {"engine": {"name": "torchtitan"}}
    with pytest.raises(PlannerError, match="trains no towers"):
        solve(data)
