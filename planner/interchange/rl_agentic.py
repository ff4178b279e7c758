"""File format of agentic RL problems and plans (docs/rl-problems.md), read and written."""

import json
from collections.abc import Iterator
from dataclasses import replace
from math import inf, isinf
from typing import Any

import numpy as np

from planner.documents.read import Document
from planner.errors import PlannerError
from planner.interchange.rl_plan import (
    FILE,
    certified,
    envelope_of,
    group_of,
    groups_document,
    is_envelope,
    measured_problem,
    training_document,
    training_of,
)
from planner.interchange.rl_problem import placed_errors, read_curves, shared_options, stated
from planner.kinds.rl.agents.stated import DISPATCHES as AGENT_DISPATCHES
from planner.kinds.rl.agents.stated import agentic_problem
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.planned import agentic_plan_of
from planner.plan.schema import Envelope
from planner.rl.agentic import (
    AgenticDispatch,
    AgenticPlan,
    AgenticProblem,
    Priority,
    check_agentic,
    evaluate_agentic,
    require_divisible,
)
from planner.rl.document_part import DocumentPart
from planner.rl.plan import Placement, RlMode
from planner.rl.search.search import RlSolution
from planner.rl.trajectories import Trajectories

DISPATCHES: tuple[AgenticDispatch, ...] = ("fifo", "predicted_longest_first", "assigned")
PRIORITIES: tuple[Priority, ...] = ("fifo", "longest_first")
PLACEMENTS: tuple[Placement, ...] = ("colocated", "disaggregated", "hybrid")


def is_agentic(document: Document) -> bool:
    """Whether the document states an agentic problem."""
    return isinstance(document.data, dict) and document.data.get("stage") == "agentic"


def read_agentic(document: Document) -> AgenticProblem:
    """The agentic problem in `document`. Raises PlannerError naming file, line and field, with a value that works."""
    top = DocumentPart(document, document.data)
    workload, rollout, allowed = top.part("workload"), top.part("rollout"), top.part("allowed")
    batches = tuple(_batch(part) for part in workload.parts("batches"))
    for batch in batches:
        where = f"{document.where(('workload', 'minibatches'))}: workload.minibatches"
        require_divisible(batch.size, workload.count("minibatches"), where)
    plain = tuple(batch.whole for batch in batches)
    curves = replace(read_curves(top, plain, full=True), modes=_modes(allowed))
    move = rollout.part("move") if "move" in rollout else None
    problem = AgenticProblem(
        curves=curves,
        batches=batches,
        keep_kv=rollout.data.get("keep_kv", True) is not False,
        move_s=move.number("base_s", 0.0) if move else 0.0,
        move_token_s=move.number("token_s", 0.0) if move else 0.0,
        dispatches=tuple(allowed.some_of("dispatch", DISPATCHES)),
        priorities=tuple(allowed.some_of("priority", PRIORITIES)),
        move_thresholds=_thresholds(allowed),
    )
    with placed_errors(document):
        check_agentic(problem)
    return problem


def rl_agentic_problem(document: Document) -> dict[str, Any]:
    """The problem of kind `rl` that `document` states; raises PlannerError as `read_agentic` does."""
    given = read_agentic(document)
    curves = given.curves
    dispatches = {dispatch: name for name, dispatch in AGENT_DISPATCHES.items()}
    agents = {
        "batches": [{"trajectories": list(_records(batch))} for batch in given.batches],
        "staleness": sorted({mode.staleness for mode in curves.modes}),
        "dispatches": [dispatches[dispatch] for dispatch in given.dispatches],
        "priorities": list(given.priorities),
        "move_thresholds": [None if isinf(factor) else factor for factor in given.move_thresholds],
        "keep_kv": given.keep_kv,
        "move_s": given.move_s,
        "move_token_s": given.move_token_s,
    }
    return {**stated(document, curves), "options": {**shared_options(curves), "agents": agents}}


def _records(batch: Trajectories) -> Iterator[dict[str, Any]]:
    """Trajectories as a problem of kind `rl` states them: nothing follows on the last turn."""
    for prompt, start, end in zip(batch.prompt_N.tolist(), batch.first_N[:-1], batch.first_N[1:], strict=True):
        yield {
            "input_tokens": prompt,
            "output_tokens": batch.output_T[start:end].tolist(),
            "wait_s": batch.tool_s_T[start : end - 1].tolist(),
            "observation_tokens": batch.observation_T[start : end - 1].tolist(),
            "predicted": batch.predicted_T[start:end].tolist(),
        }


def _modes(allowed: DocumentPart) -> tuple[RlMode, ...]:
    placements = allowed.some_of("placement", PLACEMENTS)
    steps = sorted(set(allowed.counts("staleness", least=0).tolist())) if "staleness" in allowed else [0]
    modes = [RlMode(placement, "sync") for placement in placements if 0 in steps]
    if "disaggregated" in placements:
        modes += [RlMode("disaggregated", "k_step_async", step) for step in steps if step > 0]
    if not modes:
        raise allowed.refuse(
            f"`{placements[0]}` takes turns on the same GPUs, staleness {steps[0]} asks for training beside generation",
            "allow staleness 0, or the placement `disaggregated`",
            "staleness",
        )
    return tuple(modes)


def _thresholds(allowed: DocumentPart) -> tuple[float, ...]:
    """null stands for never."""
    if "move_threshold" not in allowed:
        return (inf,)
    values = allowed.data["move_threshold"]
    if not isinstance(values, list) or not values:
        raise allowed.refuse("must be a list", "write `[null, 1.2]`", "move_threshold")
    numbers = [inf if value is None else value for value in values]
    for index, value in enumerate(numbers):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 1:
            raise allowed.refuse(f"must be at least 1, or null, found `{value}`", "write 1.2", "move_threshold", index)
    return tuple(sorted({float(value) for value in numbers}, reverse=True))


def _batch(part: DocumentPart) -> Trajectories:
    prompts, first, turns, predicted = [], [0], [], []
    for trajectory in part.parts("trajectories"):
        prompts.append(trajectory.count("prompt", least=0))
        own = [_turn(trajectory, index) for index in range(_length(trajectory))]
        turns += own
        first.append(len(turns))
        left = np.cumsum([turn[0] for turn in own][::-1])[::-1].astype(float)
        given = trajectory.numbers("predicted") if "predicted" in trajectory else left
        if len(given) != len(own):
            raise trajectory.refuse(
                f"{len(given)} predictions for {len(own)} turns", "give the tokens left before each turn", "predicted"
            )
        predicted += given.tolist()
    output, tool_s, observation = (np.array(column) for column in zip(*turns, strict=True))
    return Trajectories(
        np.array(prompts, np.int64),
        np.array(first, np.int64),
        output.astype(np.int64),
        tool_s.astype(float),
        observation.astype(np.int64),
        np.array(predicted, float),
    )


def _length(trajectory: DocumentPart) -> int:
    value = trajectory.data.get("turns")
    if not isinstance(value, list) or not value:
        raise trajectory.refuse("needs at least one turn", "write `turns: [[output, tool_s, observation]]`", "turns")
    return len(value)


def _turn(trajectory: DocumentPart, index: int) -> tuple[int, float, int]:
    turn = DocumentPart(trajectory.document, dict(enumerate(trajectory.data["turns"])), (*trajectory.path, "turns"))
    values = turn.numbers(index)
    if len(values) != 3 or values[0] < 1 or min(values) < 0 or values[0] % 1 or values[2] % 1:
        raise turn.refuse(
            "is no turn", "write [output tokens, tool seconds, observation tokens], such as [120, 0.5, 30]", index
        )
    return int(values[0]), float(values[1]), int(values[2])


def agentic_plan_document(plan: AgenticPlan) -> dict[str, object]:
    """`plan` as a JSON document."""
    document: dict[str, object] = {
        "placement": plan.mode.placement,
        "staleness": plan.mode.staleness,
        "gen": groups_document(plan.groups),
        "dispatch": plan.dispatch,
        "priority": plan.priority,
        "move_threshold": None if plan.move_threshold == inf else plan.move_threshold,
        "train": training_document(plan.training),
    }
    if plan.dispatch == "assigned":
        document["assignment"] = [list(workers) for workers in plan.assignment]
    return document


def read_agentic_plan(document: Document, problem: AgenticProblem) -> AgenticPlan:
    """The plan in `document`, a plan of `planner solve` too, on the curves of `problem`.

    Raises PlannerError for what there is no curve for.
    """
    if is_envelope(document):
        return agentic_plan_of_envelope(envelope_of(document), problem)
    top = DocumentPart(document, document.data)
    steps = top.count("staleness", 0, least=0)
    groups = tuple(group_of(part, problem.curves) for part in top.parts("gen"))
    dispatch = top.one_of("dispatch", DISPATCHES)
    assignment: tuple[tuple[int, ...], ...] = ()
    if dispatch == "assigned":
        rows = top.data.get("assignment")
        if not isinstance(rows, list):
            raise top.refuse("`assignment` is missing", "give each trajectory of each batch its worker")
        batches = DocumentPart(document, dict(enumerate(rows)), ("assignment",))
        assignment = tuple(tuple(batches.counts(batch, least=0).tolist()) for batch in range(len(rows)))
    return AgenticPlan(
        RlMode(top.one_of("placement", PLACEMENTS), "k_step_async" if steps else "sync", steps),
        groups,
        training_of(top.part("train"), problem.curves),
        dispatch,
        top.one_of("priority", PRIORITIES, "fifo"),
        top.number("move_threshold", inf, least=1.0) if "move_threshold" in top else inf,
        assignment,
    )


def agentic_plan_of_envelope(envelope: Envelope, given: AgenticProblem) -> AgenticPlan:
    """The plan of an envelope on the curves of its problem; raises PlannerError where the problem has no such plan."""
    decision = RlDecision.model_validate(envelope.decision)
    agents = agentic_plan_of(decision, given.curves)
    if agents is None:
        raise PlannerError("is no plan of this problem", where="decision.roles", hint="solve the problem again")
    return agents


def agentic_solution(envelope: Envelope, given: AgenticProblem, gap: float = 0.0) -> RlSolution[AgenticPlan]:
    """The plan of an envelope, with what its certificate proves within a share `gap`."""
    plan = agentic_plan_of_envelope(envelope, given)
    return certified(envelope, plan, evaluate_agentic(given, plan), gap)


def agentic_plan_files(envelope: Envelope) -> dict[str, str]:
    """`plan.json`: a plan of agents in the form of the benchmark."""
    searched, options = measured_problem(envelope)
    if options.agents is None:
        raise PlannerError("the problem has no agents", where="inputs.options", hint="solve the problem again")
    plan = agentic_plan_of_envelope(envelope, agentic_problem(searched, options.agents))
    return {FILE: json.dumps(agentic_plan_document(plan), indent=2) + "\n"}
