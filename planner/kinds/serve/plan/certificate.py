"""The certificate of a serving plan: space searched, rules that pruned it, the bound and its derivation."""

import dataclasses
from collections.abc import Collection, Sequence
from functools import partial

from pydantic import JsonValue

from planner.kinds.serve.steady.candidates import counts_together
from planner.kinds.serve.steady.demand import LATENCY_SHARES
from planner.kinds.serve.steady.formulate import Formulated
from planner.kinds.serve.steady.frontier import SPEEDS_TOKENS_PER_S
from planner.kinds.serve.steady.points import CHUNK_TOKENS, decode_batches, prefill_chunks
from planner.kinds.serve.steady.predict import with_room
from planner.kinds.serve.steady.search import Outcome, ServeSetting
from planner.kinds.serve.steady.units import MICRO_BATCHES, Sides, splits
from planner.plan.records import BY_NUMBER
from planner.plan.schema import Certificate, Objective
from planner.solvers.mix import MixProblem, MixRole, MixSolution
from planner.solvers.mix_data import point_of, problem_to_dict
from planner.solvers.mix_model import build
from planner.solvers.mix_solve import MixCertificate, next_best, reduce, used_shapes
from planner.solvers.result import SolveResult, relative_loss

METHOD = "dual_tree"
TOLERANCE = 1e-6


def certificate(
    setting: ServeSetting, outcome: Outcome, proof: MixCertificate, next_best: Sequence[JsonValue] | None = None
) -> Certificate:
    """The certificate of a solved mix; its bound is the one that `proof` re-derives.

    The best plans of another make are solved for, unless `next_best` says what they are.
    """
    formulated, problem, value = outcome.formulated, outcome.formulated.problem, outcome.objective
    assert value is not None
    proven = proof.bound()
    bound = None if proven is None else formulated.in_metric(proven)
    if bound is not None:
        bound = max(bound, value) if formulated.sense == "maximize" else min(bound, value)
    gap = None if bound is None else abs(value - bound) / max(abs(value), 1e-9)
    closed = gap is not None and gap <= TOLERANCE
    reduced, kept, dropped = reduce(problem, keep=used_shapes(outcome.solution))
    stop_reason = outcome.result.stop_reason
    return Certificate(
        claim=_claim(closed, formulated),
        status="optimal" if closed else "feasible",
        stop_reason="node_limit" if stop_reason == "finished" and not closed else stop_reason,
        objective=objective(outcome, value),
        bound=bound,
        gap=gap,
        tolerance=TOLERANCE,
        axes=axes_of(setting),
        candidates=outcome.tally.evaluated,
        pruned=_pruned(outcome, list(dropped)),
        proof={
            "method": METHOD,
            **dataclasses.replace(proof, objective_unit=formulated.unit_in_metric(proof.objective_unit)).to_dict(),
            **({"offset": formulated.offset} if formulated.offset else {}),
            **_subject(outcome, reduced, kept),
        },
        next_best=_alternatives(setting, outcome) if next_best is None else list(next_best),
    )


def objective(outcome: Outcome, value: float) -> Objective:
    """What is optimised, with its value."""
    return Objective(metric=outcome.formulated.metric, sense=outcome.formulated.sense, value=value)


def _pruned(outcome: Outcome, dropped: list[int]) -> dict[str, int]:
    """Pairs of instance type and workload by the rule that dropped them; what is left stands in the proof."""
    pruned = dict(outcome.tally.pruned)
    shapes = outcome.formulated.problem.shapes
    pairs = sum(sum(rate > 0.0 for rate in shapes[c].rate_per_s) for c in dropped)
    if pairs:
        pruned["whole instances of another type do the same on no more devices"] = pairs
    return dict(sorted(pruned.items()))


def _subject(outcome: Outcome, reduced: MixProblem, kept: list[int]) -> dict[str, JsonValue]:
    """What the proof is about: the mix that its model is built from, and the plan as a point of that model."""
    point = point_of(reduced, kept, *build(reduced), outcome.solution)
    return {"mix": problem_to_dict(reduced), "values": list(point)}


def _claim(closed: bool, formulated: Formulated) -> str:
    space, metric = "over the stated axes, under the stated costs and assumptions", formulated.metric
    if formulated.per_used:
        metric = f"{metric}, of the GPUs in use at the stated rates,"
    if closed:
        return (
            f"no mix of instances has a better {metric} {space}; limits on percentiles are judged by a queueing model"
        )
    return f"no mix of instances is proven to beat the bound on {metric} {space}"


def axes_of(setting: ServeSetting) -> dict[str, list[JsonValue]]:
    """Every axis of the space with its values."""
    axes: dict[str, set[int]] = {}
    for space in setting.spaces.values():
        for name, values in space.axes.items():
            axes.setdefault(name, set()).update(values)
    options = setting.options
    stated: dict[str, list[JsonValue]] = {
        "mode": list(options.modes),
        "pool": [pool.name for pool in setting.resolved.pools],
        **{name: list[JsonValue](sorted(values)) for name, values in axes.items()},
        "moe_tp": ["tp x dp / ep"],
        "max_batch": [int(batch) for batch in decode_batches(options, setting.targets)],
        "instances": ["every number that fits"],
    }
    if setting.pooling and {"disaggregated", "attention-ffn"} & set(options.modes):
        most = max(pool.num_gpus for pool in setting.resolved.pools)
        stated["prefill_instances_together"] = list[JsonValue](counts_together(most))
    if setting.resolved.problem.objective.pareto is not None:
        stated["tokens_per_s_per_user"] = list(SPEEDS_TOKENS_PER_S)
    if "colocated" in options.modes:
        stated["chunk_tokens"] = list(options.chunk_tokens or CHUNK_TOKENS)
    if "attention-ffn" in options.modes:
        stated["attention_and_ffn_gpus"] = [
            f"{attention_gpus} : {ffn_gpus}"
            for attention_gpus, ffn_gpus in dict.fromkeys(
                pair
                for (key, _), pool_costs in setting.costs_of_pool.items()
                for (model, _), other_costs in setting.costs_of_pool.items()
                if key == model
                for pair in splits(Sides(pool_costs, other_costs), options)
            )
        ]
        stated["micro_batches"] = list(options.micro_batches or MICRO_BATCHES)
    switched = {"overlap": options.overlap, "redundant_experts": options.redundant_experts}
    stated |= {name: list[JsonValue](values) for name, values in switched.items() if values != ("off",)}
    if options.speculation is not None:
        stated["draft_tokens"] = list(options.searched_drafts)
    if {"disaggregated", "attention-ffn"} & set(options.modes):
        stated["prefill_chunk_tokens"] = [int(chunk) for chunk in prefill_chunks(options, setting.targets)]
        stated["decode_pool"] = ["every pool, one for each prefill instance"]
        if any(len(ways) > 1 for ways in setting.ways.values()):
            stated["handover"] = [way.text for ways in setting.ways.values() for way in ways]
        if any(target.latency_limits for target in setting.targets):
            stated["prefill_share_of_latency"] = list(LATENCY_SHARES)
    return stated


def _alternatives(setting: ServeSetting, outcome: Outcome) -> list[JsonValue]:
    """The best plans of another make, with what they lose: each mode alone, and the nearest different mix."""
    problem, solution = outcome.formulated.problem, outcome.solution
    roles = {shape.role for shape, count in zip(problem.shapes, solution.counts, strict=True) if count}
    rows: list[JsonValue] = []

    def add(name: str, *, roles: Collection[MixRole] = (), shapes: Collection[int] = ()) -> None:
        solve = partial(next_best, solution=solution, forbid_roles=roles, forbid_shapes=shapes)
        _, result = with_room(setting.costs_of_pool, setting.targets, outcome.formulated, solve)
        rows.append(_alternative(name, result, outcome))

    for name, barred in (("colocated only", {MixRole.FIRST, MixRole.SECOND}), ("disaggregated only", {MixRole.WHOLE})):
        if roles & barred:
            add(name, roles=barred)
    candidates = outcome.formulated.candidates
    drafting = [c for c, candidate in enumerate(candidates) if candidate.draft_tokens]
    if any(solution.counts[c] for c in drafting):
        add("without speculation", shapes=drafting)
    elif drafting:
        plain = [c for c in range(len(candidates)) if c not in drafting]
        add("with speculation only", shapes=plain)
    halved = [c for c, candidate in enumerate(candidates) if candidate.shape.micro_batches > 1]
    if any(solution.counts[c] for c in halved):
        add("without two batches", shapes=halved)
    placed = [c for c, candidate in enumerate(candidates) if candidate.shape.redundant != BY_NUMBER]
    if any(solution.counts[c] for c in placed):
        add("with experts by number", shapes=placed)
    apart = [c for c, candidate in enumerate(candidates) if candidate.ffn is not None]
    others = [c for c in range(len(problem.shapes)) if c not in apart and problem.shapes[c].role is not MixRole.FIRST]
    if any(solution.counts[c] for c in apart):
        add("without attention-ffn", shapes=apart)
    elif apart:
        add("attention-ffn only", shapes=others)
    return rows


def _alternative(name: str, result: SolveResult[MixSolution], outcome: Outcome) -> JsonValue:
    value, best = outcome.objective, None if not result.objective else outcome.formulated.in_metric(result.objective)
    assert value is not None
    if best is None:
        return {"plan": name, "objective": None, "loss": None}
    return {"plan": name, "objective": best, "loss": relative_loss(value, best, outcome.formulated.sense)}
