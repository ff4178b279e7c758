"""Turns the result of a simulation search into a plan with simulated predictions and a certificate."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import JsonValue

from planner.documents.units import format_si
from planner.errors import Conflict, Infeasible
from planner.kinds.serve.plan.certificate import axes_of
from planner.kinds.serve.plan.context import beyond_predictions, context_assumptions
from planner.kinds.serve.plan.decode import envelope, whole_predictions
from planner.kinds.serve.plan.encoded import encoding_predictions
from planner.kinds.serve.simulated.load_streams import LoadStreams
from planner.kinds.serve.simulated.placements import MOST_PLACEMENTS, Deployment, with_placement
from planner.kinds.serve.steady.search import Outcome
from planner.plan.schema import Certificate, Envelope, Objective, Prediction
from planner.problem.slo import SloSpec
from planner.simulate.goodput.placements import PlacementSearch, reversals
from planner.simulate.run.attainment import Draws, attainment
from planner.simulate.run.result import SimulationResult
from planner.simulate.run.summary import statistic
from planner.solvers.result import relative_loss

METHOD = "optimistic_simulation"
MOST_TRIED = 400  # placements that are simulated
SURE = 0.97  # of its rate, at which the cheapest placement must keep its limits on other draws too
TOLERANCE = 1e-6
MOST_REVERSALS = 20  # that a plan lists
ASSUMPTIONS = (
    "limits are judged by simulation of every step, with the step times that plans are costed with",
    "prefix caching, speculative decoding and swapping are off",
    "what is in the space is one instance type that does both, or one for prefill and one for decode, each shape with "
    f"the batch and chunk that steady state finds best, the {MOST_PLACEMENTS} that it ranks highest, and the mix that "
    "it prefers; runs that were measured are not preferred",
    "the bound holds for simulations of any placement of the space on the draws of the search",
)


@dataclass(frozen=True, slots=True)
class SimulatedChoice:
    """The search, the placement that was chosen, what it claims, and what no placement could do better.

    A placement is one for all workloads, or one for each cell of a partition of the GPUs.
    """

    search: PlacementSearch
    cells: tuple[tuple[Deployment, ...], ...]  # of each placement of the search
    chosen: int
    claimed_per_s: float
    interval_per_s: tuple[float, float] | None  # 95 %, of the goodput over independent streams
    bound: float  # in the unit of the objective
    value: float  # of the plan
    pruned: dict[str, int]  # placements by what ended them
    effort: dict[str, JsonValue]  # what was simulated
    groups: list[JsonValue]  # what became of all placements, each with what none of them is better than
    assumptions: tuple[str, ...] = ASSUMPTIONS


def plan_of(streams: LoadStreams, outcome: Outcome, choice: SimulatedChoice) -> Envelope:
    """The plan of the placement that was chosen; raises Unplaceable where it has no regular place."""
    setting, cells = streams.setting, choice.cells[choice.chosen]
    rates = [choice.claimed_per_s * fraction for fraction in streams.fractions]
    chosen = with_placement(outcome, cells, rates)
    runs: dict[int, SimulationResult] = {}
    for deployment in cells:
        mixture = streams.mixture.of(deployment.workloads)
        runs |= zip(
            deployment.workloads, mixture.simulate(streams.builder.fleet(deployment), choice.claimed_per_s), strict=True
        )
    maximising, value = outcome.formulated.problem.maximising, choice.value
    bound = choice.bound if math.isfinite(choice.bound) else None
    proven = Certificate(
        claim=_claim(outcome.formulated.metric),
        status="feasible" if bound is None or _gap(value, bound) > TOLERANCE else "optimal",
        stop_reason="finished",
        objective=Objective(
            metric=outcome.formulated.metric, sense="maximize" if maximising else "minimize", value=value
        ),
        bound=bound,
        gap=None if bound is None else _gap(value, bound),
        tolerance=TOLERANCE,
        axes=axes_of(setting),
        candidates=outcome.tally.evaluated,
        pruned=dict(sorted((dict(outcome.tally.pruned) | choice.pruned).items())),
        proof=_evidence(choice, streams),
        next_best=_next_best(choice, streams.factor),
    )
    predictions = (*_predictions(streams, chosen, choice, runs), *beyond_predictions(setting, chosen))
    assumed = (*choice.assumptions, *context_assumptions(setting, chosen), *setting.resolved.price_notes)
    return envelope(setting, chosen, proven, predictions, assumed)


def _gap(value: float, bound: float) -> float:
    return abs(value - bound) / max(abs(value), 1e-9)


def _claim(metric: str) -> str:
    return (
        f"no simulation of a placement of the space, on the draws of the search, has a better {metric} than the bound"
    )


def ends_of(search: PlacementSearch) -> dict[str, int]:
    """How many placements ended how, but for those that were simulated to their goodput."""
    names = {
        "excluded": "placements that the optimistic model excludes",
        "dominated": "placements that broke their limits in a run at a better rate",
        "left": "placements that were not simulated",
    }
    return {names[how]: count for how in names if (count := search.count(how))}  # type: ignore[arg-type]  # keys are Hows


def groups_of(search: PlacementSearch) -> list[JsonValue]:
    """Placements by how they ended, each with the most that any simulation of them on the draws may be worth."""
    worth: dict[str, list[float]] = {}
    for placement, tried in zip(search.placements, search.tried, strict=True):
        worth.setdefault(tried.how, []).append(tried.bound_per_s * placement.weight)
    return [_group(how, len(bounds), max(bounds)) for how, bounds in sorted(worth.items())]


def priced_groups(search: PlacementSearch, price_of_placement: Sequence[float]) -> list[JsonValue]:
    """Placements by how they ended, in the order of their prices; those behind the last tried were not reached."""
    prices: dict[str, list[float]] = {}
    for tried, price in zip(search.tried, price_of_placement, strict=False):
        prices.setdefault(tried.how, []).append(price)
    rows = [
        _group(how, len(group), math.inf if how == "excluded" else min(group)) for how, group in sorted(prices.items())
    ]
    behind = price_of_placement[len(search.tried) :]
    return [*rows, *([_group("not reached", len(behind), min(behind))] if behind else [])]


def _group(end: str, placements: int, bound: float) -> JsonValue:
    return {"end": end, "placements": placements, **({"bound": bound} if math.isfinite(bound) else {})}


def effort_of(search: PlacementSearch) -> dict[str, JsonValue]:
    """What was simulated of a search."""
    return {
        "placements": len(search.placements),
        "simulated": search.count("simulated") + search.count("dominated"),
        "runs": search.runs,
    }


def _evidence(choice: SimulatedChoice, streams: LoadStreams) -> dict[str, JsonValue]:
    draws = streams.mixture.draws
    proof: dict[str, JsonValue] = {
        "method": METHOD,
        "requests": sum(map(len, draws)),
        "warm_up": sum(stream.warm_up for stream in draws),
        "seed": streams.setting.resolved.problem.seed,
        **choice.effort,
        "groups": choice.groups,
        "chosen": choice.search.placements[choice.chosen].name,
        "steady_state": _incumbent(choice, streams.factor),
        "reversals": _reversals(choice.search),
    }
    if choice.interval_per_s is not None:
        proof["interval_95"] = [end * streams.factor for end in choice.interval_per_s]
    return proof


def _incumbent(choice: SimulatedChoice, factor: float) -> JsonValue:
    """What steady state prefers: what it claims, and what simulation finds of it."""
    index = choice.search.steady_best
    if index is None or choice.interval_per_s is None:
        return None
    steady, tried = choice.search.placements[index].steady_per_s or 0.0, choice.search.tried[index]
    simulated = None if tried.goodput_per_s is None else tried.goodput_per_s * factor
    return {
        "plan": choice.search.placements[index].name,
        "claims": steady * factor,
        "simulated": simulated,
        "loses": index != choice.chosen,
    }


def _reversals(search: PlacementSearch) -> list[JsonValue]:
    pairs = reversals(search)[:MOST_REVERSALS]
    return [{"better": search.placements[a].name, "than": search.placements[b].name} for a, b in pairs]


def _next_best(choice: SimulatedChoice, factor: float) -> list[JsonValue]:
    """The best of those simulated to their goodput that was not chosen, beside the goodput of the one that was."""
    rows = [
        (tried.goodput_per_s, placement.name)
        for index, (placement, tried) in enumerate(zip(choice.search.placements, choice.search.tried, strict=True))
        if tried.goodput_per_s and index != choice.chosen and choice.interval_per_s is not None
    ]
    if not rows:
        return []
    rate, name = max(rows)
    best = choice.search.tried[choice.chosen].goodput_per_s or 0.0
    loss = relative_loss(best, rate, "maximize")
    return [{"plan": name, "objective": rate * factor, "loss": loss, "beside": best * factor}]


def _predictions(
    streams: LoadStreams, chosen: Outcome, choice: SimulatedChoice, runs: dict[int, SimulationResult]
) -> Iterator[Prediction]:
    """Figures of runs at the rate claimed, by workload, then of the whole plan."""
    setting = streams.setting
    tokens = 0.0
    for workload, target in enumerate(setting.targets):
        rate, draws = choice.claimed_per_s * streams.fractions[workload], streams.mixture.draws[workload]
        mean_output = float(np.mean(draws.output_tokens))
        yield Prediction(metric="requests_per_s", of=target.name, value=rate)
        yield Prediction(metric="output_tokens_per_s", of=target.name, value=rate * mean_output)
        yield from encoding_predictions(setting, chosen, target)
        stated = setting.resolved.workloads[workload].spec.slo
        yield from _times(target.name, stated, streams.mixture.slos[workload], runs[workload], draws)
        tokens += rate * target.osl
    yield from whole_predictions(setting, chosen.solution, choice.claimed_per_s, tokens)


def _times(name: str, stated: SloSpec, slo: SloSpec, run: SimulationResult, draws: Draws) -> Iterator[Prediction]:
    """Times of one workload, with the statistics that it limits, and its attainment."""
    for time, values in run.times_s.items():
        limited = [of for limited_time, of, _ in stated.limits() if limited_time == time]
        for of in dict.fromkeys(["mean", *limited]):
            value = statistic(values[draws.warm_up :], of)
            yield Prediction(metric=f"{time}_s", of=name, statistic=of, value=value, approximate=True)
    if stated.attainment is not None:
        share = attainment(run, slo, draws.warm_up)
        yield Prediction(metric="attainment", of=name, value=share, approximate=True)


def no_placement(streams: LoadStreams, *, proved: bool) -> Infeasible:
    """The limits that no placement keeps in simulation."""
    many = len(streams.setting.targets) > 1
    texts = [
        f"{target.name}: {text}" if many else text
        for workload, target in enumerate(streams.setting.targets)
        for text in _limits(streams, workload)
    ]
    return Infeasible([Conflict(limit=text, nearest="") for text in texts], proved=proved)


def _limits(streams: LoadStreams, workload: int) -> Iterator[str]:
    """The limits and the load of a workload, in words."""
    slo, load = streams.mixture.slos[workload], streams.setting.resolved.workloads[workload].spec.load
    for name, of, bound_s in slo.limits():
        yield f"{of} {name} <= {format_si(bound_s, 's')}"
    if load is not None and load.rate_per_s is not None:
        yield f"load {load.rate_per_s:g}/s"


def price_of(outcome: Outcome, cells: tuple[Deployment, ...]) -> float:
    """GPUs or USD per hour of a placement, as the objective counts."""
    shapes = outcome.formulated.problem.shapes
    counts = [pair for deployment in cells for pair in deployment.counts]
    if outcome.formulated.metric == "usd_per_hour":
        return sum(count * shapes[index].price_per_hour for index, count in counts)
    return float(sum(count * shapes[index].devices for index, count in counts))
