"""Alternatives to measure: the deployments that the search ranks first and their neighbours, at several loads.

Limits are loosened for the search, as predictions that break them by a little may be wrong; each deployment comes at
loads from a quarter to twice that of its predicted optimum.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planner.errors import PlannerError
from planner.estimate.case import Case, Part
from planner.estimate.evaluate import Estimate, evaluate
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.conflicts.limits import explain_infeasible
from planner.kinds.serve.steady.demand import Target
from planner.kinds.serve.steady.points import Tally
from planner.kinds.serve.steady.search import ServeSetting, list_candidates, prepare, search
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.propose.alternative import Alternative
from planner.propose.decision import Slo, make_choice
from planner.solvers.stochastic.sequential_choice import expected_rewards

LOOSENED = 1.5  # limits, where candidates are listed
SHAPES = 8  # colocated ones, best first
PAIRS = (1.5, 1.0, 0.75)  # factors on the limit on TPOT at which the best pair of prefill and decode is looked for
LOADS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)  # of the predicted optimum
MOST = 48  # alternatives kept
WITHIN_REACH = 0.2  # of the highest expected output


@dataclass(frozen=True, slots=True)
class Team:
    """Instances that serve together: `prefill` is None where the others prefill too."""

    prefill: tuple[Candidate, int] | None
    decode: tuple[Candidate, int]

    @property
    def members(self) -> tuple[tuple[Candidate, int], ...]:
        """Instance types and how many, prefill first."""
        return (self.decode,) if self.prefill is None else (self.prefill, self.decode)

    @property
    def label(self) -> str:
        """Such as `tp4`, or `2p-tp2-1d-tp8`; behind it the drafts of a step, such as `tp4-k3`."""
        drafts = f"-k{self.decode[0].draft_tokens}" if self.decode[0].draft_tokens else ""
        if self.prefill is None:
            return self.decode[0].shape.label + drafts
        return "-".join(f"{n}{candidate.function[0]}-{candidate.shape.label}" for candidate, n in self.members) + drafts


@dataclass(frozen=True, slots=True)
class Question:
    """A serving decision: its alternatives with the instances of each, by name, and the limits."""

    setting: ServeSetting
    alternatives: tuple[Alternative, ...]
    teams: dict[str, Team]
    slo: Slo

    def alternative(self, name: str) -> Alternative:
        """The alternative of that name."""
        return next(alternative for alternative in self.alternatives if alternative.name == name)


def question_of(resolved: Resolved, patience: Limits) -> Question:
    """The decision of a serving problem with one workload.

    Raises PlannerError for other problems, Infeasible with a smallest conflict where nothing comes near the limits.
    """
    if resolved.problem.kind != "serve":
        what = f"runs are proposed for problems of kind `serve`, found `{resolved.problem.kind}`"
        raise PlannerError(what, where=resolved.where(("kind",)), hint="give a serving problem")
    if len(resolved.workloads) != 1:
        what = f"runs are proposed for serving problems of one workload, found {len(resolved.workloads)}"
        raise PlannerError(what, where=resolved.where(("workloads",)), hint="give a problem with one workload")
    setting = prepare(resolved)
    (target,) = setting.targets
    if target.prefix_hits > 0.0:
        raise PlannerError(
            "runs are proposed for prompts that are computed whole",
            where=resolved.where(("workloads", 0, "prefix_hits")),
            hint="leave `prefix_hits` out",
        )
    if target.encoding is not None:
        raise PlannerError(
            "runs are proposed for prompts of text alone",
            where=resolved.where(("workloads", 0)),
            hint="leave `images` and `audio_s` out",
        )
    _require_judged(resolved, target)
    patience.tell("looking for deployments")
    teams = [*_colocated(setting, target), *_pairs(setting, target, patience)]
    if not teams:
        patience.tell("naming the limits in conflict")
        raise explain_infeasible(setting, patience)
    cases = {case.id: (case, team) for team in teams for case in _cases(setting, target, team)}
    slo = _slo(target)
    alternatives = _predicted(setting, cases, slo)
    if not alternatives:
        raise PlannerError(
            "no deployment can be predicted",
            where=resolved.where(("workloads",)),
            hint="`planner estimate` says why a deployment has no prediction",
        )
    return Question(
        setting,
        tuple(alternatives),
        {alternative.name: cases[alternative.name][1] for alternative in alternatives},
        slo,
    )


def _require_judged(resolved: Resolved, target: Target) -> None:
    """Raises PlannerError for limits that beliefs about TTFT and TPOT do not judge."""
    asked = {
        "latency": any(math.isfinite(limit.limit_s) for limit in target.latency_limits),
        "attainment": target.attainment is not None,
    }
    for name in (name for name, stated in asked.items() if stated):
        raise PlannerError(
            f"runs are proposed under limits on `ttft`, `tpot` and `itl`, not on `{name}`",
            where=resolved.where(("workloads", 0, "slo", name)),
            hint=f"leave `{name}` out, or say what it asks as limits on `ttft` and `tpot`",
        )


def _slo(target: Target) -> Slo:
    """Limits on typical times; that on TTFT is the strictest stated, whatever its statistic."""
    ttft_s = min(limit.limit_s for limit in target.ttft_limits)
    return Slo(*(limit_s if math.isfinite(limit_s) else None for limit_s in (target.tpot_limit_s, ttft_s)))


def _loosened(target: Target, factor: float) -> Target:
    ttft, tpot, itl = (
        tuple(replace(limit, limit_s=limit.limit_s * factor) for limit in limits)
        for limits in (target.ttft_limits, target.tpot_limits, target.itl_limits)
    )
    return replace(target, tpot_limits=tpot, ttft_limits=ttft, itl_limits=itl)


def _colocated(setting: ServeSetting, target: Target) -> Iterator[Team]:
    """The shapes of most requests a second for a GPU (for its price, where pools have prices)."""
    ranked = [
        (candidate.rates_per_s[target.index] / (candidate.shape.devices * _price(setting, candidate)), candidate)
        for candidate in list_candidates(setting, (_loosened(target, LOOSENED),), Tally())
        if candidate.function == "colocated"
    ]
    ranked.sort(key=lambda row: -row[0])
    yield from (Team(None, (candidate, 1)) for reward, candidate in ranked[:SHAPES] if reward > 0.0)


def _pairs(setting: ServeSetting, target: Target, patience: Limits) -> Iterator[Team]:
    """The best mixes of prefill and decode at several limits, in their smallest proportion."""
    options = setting.options
    if "disaggregated" not in options.modes:
        return
    apart = replace(setting, options=options.model_copy(update={"modes": ("disaggregated",)}), priced={})
    known: set[tuple[str, ...]] = set()
    for factor in PAIRS:
        outcome = search(apart, (_loosened(target, factor),), patience, tie_break=False)
        if not outcome.has_mix:
            continue
        used = outcome.roles
        sides = [
            next((role for role in used if role.candidate.function == name), None) for name in ("prefill", "decode")
        ]
        if sides[0] is None or sides[1] is None or sides[0].candidate.pool != sides[1].candidate.pool:
            continue  # an estimate takes one pool
        common = math.gcd(sides[0].count, sides[1].count)
        prefill, decode = ((side.candidate, side.count // common) for side in sides if side is not None)
        team = Team(prefill, decode)
        name = (team.label, prefill[0].name, decode[0].name)
        if name not in known:
            known.add(name)
            yield team


def _price(setting: ServeSetting, candidate: Candidate) -> float:
    """Of a GPU, where cost decides and all pools have prices; else 1."""
    prices = [pool.usd_per_gpu_hour for pool in setting.resolved.pools]
    if setting.resolved.problem.objective.minimize != "cost" or not all(prices):
        return 1.0
    return prices[candidate.pool] or 1.0


def _cases(setting: ServeSetting, target: Target, team: Team) -> Iterator[Case]:
    """The team in closed loops of several sizes."""
    decode, count = team.decode
    capacity = decode.capacity(target)
    ranks = count * decode.shape.dp
    full = ranks * decode.max_batch if team.prefill is not None else capacity.rate_per_s * capacity.stay_s
    problem, workload = setting.resolved.problem, setting.resolved.workloads[0]
    pools = "" if len(setting.resolved.pools) == 1 else f"{setting.resolved.pools[decode.pool].name}-"
    for clients in sorted({max(1, round(share * full)) for share in LOADS}):
        batch = -(-clients // ranks)
        yield Case(
            id=f"{pools}{team.label}-c{clients}",
            arch=setting.resolved.models[workload.model],
            pool=setting.resolved.pools[decode.pool],
            engine=problem.engine.name,
            version=problem.engine.version,
            memory_utilisation=problem.engine.memory_utilisation,
            isl=workload.input.mean_tokens,
            osl=workload.output.mean_tokens,
            isl_cv=workload.input.cv,
            clients=clients,
            rate_per_s=0.0,
            prefill=_part(team.prefill, team.prefill[0].max_batch) if team.prefill is not None else None,
            decode=_part(team.decode, batch),
            gpus=sum(candidate.shape.devices * n for candidate, n in team.members),
            calibration=problem.costs.calibration,
            draft_tokens=decode.draft_tokens,
            drafter=setting.costs_of_pool[decode.model, decode.pool].costs.drafter if decode.draft_tokens else None,
        )


def _part(member: tuple[Candidate, int], max_batch: int) -> Part:
    candidate, count = member
    shape = candidate.shape
    degrees = (shape.tp, shape.pp, shape.dp, shape.moe_tp, shape.ep)
    return Part(count, *degrees, max_batch, candidate.chunk_tokens, shape.micro_batches, shape.redundant)


def _predicted(setting: ServeSetting, cases: dict[str, tuple[Case, Team]], slo: Slo) -> list[Alternative]:
    """Alternatives within reach of the best, best first."""
    answers = zip(cases.values(), evaluate([case for case, _ in cases.values()], setting.store), strict=True)
    alternatives = [
        Alternative(
            case.id,
            case,
            estimate.ttft_s,
            estimate.tpot_s,
            _price(setting, team.decode[0]),
        )
        for (case, team), estimate in answers
        if isinstance(estimate, Estimate)
    ]
    if not alternatives:
        return []
    rewards_M = expected_rewards(make_choice(alternatives, slo)).tolist()
    order = sorted(range(len(alternatives)), key=lambda m: -rewards_M[m])
    return [alternatives[m] for m in order[:MOST] if rewards_M[m] >= WITHIN_REACH * rewards_M[order[0]]]


def same_deployments(question: Question, case: Case) -> Sequence[str]:
    """Names of the alternatives that `case` is a run of: equal instances and load, lengths within a tenth."""
    return [alternative.name for alternative in question.alternatives if _same(alternative.case, case)]


def _same(first: Case, second: Case) -> bool:
    def instances(case: Case) -> list[tuple[int, ...]]:
        parts = [part for part in (case.prefill, case.decode) if part is not None]
        return [
            (part.replicas, part.tp, part.pp, part.dp, part.moe_tp, part.ep, part.micro_batches, part.redundant)
            for part in parts
        ]

    alike = all(abs(math.log(a / b)) < 0.1 for a, b in ((first.isl, second.isl), (first.osl, second.osl)))
    names = (first.engine, first.pool.node.accelerator.name) == (second.engine, second.pool.node.accelerator.name)
    return alike and names and first.clients == second.clients and instances(first) == instances(second)
