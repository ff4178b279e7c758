"""Drafts in rollouts: what a step yields, what a drafter keeps of a GPU, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from planner.documents.read import given_document
from planner.errors import PlannerError
from planner.kinds.rl.formulate import FormulatedRl, formulate
from planner.kinds.rl.setting import read_setting
from planner.load.problems import resolve_document

STATED = {"method": "stated", "draft_step": "0s", "draft_tokens": [3]}


def formulated(speculation: dict[str, Any] | None, **options: Any) -> FormulatedRl:  # noqa: ANN401
    document = {
        "schema": "planner.problem/1",
        "kind": "rl",
        "models": {"m": {"name": "Qwen/Qwen3-8B"}, "small": {"name": "Qwen/Qwen3-0.6B"}},
        "cluster": {"pools": [{"gpu": "h100_sxm", "nodes": 2}]},
        "workloads": [{"model": "m", "input_tokens": 256, "output_tokens": {"mean": 500, "cv": 0.5}}],
        "objective": {"minimize": "iteration_time"},
        "options": {
            "algorithm": "grpo",
            "actor": "m",
            "prompts": 8,
            "iterations": 1,
            "generation_tp": [1, 8],
            "training_tp": [8],
            "training_pp": [1],
            "training_cp": [1],
            **({"speculation": speculation} if speculation else {}),
            **options,
        },
    }
    return formulate(read_setting(resolve_document(given_document(document, "problem"), Path())))


def step_s(told: FormulatedRl, sequences: int = 1) -> float:
    """Of one sequence's token on a replica of one GPU, around the mean context."""
    curve = next(option.curve for option in told.problem.generation if option.gpus == 1)
    return curve.step_s + curve.sequence_s * sequences + curve.token_s * sequences * 500


def test_drafts_shorten_a_token_by_as_many_as_a_step_yields() -> None:
    plain = step_s(formulated(None))
    right, often, never = (step_s(formulated({**STATED, "acceptance": share})) for share in (1.0, 0.7, 0.0))
    assert right < plain / 3
    assert right < often < plain
    assert right == pytest.approx(never / 4)
    assert never == pytest.approx(plain, rel=0.1)  # one sequence: weights are read once, fits are some percent off


def test_a_drafter_takes_memory_from_the_kv_cache() -> None:
    def kv_tokens(told: FormulatedRl) -> list[int]:
        return [option.curve.kv_tokens for option in told.problem.generation if option.pp == 1]

    small = {"method": "model", "model": "small", "acceptance": 0.7, "draft_tokens": [2]}
    plain, drafted = kv_tokens(formulated(None)), kv_tokens(formulated(small))
    assert len(plain) == len(drafted) > 0
    assert all(less < more for less, more in zip(drafted, plain, strict=True))


def test_drafts_have_no_pipeline() -> None:
    assert any(option.pp > 1 for option in formulated(None).problem.generation)
    assert all(option.pp == 1 for option in formulated({**STATED, "acceptance": 0.7}).problem.generation)


@pytest.mark.parametrize(
    ("speculation", "options", "said"),
    [
        ({**STATED, "acceptance": 0.7, "draft_tokens": [1, 2]}, {}, "2 numbers of drafts"),
        ({**STATED, "acceptance": 0.7, "draft_tokens": [0]}, {}, "0 drafts in a step"),
        ({"method": "mtp", "acceptance": 0.7, "draft_tokens": [1]}, {}, "no prediction heads"),
        (None, {"generation_tp": [3]}, "no replica of generation .* has generation_tp 3"),
        (None, {"training_ep": [8]}, "no model has experts to spread"),
    ],
)
def test_what_no_generator_can_do_is_refused(
    speculation: dict[str, Any] | None, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(PlannerError, match=said):
        formulated(speculation, **options)
