"""Serving plans and what they promise: random problems solved at every level, their plans judged on fresh streams.

python benchmarks/promises.py                60 problems of one seed
python benchmarks/promises.py --quick        6 of them
python benchmarks/promises.py --seed 7 --problems 10
python benchmarks/promises.py --minutes 40 --no-referee    as many as fit, judged by planner's own simulator alone

A verified plan breaks a limit where the 95 % interval of its statistic lies above it, on five streams that no solve has
drawn, as worked off by vLLM's own scheduler, where that can run the plan's engines, and else by slow simulators written
from definitions (`promise_referee.py`; `$VALIDATORS_HOME` as for `scheduler_referee.py`). All plans are also judged by
planner's own simulator, as of `check --level simulate`. The trivial answer is a safety margin: static limits that are
so much tighter, the same for all problems, of 0 to 50 %, judged by that simulator alone: the slow ones agree with it to
the last digit (docs/simulation.md), and six times sixty plans are too many for them.
Objectives, goodput or one over GPUs, are compared where both levels have a plan that breaks nothing.
"""

import argparse
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from promise_referee import Judged, referee

from planner.api import solve
from planner.errors import Infeasible, PlannerError
from planner.kinds.serve.options import ServeDecision
from planner.load.problems import load_problem
from planner.plan.schema import Envelope
from planner.problem.slo import SloSpec
from planner.simulate.judge.limits import Verdict
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import judge_plan

MARGINS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
JUDGED_SEED = 900_000
REFEREE_SEED = 1_700_000
MOST_REQUESTS = 100_000  # of all streams of a judged plan together
DENSE = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-32B", "meta-llama/Llama-3.3-70B-Instruct")
MOE = ("Qwen/Qwen3-30B-A3B", "openai/gpt-oss-120b")
LIMITS_S = {  # by model: TTFT and TPOT that are neither easy nor impossible
    DENSE[0]: (0.3, 0.02), DENSE[1]: (0.8, 0.035), DENSE[2]: (1.2, 0.045), MOE[0]: (0.4, 0.02), MOE[1]: (0.6, 0.025),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """What a level gives for a problem."""

    value: float | None  # more is better; None for no plan
    broken: bool
    cpu_s: float
    judged: Judged | None = None  # by another simulator


def problem(rng: random.Random) -> dict[str, Any]:
    """A random serving problem: dense and MoE, both modes, bursts, long-tailed lengths, high percentiles."""
    model = rng.choice(DENSE + MOE)
    gpus = rng.choice((8, 8, 16))
    ttft_s, tpot_s = (value * rng.uniform(0.8, 2.0) for value in LIMITS_S[model])
    percentiles = rng.choice((("p90", "p90"), ("p95", "mean"), ("p95", "p95"), ("p99", "p90"), ("p99", "p99")))
    modes = rng.choice((["colocated"], ["disaggregated"], ["colocated", "disaggregated"]))
    workload: dict[str, Any] = {
        "input_tokens": {"mean": rng.choice((300, 800, 2000)), "cv": rng.choice((0.0, 0.5, 1.0, 2.0))},
        "output_tokens": {"mean": rng.choice((100, 250, 500)), "cv": rng.choice((0.0, 0.5, 1.0))},
        "slo": {"ttft": {f"{percentiles[0]}_s": ttft_s}, "tpot": {f"{percentiles[1]}_s": tpot_s}},
    }
    goal: dict[str, Any] = {"maximize": "goodput_per_gpu"}
    if rng.random() < 0.35:
        workload["load"] = {"rate": f"{rng.choice((2, 5, 10))}/s", "arrival_cv": rng.choice((1.0, 1.0, 2.0, 4.0))}
        goal = {"minimize": "gpus"}
    return {
        "schema": "planner.problem/1",
        "kind": "serve",
        "models": {"m": {"name": model}},
        "cluster": {"pools": [{"gpu": rng.choice(("h100", "h200")), "gpus": gpus}]},
        "workloads": [workload],
        "objective": {**goal, "expected": False},
        "options": {"modes": modes, "max_gpus_per_instance": 8},
    }


def tightened(raw: dict[str, Any], margin: float) -> dict[str, Any]:
    """The problem with limits tighter by a margin."""
    (workload,) = raw["workloads"]
    slo = {name: {of: bound * (1.0 - margin) for of, bound in limit.items()} for name, limit in workload["slo"].items()}
    return {**raw, "workloads": [{**workload, "slo": slo}]}


def answer(raw: dict[str, Any], limits: dict[str, Any], level: str, *, refereed: bool = False) -> Answer:
    """Solves at a level, and judges the plan against the limits of the problem."""
    import json
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.json"
        path.write_text(json.dumps({**limits, "options": {**raw["options"], "judged_by": level}}))
        started = time.process_time()
        try:
            plan = solve(load_problem(path))
        except Infeasible:
            return Answer(None, False, time.process_time() - started)
        spent = time.process_time() - started
    objective = plan.certificate.objective
    assert objective.value is not None
    value = objective.value if objective.sense == "maximize" else 1.0 / objective.value
    other = referee(plan, recorded_slo(raw, plan), REFEREE_SEED) if refereed else None
    return Answer(value, broken(plan, raw), spent, other)


def recorded_slo(raw: dict[str, Any], plan: Envelope) -> SloSpec:
    """The limits of the only workload of a problem."""
    (limited,) = _limited(plan, raw)
    return SloSpec.model_validate(limited["slo"])


def broken(plan: Envelope, raw: dict[str, Any]) -> bool:
    """Whether fresh streams break a limit of the problem."""
    plan = plan.model_copy(update={"inputs": {**plan.inputs, "workloads": _limited(plan, raw)}})
    decision = ServeDecision.model_validate(plan.decision)
    judged = judge_plan(plan, decision, Policies(), seed=JUDGED_SEED, most_requests=MOST_REQUESTS)
    return judged.judgement.verdict is Verdict.BROKEN


def _limited(plan: Envelope, raw: dict[str, Any]) -> list[Any]:
    """The workloads of a plan's problem with the limits of the problem that was asked."""
    stated: Any = plan.inputs["workloads"]
    return [{**own, "slo": asked["slo"]} for own, asked in zip(stated, raw["workloads"], strict=True)]


def rows(
    seed: int, count: int, margins: tuple[float, ...], *, refereed: bool
) -> Iterator[tuple[dict[str, Any], dict[str, Answer]]]:
    """The answers of every level and margin, problem by problem; what steady state cannot serve is drawn anew."""
    rng = random.Random(seed)
    done = 0
    while done < count:
        raw = problem(rng)
        try:
            static = answer(raw, raw, "queueing")
        except PlannerError:
            continue
        if static.value is None:
            continue
        done += 1
        try:
            verified = answer(raw, raw, "verification", refereed=refereed)
        except PlannerError as error:  # too much work to simulate
            print(f"not verified: {error}", flush=True)
            verified = Answer(None, False, 0.0)
        answers = {"0%": static, "verified": verified}
        answers |= {f"{margin:.0%}": answer(raw, tightened(raw, margin), "queueing") for margin in margins if margin}
        yield raw, answers


def main() -> int:
    """Prints a row for each problem, then how many plans break a limit, and the objectives beside the best margin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="6 problems")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=math.inf, help="after which no further problem is begun")
    parser.add_argument("--no-margins", action="store_true", help="without the trivial answer")
    parser.add_argument("--no-referee", action="store_true", help="without the judgement of other simulators")
    given = parser.parse_args()
    count = 6 if given.quick else given.problems
    margins = (0.0,) if given.no_margins else MARGINS
    table, started_s = [], time.monotonic()
    for raw, answers in rows(given.seed, count, margins, refereed=not given.no_referee):
        table.append(answers)
        (workload,) = raw["workloads"]
        cells = "  ".join(f"{name} {_shown(each)}" for name, each in answers.items())
        print(
            f"{len(table):2d} {raw['models']['m']['name'].split('/')[1]:24s} {described(raw, workload)}  {cells}",
            flush=True,
        )
        if time.monotonic() - started_s > 60.0 * given.minutes:
            break
    for name in table[0]:
        values = [answers[name] for answers in table]
        cpu_s = statistics.median(each.cpu_s for each in values)
        unserved = sum(each.value is None for each in values)
        print(
            f"{name:9s} {sum(each.broken for each in values)} of {len(table)} broken, {unserved} without a plan, "
            f"median {cpu_s:.1f} CPU-s, verified is better by {_better(table, name):+.1%}"
        )
    if not given.no_referee:
        print(_refereed(table))
    print(_conclusion(table))
    return 0


def _refereed(table: list[dict[str, Answer]]) -> str:
    """How many verified plans other simulators say break a limit, and which simulators."""
    judged = [other for answers in table if (other := answers["verified"].judged) is not None]
    by = ", ".join(f"{count} by {name}" for name, count in sorted(Counter(each.by for each in judged).items()))
    return f"verified plans that break a limit: {sum(bool(each.broken) for each in judged)} of {len(judged)} ({by})"


def _conclusion(table: list[dict[str, Answer]]) -> str:
    """The trivial answer: of the margins that break as few plans as `verified`, that of the best objective."""
    broken = {name: sum(answers[name].broken for answers in table) for name in table[0]}
    safe = [name for name in table[0] if name != "verified" and broken[name] <= broken["verified"]]
    if not safe:
        return f"no margin breaks as few as verified plans: {broken}"
    best = min(safe, key=lambda name: _better(table, name))
    return f"best margin that breaks as few: {best}; verified is better by {_better(table, best):+.1%} (geometric mean)"


def _better(table: list[dict[str, Answer]], name: str) -> float:
    """Geometric mean of how much better the verified objective is, where both have a plan that breaks nothing.

    A margin that leaves no plan, where a verified one keeps its limits, is not counted in its favour or against it.
    """
    pairs = [(answers["verified"], answers[name]) for answers in table]
    logs = [math.log(a.value / b.value) for a, b in pairs if a.value and b.value and not a.broken and not b.broken]
    return math.exp(statistics.fmean(logs)) - 1.0 if logs else 0.0


def _shown(each: Answer) -> str:
    if each.value is None:
        return "none"
    other = "" if each.judged is None else f", {each.judged.by}: {'; '.join(each.judged.broken) or 'keeps all'}"
    return f"{each.value:.4g}{'!' if each.broken else ''} ({each.cpu_s:.1f}s{other})"


def described(raw: dict[str, Any], workload: dict[str, Any]) -> str:
    """A problem in one line."""
    slo = " ".join(f"{of.removesuffix('_s')} {name}" for name, limit in workload["slo"].items() for of in limit)
    load, pool = workload.get("load", {}), raw["cluster"]["pools"][0]
    lengths = f"{workload['input_tokens']['cv']}/{workload['output_tokens']['cv']}"
    modes = "+".join(mode[:2] for mode in raw["options"]["modes"])
    asked = f"cv {load.get('arrival_cv', '-')} {load.get('rate', '')}"
    return f"{pool['gpus']:2d} {pool['gpu']} {modes:5s} {lengths} {asked} {slo}"


if __name__ == "__main__":
    raise SystemExit(main())
