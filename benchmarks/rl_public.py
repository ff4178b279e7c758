"""Public RL runs as they were configured: in the space or why not, feasible or not, and their steps as priced.

Usage: rl_public.py MEASURED.csv [--solve]. A row is priced where it publishes its degrees and the mean length of its
samples, with what its recipe sets (`rl_runs.py`); no constant of the price was fitted to these rows. `engines` is the
price with the rollout that simulated engines take. A configuration
that the space lacks is priced with the nearest replica that it has, and marked. Beside it stand answers that know no
run: the median, over the rows of other set-ups, of tokens a GPU second (`rate`), and of tokens x active parameters a
GPU second (`util`); and the price divided by the median ratio of other set-ups (`level`). Intervals of 80 % are those
that the rows of the other set-ups give, beside intervals of one width in logarithms. `--solve` adds phases, the plan
that the search recommends for the job on the same GPUs with its ratio to the run's, both as priced, and what its parts
alone make of the run. Exits 1 where the prices are no nearer than the better of the two rates.
"""

import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from statistics import fmean, median
from typing import Any

from inputs import exit_code, first_path
from rl_runs import Row, job, missing, problem, read_rows, staleness

from planner.documents.read import given_document
from planner.errors import Infeasible, PlannerError
from planner.kinds.rl.formulate import FormulatedRl, formulate
from planner.kinds.rl.names import choice_name, group_name, mode_name, replica_name
from planner.kinds.rl.plan.solved import Solved
from planner.kinds.rl.setting import RlSetting, read_setting
from planner.kinds.rl.simulated.scaled import scaled, simulated_over_priced
from planner.load.problems import resolve_document
from planner.rl.curves import GenerationOption, TrainingOption
from planner.rl.evaluate import evaluate
from planner.rl.intervals import Spread, distance, fitted
from planner.rl.plan import GenerationGroup, RlEvaluation, RlPlan, TrainingChoice
from planner.rl.problem import RlProblem
from planner.rl.search.search import solve

DEGREES = re.compile(r"cp(\d+)ep(\d+)-")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row; `missing` says what of it no price can be made from, `absent` what of it the space lacks."""

    row: Row
    missing: str = ""
    absent: tuple[str, ...] = ()
    priced: RlEvaluation | None = None
    engines: RlEvaluation | None = None  # with the rollout by simulated engines
    distance: float = 0.0
    best: RlEvaluation | None = None
    best_name: str = ""
    reasons: dict[str, float] = field(default_factory=dict)  # seconds of the run with this part of the best plan

    @property
    def published_s(self) -> float:
        return float(self.row["step_time_s"])


def outcome(row: Row, *, recommended: bool) -> Outcome:
    """The row priced as configured, and where asked for what the search recommends for its job."""
    lacks = missing(row)
    if lacks:
        return Outcome(row, lacks)
    try:
        setting, formulated = _formulated(problem(row))
        wider = _formulated(job(row)) if recommended else None
    except PlannerError as error:
        return Outcome(row, "", (error.what,))
    except Infeasible as error:
        return Outcome(row, "", (str(error),))
    generator, instead = _generator(row, formulated)
    trainer = _trainer(row, formulated)
    if generator is None or trainer is None:
        return Outcome(row, "", tuple(filter(None, (instead, "" if trainer else _training_text(row)))))
    ahead = staleness(row)
    plan = RlPlan(
        next(mode for mode in formulated.problem.modes if mode.staleness == ahead),
        (GenerationGroup(generator, int(row["gpus_gen"]) // generator.gpus),),
        TrainingChoice(trainer, int(row["gpus_train"]) // trainer.gpus),
    )
    priced = evaluate(formulated.problem, plan)
    actor = formulated.trainers[trainer].config
    assert actor is not None
    engines = _by_engines(Solved(setting, formulated, plan, priced))
    told = Outcome(row, "", (instead,) if instead else (), priced, engines, distance(actor.arch))
    return told if wider is None else _recommended(told, plan, wider[1].problem)


def _formulated(document: dict[str, Any]) -> tuple[RlSetting, FormulatedRl]:
    resolved = resolve_document(given_document(document, document["name"]), Path())
    setting = read_setting(resolved)
    return setting, formulate(setting)


def _by_engines(run: Solved) -> RlEvaluation:
    """The run with its replicas as engines take in simulation, as `simulated_rollouts` of a problem asks."""
    (group,) = run.plan.groups
    known = scaled(run.formulated, {replica_name(group.option): simulated_over_priced(run)}).problem
    place = run.formulated.problem.generation.index(group.option)
    return evaluate(known, replace(run.plan, groups=(replace(group, option=known.generation[place]),)))


def _recommended(told: Outcome, run: RlPlan, stated: RlProblem) -> Outcome:
    """With the best plan for the run's job, and what each of its parts alone would make of the run."""
    solution = solve(stated)
    best = solution.plan
    if best is None or best.training is None:
        return told
    parts = (*map(group_name, best.groups), choice_name(best.training))
    name = f"{mode_name(best.mode)}: {' | '.join(parts)}"
    reasons = {}
    for part, change in (("generation", {"groups": best.groups}), ("training", {"training": best.training})):
        changed = evaluate(stated, replace(run, **change))
        if changed.feasible:
            reasons[part] = changed.iteration_s
    return replace(told, best=solution.evaluation, best_name=name, reasons=reasons)


def _generator(row: Row, formulated: FormulatedRl) -> tuple[GenerationOption | None, str]:
    """The replica of the row, tensor-parallel experts first; else the largest of as many GPUs, and what it lacks."""
    tp, pp = int(row["gen_tp"]), int(row["gen_pp"] or 1)
    options = formulated.problem.generation
    exact = [option for option in options if (option.tp, option.pp) == (tp, pp)]
    if exact:
        return min(exact, key=lambda option: option.ep), ""
    alike = [option for option in options if option.gpus == tp * pp]
    near = max(alike, key=lambda option: (option.tp, -option.ep), default=None)
    instead = f", as tp{near.tp} pp{near.pp}" if near is not None else ""
    return near, f"generation tp{tp} pp{pp}{instead}"


def _trainer(row: Row, formulated: FormulatedRl) -> TrainingOption | None:
    """The training of the row that fits on its GPUs: what computes least again, on the devices before the host."""
    degrees = tuple(int(row[name]) for name in ("train_tp", "train_pp", "train_cp", "train_ep"))
    alike = []
    for option in formulated.problem.training:
        cut = DEGREES.match(option.label)
        if cut and (option.tp, option.pp, int(cut[1]), int(cut[2])) == degrees:
            alike.append(option)
    gpus = int(row["gpus_train"])
    return min(
        alike,
        key=lambda option: (option.min_dp * option.gpus > gpus, "-full" in option.label, len(option.label)),
        default=None,
    )


def _training_text(row: Row) -> str:
    return "training " + " ".join(f"{name}{row[f'train_{name}']}" for name in ("tp", "pp", "cp", "ep"))


def guesses(each: Outcome, priced: Sequence[Outcome]) -> dict[str, float]:
    """Steps over the published one: as priced, and of each answer that the rows of other set-ups give."""
    others = [other for other in priced if other.row["group"] != each.row["group"]]
    level = median(_ratio(other) for other in others)
    rates = {
        name: work(each.row) / median(work(other.row) / other.published_s for other in others) / each.published_s
        for name, work in (("rate", _tokens), ("util", _work))
    }
    return {"priced": _ratio(each), "engines": _ratio(each, engines=True), **rates, "level": _ratio(each) / level}


def _ratio(each: Outcome, *, engines: bool = False) -> float:
    evaluation = each.engines if engines else each.priced
    assert evaluation is not None
    return evaluation.iteration_s / each.published_s


def _tokens(row: Row) -> float:
    """Of a GPU in a step."""
    return int(row["global_samples"]) * float(row["mean_seq_len"]) / int(row["gpus_total"])


def _work(row: Row) -> float:
    """Tokens of a GPU in a step x active parameters, in 1e9."""
    return _tokens(row) * float(row["active_params_b"])


def lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A row for each run, then the range of each set-up."""
    priced = [each for each in outcomes if each.priced is not None]
    by_group: dict[str, list[float]] = defaultdict(list)
    yield "run    set-up                             GPUs  arrangement    published   priced  ratio  engine rate   util"
    for each in outcomes:
        row = each.row
        head = (
            f"{row['id']}  {row['group']:<33} {row['gpus_total']:>5}  {row['placement']:<13} {each.published_s:8.1f} s"
        )
        if each.priced is None:
            yield f"{head} {each.missing or 'not in the space: ' + ', '.join(each.absent)}"
            continue
        told = guesses(each, priced)
        by_group[row["group"]].append(told["priced"])
        notes = "; ".join((*each.absent, *each.priced.broken)) or "as run, feasible"
        ratios = "  ".join(f"{told[name]:5.2f}" for name in ("priced", "engines", "rate", "util"))
        yield f"{head} {each.priced.iteration_s:6.1f} s  {ratios}  {notes}"
        if each.best is not None:
            run = each.priced
            parts = ", ".join(f"{name} {seconds / run.iteration_s:.2f}" for name, seconds in each.reasons.items())
            yield (
                f"       generation {run.generation_s:.1f} s, training {run.training_s:.1f} s, handing over "
                f"{run.handover_s:.1f} s; recommended {each.best.iteration_s / run.iteration_s:.2f} of it "
                f"(alone: {parts or 'no part'}): {each.best_name}"
            )
    yield ""
    yield "set-up                      runs  priced / published: lowest  median  highest"
    for group, ratios_of in by_group.items():
        low, middle, high = min(ratios_of), median(ratios_of), max(ratios_of)
        yield f"{group:<26} {len(ratios_of):>5}  {'':19} {low:7.2f}  {middle:6.2f}  {high:7.2f}"


def interval_lines(priced: Sequence[Outcome]) -> Iterator[str]:
    """How many runs the 80 % intervals hold that the rows of other set-ups give, beside those of one width."""
    logs = [-math.log(_ratio(each)) for each in priced]
    far, setups = [each.distance for each in priced], [each.row["group"] for each in priced]
    for name, distances in (("by distance", far), ("one width", [0.0] * len(far))):
        held = [_holds(logs, distances, setups, place) for place in range(len(logs))]
        yield f"80 % intervals {name}, set-ups left out: hold {sum(held)} of {len(held)} runs"
    spread = fitted(logs, far, setups)
    yield f"fitted to all: low {spread.low:.3f}, high {spread.high:.3f}, by distance {spread.by_distance:.2f}"


def _holds(logs: Sequence[float], far: Sequence[float], setups: Sequence[str], place: int) -> bool:
    """Whether the interval of a run holds its step, fitted to the other set-ups."""
    others = [other for other in range(len(logs)) if setups[other] != setups[place]]
    spread: Spread = fitted([logs[o] for o in others], [far[o] for o in others], [setups[o] for o in others])
    wider = 1.0 + spread.by_distance * far[place]
    return spread.low * wider <= logs[place] <= spread.high * wider


@dataclass(frozen=True, slots=True)
class Pair:
    """A synchronous and an asynchronous run of a set-up: how much faster a GPU is asynchronously."""

    group: str
    gain: float
    priced: float
    engines: float


def pairs(path: Path, outcomes: Sequence[Outcome]) -> list[Pair]:
    """The pairs of a table whose two runs are both priced."""
    known = {each.row["id"]: each for each in outcomes if each.priced is not None}
    rows_of_pairs = []
    for row in read_rows(path):
        sync, ahead = known.get(row["sync_id"]), known.get(row["async_id"])
        if sync is not None and ahead is not None:
            gain = float(row["per_gpu_speedup"])
            priced, engines = (gain * _ratio(sync, engines=by) / _ratio(ahead, engines=by) for by in (False, True))
            rows_of_pairs.append(Pair(sync.row["group"], gain, priced, engines))
    return rows_of_pairs


SIDES = (attrgetter("priced"), attrgetter("engines"))


def gain_lines(table: Sequence[Pair]) -> Iterator[str]:
    """Errors of the gain of asynchrony, beside one gain for all that the other set-ups give."""
    constant = [median(other.gain for other in table if other.group != pair.group) for pair in table]
    off, simulated = ([abs(math.log(side(pair) / pair.gain)) for pair in table] for side in SIDES)
    beside = [abs(math.log(guess / pair.gain)) for guess, pair in zip(constant, table, strict=True)]
    right, right_too = (sum((side(pair) > 1) == (pair.gain > 1) for pair in table) for side in SIDES)
    ahead = sum(pair.gain > 1 for pair in table)
    by_constant = sum((guess > 1) == (pair.gain > 1) for guess, pair in zip(constant, table, strict=True))
    yield (
        f"gain of asynchrony a GPU, {len(table)} pairs: mean log-ratio error priced {fmean(off):.3f}, engines "
        f"{fmean(simulated):.3f}, constant of the other set-ups {fmean(beside):.3f}"
    )
    for group in dict.fromkeys(pair.group for pair in table):
        own = [error for pair, error in zip(table, off, strict=True) if pair.group == group]
        yield f"  {group}: priced {fmean(own):.3f}, {len(own)} pairs"
    yield (
        f"faster side called right: priced {right}, engines {right_too}, constant {by_constant}, always asynchronous "
        f"{ahead}"
    )


def main(path: Path, *, recommended: bool) -> int:
    rows = read_rows(path)
    outcomes = [outcome(row, recommended=recommended) for row in rows]
    for line in lines(outcomes):
        print(line)
    priced = [each for each in outcomes if each.priced is not None]
    as_run = sum(not each.absent and each.priced is not None and not each.priced.broken for each in priced)
    print(f"\n{len(outcomes)} runs: {len(priced)} priced, {as_run} of them in the space as run and feasible")
    told = [guesses(each, priced) for each in priced]
    off = {name: median(abs(ratios[name] - 1) for ratios in told) for name in told[0]}
    print("median error of the step: " + ", ".join(f"{name} {error:.1%}" for name, error in off.items()))
    for line in interval_lines(priced):
        print(line)
    table = path.parent / "rl_async_pairs.csv"
    if table.exists():
        for line in gain_lines(pairs(table, outcomes)):
            print(line)
    return int(off["priced"] >= min(off["rate"], off["util"]))


if __name__ == "__main__":
    sys.exit(exit_code(main(first_path(), recommended="--solve" in sys.argv)))
