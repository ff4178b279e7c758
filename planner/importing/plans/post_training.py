"""An RL run as the problem that it answers, with its degrees fixed, and the plan that it is."""

from typing import TYPE_CHECKING, Any

from planner.costs.operators.work import Shards
from planner.costs.rates.calibration import load_calibration
from planner.engines.serving.registry import SERVING_ENGINES
from planner.errors import PlannerError
from planner.importing.formats.megatron import told_dropout
from planner.importing.plans.models import model_entry
from planner.importing.plans.question import Question
from planner.importing.plans.serving import cluster_of, resolved_problem
from planner.importing.plans.shapes import share_of_device
from planner.importing.records import UNPRICED, Reading
from planner.kinds.rl.curves.generation import PREFILL_TOKENS
from planner.kinds.rl.options import RlOptions

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
    }
    if reading.beside.get("reference", True):
        options["reference"] = "policy"
    if reading.beside.get("max_running"):
        options["max_running"] = reading.beside["max_running"]
    steps = _steps(fields, samples)
    options |= {"minibatches": steps} if steps else {}
    if isinstance(fields["max_response"], int):
        options["max_output_tokens"] = fields["max_response"]
    if stated == "ppo":
        options["critic"] = "policy"
    if fixed:
        options |= _fixed(fields)
    document = {
        "schema": "planner.problem/1",
        "kind": "rl",
        "name": "imported",
        "models": {"policy": model_entry(fields["model"], question.model)},
        "cluster": {"pools": [cluster_of(reading, question)]},
        "workloads": [dict(question.workload)],
        "objective": {"minimize": "iteration_time"},
        **_engine(reading),
        **question.costs,
        "options": options,
    }
    return _with_memory(document, reading)


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
    for name in ("pp", "cp", "ep"):
        known |= {f"training_{name}": [train[name]]} if isinstance(train.get(name), int) else {}
    return known


def _engine(reading: Reading) -> dict[str, Any]:
    """The engine of rollouts, where it is stated."""
    name = reading.fields["rollout"].get("engine")
    return {"engine": {"name": name}} if name in SERVING_ENGINES else {}


def _with_memory(document: dict[str, Any], reading: Reading) -> dict[str, Any]:
    """The problem with the share of a device that the engine of rollouts may use, which it is told in its own terms."""
    stated = reading.beside.get("memory_utilisation")
    if stated is None:
        return document
    resolved = resolved_problem(document)
    engine, gpu, arch = resolved.problem.engine, resolved.pools[0].node.accelerator, resolved.models["policy"]
    overheads = load_calibration(resolved.problem.costs.calibration).engine(engine.name, engine.version, arch.name)
    tp, running = reading.fields["rollout"].get("tp") or 1, RlOptions.model_validate(document["options"]).max_running
    step = (float(PREFILL_TOKENS), float(running), overheads.workspace_bytes)
    share = share_of_device(engine.name, stated, arch, gpu, Shards.of(tp, 1, 1, tp, 1), step)
    return {**document, "engine": {**document.get("engine", {}), "memory_utilisation": share}}


def rl_notes(reading: Reading) -> list[str]:
    """What the plan of a run takes for what the artifact has."""
    beside = reading.beside
    notes = [] if "reference" in beside else ["a reference model is taken for granted"]
    waits = beside.get("reference_waits_for")
    if waits:
        notes.append(f"whether a reference model is loaded waits for {', '.join(waits)}: it is taken for granted")
    unpriced = list(beside.get(UNPRICED, ()))
    if beside.get("dropout"):
        unpriced.append(told_dropout(beside["dropout"]))
    if beside.get("epochs") is not None and beside["epochs"] > 1:
        unpriced.append(f"{beside['epochs']} epochs over the samples of an iteration")
    if unpriced:
        notes.append(f"not priced, and not in the plan: {', '.join(unpriced)}")
    return notes


def plan_of_rl(reading: Reading, question: Question) -> "Envelope":
    """The plan that the artifact is; raises Infeasible where it does not fit, PlannerError for what is open."""
    from planner.api import solve

    return solve(resolved_problem(rl_problem(reading, question)))
