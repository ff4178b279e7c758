"""An RL run as the problem that it answers, with its degrees fixed, and the plan that it is."""

from typing import TYPE_CHECKING, Any

from planner.errors import PlannerError
from planner.importing.plans.models import model_entry
from planner.importing.plans.question import Question
from planner.importing.plans.serving import cluster_of, resolved_problem
from planner.importing.records import Reading

if TYPE_CHECKING:
    from planner.plan.schema import Envelope

ALGORITHMS = ("ppo", "grpo", "dapo", "gspo", "reinforce_pp", "rloo")
_SPELLINGS = {"reinforce_plus_plus": "reinforce_pp", "reinforce++": "reinforce_pp", "reinforce": "reinforce_pp"}


def rl_problem(reading: Reading, question: Question, *, fixed: bool = True) -> dict[str, Any]:
    """The problem as a document, `fixed` to the artifact's degrees. Raises PlannerError for what nobody said."""
    fields = reading.fields
    if "output_tokens" not in question.workload or "input_tokens" not in question.workload:
        raise PlannerError(
            "the artifact says how long answers may be, not how long they are",
            where="--workload",
            hint="write `--workload 'input=512,output={mean: 2500, cv: 0.9}'`",
        )
    if not isinstance(fields["prompts"], int):
        raise PlannerError(
            "the artifact does not say its prompts an iteration", where="prompts", hint="write `--set prompts=512`"
        )
    stated = _SPELLINGS.get(str(fields["algorithm"]), fields["algorithm"])
    samples = fields["rollout"]["samples"] or 1
    options: dict[str, Any] = {
        "algorithm": stated if stated in ALGORITHMS else "grpo",
        "prompts": fields["prompts"],
        "samples_per_prompt": samples,
        "reference": "policy",
    }
    steps = _steps(fields, samples)
    options |= {"minibatches": steps} if steps else {}
    if isinstance(fields["max_response"], int):
        options["max_output_tokens"] = fields["max_response"]
    if stated == "ppo":
        options["critic"] = "policy"
    if fixed:
        options |= _fixed(fields)
    return {
        "schema": "planner.problem/1",
        "kind": "rl",
        "name": "imported",
        "models": {"policy": model_entry(fields["model"], question.model)},
        "cluster": {"pools": [cluster_of(reading, question)]},
        "workloads": [dict(question.workload)],
        "objective": {"minimize": "iteration_time"},
        **question.costs,
        "options": options,
    }


def _steps(fields: Any, samples: int) -> int | None:  # noqa: ANN401 - plain data
    """Optimizer steps an iteration: minibatches are counted in prompts by verl and AReaL, in samples by the others."""
    minibatch, prompts = fields["minibatch"], fields["prompts"]
    if not isinstance(minibatch, int) or minibatch <= 0:
        return None
    whole = prompts if fields["engine"] in ("verl", "areal") else prompts * samples
    return max(int(whole) // minibatch, 1)


def _fixed(fields: Any) -> dict[str, Any]:  # noqa: ANN401 - plain data
    train, rollout = fields["train"], fields["rollout"]
    known: dict[str, Any] = {"arrangements": ["colocated" if fields["colocated"] else "disaggregated"]}
    known |= {"generation_tp": [rollout["tp"]]} if isinstance(rollout.get("tp"), int) else {}
    known |= {"training_tp": [train["tp"]]} if isinstance(train.get("tp"), int) else {}
    known |= {"training_pp": [train["pp"]]} if isinstance(train.get("pp"), int) else {}
    return known


def plan_of_rl(reading: Reading, question: Question) -> "Envelope":
    """The plan that the artifact is; raises Infeasible where it does not fit, PlannerError for what is open."""
    from planner.api import solve

    return solve(resolved_problem(rl_problem(reading, question)))
