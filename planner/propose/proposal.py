"""The proposal: what to decide now and what to run next, as text and as one document."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from planner.costs.rates.forms import with_form
from planner.estimate.case import measured_forms
from planner.kinds.serve.choice import preferred_forms
from planner.plan.schema import Envelope
from planner.propose.alternative import Alternative, Result
from planner.propose.decision import Standing, loss_left, make_choice, standings, with_results
from planner.propose.deployments import Question
from planner.propose.runs import commands, plan_file, plan_of, report_file
from planner.solvers.stochastic.sequential_choice import next_measurements

SCHEMA = "planner.proposal/1"
ENOUGH = 0.001  # of the expected output: a run that gains less changes nothing


@dataclass(frozen=True, slots=True)
class ProposedRun:
    """A run to make: its plan, and the commands."""

    standing: Standing
    envelope: Envelope
    plan: str
    report: str
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """The decision as it stands, what deciding now is expected to lose, and the runs that would reduce that most."""

    standings: tuple[Standing, ...]  # best first
    loss_left: float  # share of what could be had
    runs: tuple[ProposedRun, ...]
    results: tuple[Result, ...]
    notes: tuple[str, ...] = ()  # what the decision does not look at

    @property
    def settled(self) -> bool:
        """Whether no single run is expected to change anything."""
        return max((standing.gain for standing in self.standings), default=0.0) <= ENOUGH * self.standings[0].expected


def propose(question: Question, results: Sequence[Result], count: int, folder: str, *, seed: int) -> Proposal:
    """The proposal of up to `count` runs after `results`; plans and reports of runs are to lie under `folder`."""
    choice = with_results(make_choice(question.alternatives, question.slo), question.alternatives, results)
    ranked = standings(choice, question.alternatives)
    by_name = {alternative.alternative.name: alternative for alternative in ranked}
    chosen = [question.alternatives[m] for m in next_measurements(choice, count, seed=seed)]
    runs = tuple(_run(question, by_name[alternative.name], folder) for alternative in chosen)
    notes = tuple(_notes(question, ranked[0]))
    return Proposal(tuple(ranked), loss_left(choice), runs, tuple(results), notes)


def _notes(question: Question, best: Standing) -> Iterator[str]:
    """What is weighed where the problem asks for more: a load, which takes copies, percentiles, measured forms."""
    (target,) = question.setting.targets
    case = best.alternative.case
    if target.rate_per_s is not None:
        served_per_s = output(best.alternative, best.ttft_s, best.tpot_s) * case.gpus / case.osl
        copies = math.ceil(target.rate_per_s / served_per_s)
        yield (
            f"alternatives are weighed by the output of a GPU, whatever the load: {target.rate_per_s:.4g} requests/s "
            f"take {copies} of the first, {copies * case.gpus} GPUs; `planner solve` weighs whole numbers"
        )
    limits = (*target.ttft_limits, *target.tpot_limits, *target.itl_limits)
    if any(limit.quantile is not None and math.isfinite(limit.limit_s) for limit in limits):
        yield "limits on percentiles are held against typical times: a run reports its percentiles"
    forms = preferred_forms(question.setting)
    far = [with_form(*own) for own in measured_forms([case]) if forms and own[1] not in forms.get(own[0], ())]
    if far and not best.measured:
        yield (
            f"alternatives of all forms are weighed, and no run has that of the first ({', '.join(far)}): `planner "
            "solve` prefers measured ones, of which it is after a run"
        )


def _run(question: Question, standing: Standing, folder: str) -> ProposedRun:
    alternative = standing.alternative
    envelope = plan_of(question, alternative)
    return ProposedRun(
        standing,
        envelope,
        str(plan_file(folder, alternative)),
        str(report_file(folder, alternative)),
        tuple(commands(question, alternative, envelope, folder)),
    )


def document_of(proposal: Proposal) -> dict[str, Any]:
    """The proposal as one JSON document."""
    best = proposal.standings[0]
    return {
        "schema": SCHEMA,
        "decision": _standing(best),
        "expected_loss": proposal.loss_left,
        "settled": proposal.settled,
        **({"notes": list(proposal.notes)} if proposal.notes else {}),
        "runs": [
            {**_standing(row.standing), "plan": row.plan, "report": row.report, "commands": list(row.commands)}
            for row in proposal.runs
        ],
        "results": [{"alternative": row.name, "ttft_s": row.ttft_s, "tpot_s": row.tpot_s} for row in proposal.results],
        "alternatives": [_standing(row) for row in proposal.standings],
    }


def _standing(standing: Standing) -> dict[str, Any]:
    case = standing.alternative.case
    return {
        "alternative": standing.alternative.name,
        "gpus": case.gpus,
        "concurrency": case.clients,
        "ttft_s": standing.ttft_s,
        "tpot_s": standing.tpot_s,
        "tpot_s_interval": standing.tpot_s_interval,
        "output_tokens_per_s_per_gpu": output(standing.alternative, standing.ttft_s, standing.tpot_s),
        "chance_to_keep_slo": standing.chance,
        "expected_reward": standing.expected,
        "gain_of_a_run": standing.gain,
        "measured": standing.measured,
    }


def output(alternative: Alternative, ttft_s: float, tpot_s: float) -> float:
    """Output tokens/s of one GPU, whatever it costs."""
    return alternative.output_tokens_per_s_per_gpu(ttft_s, tpot_s) * alternative.price


def lines_of(proposal: Proposal) -> list[str]:
    """The proposal for people; commands stand alone on their lines, everything else behind `#`."""
    best = proposal.standings[0]
    lines = [
        f"# decide now: {_words(best)}",
        f"# expected loss against knowing all: {proposal.loss_left:.1%}",
    ]
    lines += [f"# note: {note}" for note in proposal.notes]
    if proposal.settled:
        lines.append("# no single run is expected to change the decision")
    for number, run in enumerate(proposal.runs, 1):
        lines += ["", f"# run {number} of {len(proposal.runs)}: {_words(run.standing)}", *run.commands]
        lines.append(f"# then: --results {run.report}")
    return lines


def _words(standing: Standing) -> str:
    case, known = standing.alternative.case, "measured" if standing.measured else "predicted"
    tokens = output(standing.alternative, standing.ttft_s, standing.tpot_s)
    low, high = map(_time, standing.tpot_s_interval)
    between = "" if standing.measured else f" (80 %: {low} to {high})"
    return (
        f"{standing.alternative.name} on {case.gpus} GPUs, {case.clients} clients, {known} "
        f"TTFT {_time(standing.ttft_s)}, TPOT {_time(standing.tpot_s)}{between}, {tokens:.4g} tokens/s/GPU, "
        f"keeps the limits in typical times with {standing.chance:.0%}"
    )


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{seconds * 1e3:.3g} ms"
