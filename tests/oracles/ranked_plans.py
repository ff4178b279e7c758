"""Small problems of every kind, and their best distinct plans from a list of all plans.

Each `..._plans` gives the objective and the parts of every plan of a problem, without the ranking and, but where said,
without the solver: serving mixes, training plans and RL plans are priced one by one, mixes of GPU types and hosts of
adapters counted, layouts of experts listed. Placements of models on groups and of layers are solved once for every set
of parts that may be left out, of layers with the pools taken out of the cluster.
"""

import copy
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pools_oracle import every_pipeline, every_spread
from serve_oracle import every_mix
from serve_problems import SMALL
from train_problems import every_plan as every_training
from train_problems import job, jobs
from train_problems import problem as training

from planner.api import solve
from planner.documents.read import given_document
from planner.errors import Infeasible, PlannerError
from planner.kinds.place.lora.setting import read_setting as read_adapters
from planner.kinds.rl.drawn import draw_periods
from planner.kinds.rl.formulate import formulate
from planner.kinds.rl.setting import read_setting as read_rl
from planner.load.problems import resolve_document
from planner.problem.resolve import Resolved
from planner.rl.evaluate import evaluate
from planner.rl.plan import GenerationGroup, RlPlan
from planner.rl.problem import RlProblem
from planner.rl.search.trainings import training_choices

Json = dict[str, Any]
Plans = Iterator[tuple[float, frozenset[str]]]
"""The objective, and the parts that tell a plan from others, of every plan."""
MAXIMISED = {"goodput_per_gpu", "tokens_per_s_per_gpu", "attainment"}


def resolved(data: Mapping[str, Any], folder: Path = Path()) -> Resolved:
    """The problem of a document."""
    return resolve_document(given_document(copy.deepcopy(dict(data)), "problem"), folder)


def by_definition(plans: Plans, most: int, *, maximised: bool) -> list[float]:
    """Objectives of the best plan, then of the best of all plans that lack a part of each listed one."""
    best: dict[frozenset[str], float] = {}
    for value, parts in plans:
        known = best.get(parts)
        if known is None or (value > known if maximised else value < known):
            best[parts] = value
    sign = -1.0 if maximised else 1.0
    rows = [(float(f"{sign * value:.9g}"), len(parts), sorted(parts)) for parts, value in best.items()]
    listed: list[tuple[float, frozenset[str]]] = []
    for value, _, names in sorted(rows):
        parts = frozenset(names)
        if len(listed) < most and not any(other <= parts for _, other in listed):
            listed.append((value, parts))
    return [sign * value for value, _ in listed]


def serve_problem(draw: random.Random) -> Json:
    """One workload of an 8B model on up to four GPUs of one pool."""
    data: Json = copy.deepcopy(SMALL)
    gpus = {"gpu": draw.choice(["h100", "h200", "l40s"]), "gpus": draw.choice([2, 3, 4]), "price": "3USD/h"}
    data["cluster"]["pools"] = [gpus]
    load = draw.choice([None, None, "1/s", "3/s"])
    data["workloads"][0] |= {
        "input_tokens": draw.choice([300, 1000, 2000]),
        "output_tokens": draw.choice([100, 300]),
        "slo": {"ttft": draw.choice(["600ms", "2s"]), "tpot": draw.choice(["20ms", "40ms"]), "confidence": "50%"},
        **({} if load is None else {"load": {"rate": load}}),
    }
    goals = [{"maximize": "goodput_per_gpu"}, {"maximize": "tokens_per_s_per_gpu"}]
    data["objective"] = draw.choice([*goals, {"minimize": "gpus"}, {"minimize": "cost"}] if load else goals)
    data["options"] |= {"max_batch": [draw.choice([8, 16, 64])], "tp": draw.choice([[1, 2], [1, 2, 4]])}
    return data


def train_problem(draw: random.Random) -> Json:
    """An 8B model on one or two nodes with few values of each axis."""
    search = {
        "cp": draw.choice([[1], [1, 2]]),
        "tp": draw.choice([[1, 2, 4], [2, 4, 8], [1, 8]]),
        "pp": draw.choice([[1, 2], [1, 2, 4]]),
        "micro_batch": [draw.choice([1, 2])],
        "vpp": [1],
        "zero_stage": [1],
        "recompute": draw.choice([["none", "full"], ["full"]]),
    }
    goal = draw.choice([{"minimize": "step_time"}, {"maximize": "tokens_per_s_per_gpu"}])
    nodes, batch = draw.choice([1, 2]), draw.choice([16, 32])
    return training(
        nodes=nodes, gpu=draw.choice(["h100_sxm", "a100_sxm"]), objective=goal, global_batch=batch, search=search
    )


def rl_problem(draw: random.Random) -> Json:
    """Measured curves of two or three replicas on a node."""
    base = {"pool": "a", "prefill_tokens_per_s": 2e4, "max_running": 8, "kv_tokens": 60_000}
    generation = [
        {**base, "tp": tp, "step_s": 0.03 * draw.uniform(0.4, 1.0) / tp**0.5, "sequence_s": 4e-4 / tp, "token_s": 1e-7}
        for tp in draw.choice([(1, 2), (1, 2, 4)])
    ]
    shapes = draw.choice([((1, 1), (2, 2)), ((1, 1), (2, 1), (2, 2)), ((2, 1), (1, 2))])
    trained = [
        {
            "pool": "a", "tp": tp, "pp": pp, "micro_tokens": 4096,
            "train_tokens_per_s": 900 * (tp * pp) ** draw.uniform(0.8, 1.0), "forward_tokens_per_s": 3000 * tp * pp,
        }
        for tp, pp in shapes
    ]  # fmt: skip
    return {
        "schema": "planner.problem/1",
        "kind": "rl",
        "models": {"policy": {"name": "Qwen/Qwen2.5-7B"}},
        "cluster": {"pools": [{"gpu": "h800_sxm", "name": "a", "nodes": 1, "usd_per_gpu_hour": 2.0}]},
        "workloads": [{"input_tokens": 200, "output_tokens": {"mean": draw.choice([400, 800]), "cv": 1.0}}],
        "objective": draw.choice([{"minimize": "iteration_time"}, {"minimize": "cost"}]),
        "options": {
            "algorithm": "grpo",
            "prompts": 8,
            "samples_per_prompt": draw.choice([2, 4]),
            "minibatches": 2,
            "max_staleness": draw.choice([0, 1]),
            "costs": {"generation": generation, "training": trained},
        },
    }


def pools_problem(draw: random.Random) -> Json:
    """One job on a node of each of two GPU types, on one of them, in stages or in replicas on both."""
    search = {
        "cp": 1, "micro_batch": 1, "vpp": 1, "zero_stage": 1,
        "tp": draw.choice([[1, 4], [2, 4], [2, 8]]),
        "pp": draw.choice([[1, 2], [2, 3], [1, 2, 4]]),
        "recompute": draw.choice(["none", "full"]),
    }  # fmt: skip
    pools = [{"gpu": gpu, "nodes": 1} for gpu in draw.sample(["h100_sxm", "a100_sxm", "h200_sxm"], 2)]
    goal = draw.choice([{"minimize": "step_time"}, {"maximize": "tokens_per_s_per_gpu"}])
    return training(cluster={"pools": pools}, objective=goal, global_batch=8, search=search)


def horizon_problem(draw: random.Random) -> Json:
    """Two periods of an RL problem whose outputs grow, with what changes between them cost."""
    data = rl_problem(draw)
    data["objective"] = {"minimize": "iteration_time"}
    data["options"]["horizon"] = {
        "periods": [{"iterations": draw.randint(1, 9)}, {"iterations": draw.randint(1, 9), "output_scale": 4.0}],
        "generation_change": f"{draw.choice([1, 30, 300])}s",
        "training_change": f"{draw.choice([1, 30, 300])}s",
        "circuit_change": "2s",
    }
    return data


def mix_problem(draw: random.Random) -> Json:
    """Two buckets on three GPU types of at most three instances."""
    pools = ("p", "q", "r")
    buckets = {name: {"rate": f"{draw.randint(1, 4)}/s", "slices": 2} for name in ("long", "short")}
    return {
        "schema": "planner.problem/1",
        "kind": "place",
        "models": {"m": {"name": "meta-llama/Llama-2-7b-hf"}},
        "cluster": {"pools": [
            {"name": name, "gpu": gpu, "gpus": 3, "price": f"{draw.uniform(0.5, 3.0):.2f}USD/h"}
            for name, gpu in zip(pools, ("l4", "l40s", "h100_sxm"), strict=True)
        ]},
        "objective": {"minimize": "cost"},
        "options": {"mix": {
            "buckets": buckets,
            "rates": {name: {bucket: round(draw.uniform(0.5, 4.0), 2) for bucket in buckets} for name in pools},
        }},
    }  # fmt: skip


def lora_problem(draw: random.Random) -> Json:
    """Four adapters on two GPUs, as two engines or as one."""
    rates = {name: {"rate": f"{draw.randint(1, 6)}/s"} for name in "abcd"}
    lora = {"adapters": rates, "slots": 4, "slowdown": 1.25, "merged": draw.random() < 0.6}
    return {
        "schema": "planner.problem/1",
        "kind": "place",
        "models": {"m": {"name": "Qwen/Qwen3-4B"}},
        "cluster": {"pools": [{"gpu": "l40s", "gpus": 2}]},
        "workloads": [{"input_tokens": draw.choice([300, 500]), "output_tokens": 100}],
        "objective": {"maximize": "tokens_per_s_per_gpu"},
        "options": {"tp": [1, 2], "lora": lora},
    }


def layers_problem(draw: random.Random) -> Json:
    """A 32B model over two or three pools of a node or two."""
    pools = [{"gpu": gpu, "nodes": draw.choice([1, 2]), "gpus_per_node": 2} for gpu in ("l40s", "a100_sxm", "l4")]
    return {
        "schema": "planner.problem/1",
        "kind": "place",
        "models": {"m": {"name": "Qwen/Qwen3-32B"}},
        "cluster": {"pools": pools[: draw.choice([2, 3])]},
        "workloads": [{"name": "chat", "input_tokens": draw.choice([200, 500]), "output_tokens": 100}],
        "objective": {"maximize": "tokens_per_s_per_gpu"},
        "options": {"layers": {"max_stages": 3, "max_batch": 8}},
    }


def group_problem(draw: random.Random) -> Json:
    """Two small models whose requests are answered in one pass, on two or four GPUs."""
    workloads = [
        {
            "name": name, "model": name, "input_tokens": draw.choice([256, 512]), "output_tokens": 1,
            "load": {"rate": f"{draw.randint(10, 40)}/s", "arrival_cv": 3}, "slo": {"latency": {"p50": "300ms"}},
        }
        for name in ("a", "b")
    ]  # fmt: skip
    return {
        "schema": "planner.problem/1",
        "kind": "place",
        "models": {"a": {"name": "Qwen/Qwen3-0.6B"}, "b": {"name": "Qwen/Qwen3-1.7B"}},
        "cluster": {"pools": [{"gpu": "l4", "gpus": draw.choice([2, 4]), "gpus_per_node": 4}]},
        "workloads": workloads,
        "objective": {"maximize": "attainment"},
        "options": {"batching": False, "simulated_requests": 400, "tp": [1, 2], "pp": draw.choice([[1], [1, 2]])},
    }


def experts_problem(draw: random.Random, folder: Path) -> Json:
    """Eight experts of 32 layers, two by two alike, on two ranks of at most six slots."""
    rng = np.random.default_rng(draw.randrange(1000))
    rows = np.round(rng.lognormal(0.0, draw.choice([0.3, 0.8]), (2, 8)) * 1000)
    path = folder / f"loads-{draw.randrange(10**6)}.npz"
    np.savez(path, load=np.tile(rows, (16, 1))[None])
    return {
        "schema": "planner.problem/1",
        "kind": "experts",
        "models": {"moe": {"name": "mistralai/Mixtral-8x7B-v0.1"}},
        "cluster": {"pools": [{"gpu": "h200", "nodes": 1}]},
        "objective": {"minimize": "imbalance"},
        "options": {"ep": 2, "slots_per_rank": draw.choice([5, 6, 7]), "loads": str(path)},
    }


def serve_plans(problem: Json) -> Plans:
    return every_mix(resolved(problem))


def train_plans(problem: Json) -> Plans:
    small, options = job(problem), problem["options"]
    tokens = options["global_batch"] * options["sequence_tokens"]
    for plan in every_training(small):
        shape = plan.choice.table.shape
        degrees = {"tp": shape.tp, "pp": plan.choice.pp, "cp": shape.cp, "ep": shape.ep}
        value = tokens / plan.objective if "maximize" in problem["objective"] else plan.objective
        yield value, frozenset(f"{name}={size}" for name, size in degrees.items())


def pools_plans(problem: Json) -> Plans:
    pools, options = jobs(problem), problem["options"]
    tokens = options["global_batch"] * options["sequence_tokens"]
    alone = (plan for own in pools for plan in every_training(own))
    for plan in itertools.chain(alone, every_pipeline(pools), every_spread(pools)):
        shape = plan.choice.table.shape
        degrees = {"tp": shape.tp, "pp": plan.choice.pp, "cp": shape.cp, "ep": shape.ep}
        value = tokens / plan.objective if "maximize" in problem["objective"] else plan.objective
        yield value, frozenset(f"{name}={size}" for name, size in degrees.items())


def rl_plans(problem: Json) -> Plans:
    curves = formulate(read_rl(resolved(problem))).problem
    for plan in _every_rl(curves):
        priced = evaluate(curves, plan)
        if priced.feasible:
            yield priced.objective, _rl_parts(plan)


def _every_rl(curves: RlProblem) -> Iterator[RlPlan]:
    gpus = sum(pool.gpus for pool in curves.pool_of.values())
    for option, choice, mode in itertools.product(curves.generation, training_choices(curves), curves.modes):
        for replicas in range(1, gpus // option.gpus + 1):
            yield RlPlan(mode, (GenerationGroup(option, replicas),), choice)


def _rl_parts(plan: RlPlan) -> frozenset[str]:
    synchrony = {"sync": "synchronous", "stream_sync": "stream", "k_step_async": "asynchronous"}
    assert plan.training is not None
    return frozenset({
        f"arrangements={plan.mode.placement}",
        f"synchrony={synchrony[plan.mode.sync]}",
        f"generation_tp={plan.groups[0].option.tp}",
        f"training_tp={plan.training.option.tp}",
        f"training_pp={plan.training.option.pp}",
    })  # fmt: skip


def horizon_plans(problem: Json) -> Plans:
    """Every pair of plans, one a period, with what changes from the one to the other."""
    setting = read_rl(resolved(problem))
    curves, stated = formulate(setting).problem, problem["options"]["horizon"]
    before, after = (
        replace(curves, batches=batches) for batches in draw_periods(setting.resolved.problem, setting.options)
    )
    change = {name: float(stated[f"{name}_change"][:-1]) for name in ("generation", "training", "circuit")}
    counts = [period["iterations"] for period in stated["periods"]]
    plans = [(plan, evaluate(before, plan), evaluate(after, plan)) for plan in _every_rl(curves)]
    for (first, early, _), (second, _, late) in itertools.product(plans, plans):
        if early.feasible and late.feasible:
            differs = {
                "generation": first.groups != second.groups,
                "training": (first.mode, first.training) != (second.mode, second.training),
                "circuit": _gpus(first) != _gpus(second),
            }
            changes_s = sum(seconds for name, seconds in change.items() if differs[name])
            total = counts[0] * early.objective + counts[1] * late.objective + changes_s
            yield total, _rl_parts(first) | _rl_parts(second)


def _gpus(plan: RlPlan) -> tuple[object, ...]:
    assert plan.training is not None
    return plan.groups[0].option.pool, plan.groups[0].gpus, plan.training.option.pool, plan.training.gpus


def mix_plans(problem: Json) -> Plans:
    """Every number of instances of each type that serves all slices, however these are sent."""
    pools, mix = problem["cluster"]["pools"], problem["options"]["mix"]
    prices = [float(pool["price"].removesuffix("USD/h")) for pool in pools]
    buckets = mix["buckets"]
    each = {name: float(bucket["rate"].removesuffix("/s")) / bucket["slices"] for name, bucket in buckets.items()}
    ways = [
        [split for split in itertools.product(range(bucket["slices"] + 1), repeat=3) if sum(split) == bucket["slices"]]
        for bucket in buckets.values()
    ]
    taken = {
        tuple(
            sum(
                split[g] * each[name] / mix["rates"][pool["name"]][name] for split, name in zip(sent, each, strict=True)
            )
            for g, pool in enumerate(pools)
        )
        for sent in itertools.product(*ways)
    }
    for counts in itertools.product(range(4), repeat=3):
        if any(all(part <= count + 1e-9 for part, count in zip(parts, counts, strict=True)) for parts in taken):
            cost = sum(price * count for price, count in zip(prices, counts, strict=True))
            yield cost, frozenset(pool["name"] for pool, count in zip(pools, counts, strict=True) if count)


def lora_plans(problem: Json) -> Plans:
    """Every set of adapters that is merged, one an engine; all others go where they leave engines least unequal."""
    setting = read_adapters(resolved(problem))
    rates, merging = setting.rates_per_s, setting.lora.merged
    tokens = sum(rates) * setting.workload.output.mean_tokens
    for shape in setting.shapes:
        engines = setting.gpus // shape.tp
        for merged in itertools.product((None, *range(len(rates))), repeat=engines if merging else 0):
            alone = [k for k in merged if k is not None]
            plain = engines - len(alone)
            busy = _least_busy(rates, alone, plain, shape.merged_s, shape.unmerged_s)
            if busy is not None:
                parts = {f"tp={shape.tp}", *(["merged"] if alone else [])}
                yield tokens / busy / setting.gpus, frozenset(parts)


def _least_busy(
    rates: Sequence[float], alone: list[int], plain: int, merged_s: float, unmerged_s: float
) -> float | None:
    """Of the busiest engine: engines merged with `alone` serve as much of it as they can, the rest is shared evenly."""
    if any(k not in alone for k in range(len(rates))) and not plain:
        return None
    low, high = 0.0, sum(rates) * unmerged_s
    for _ in range(100):
        most = (low + high) / 2.0
        served = {k: alone.count(k) * most / merged_s for k in set(alone)}
        left = sum(max(rate - served.get(k, 0.0), 0.0) for k, rate in enumerate(rates)) * unmerged_s
        low, high = (low, most) if left <= plain * most else (most, high)
    return high


def layers_plans(problem: Json) -> Plans:
    """The best placement of every set of pools, the others not in the cluster."""
    pools = problem["cluster"]["pools"]
    gpus = sum(pool["nodes"] * pool["gpus_per_node"] for pool in pools)
    for size in range(1, len(pools) + 1):
        for chosen in itertools.combinations(pools, size):
            try:
                plan = solve(resolved({**problem, "cluster": {"pools": [*chosen]}}))
            except (Infeasible, PlannerError):  # refused where the nodes hold too few layers
                continue
            value = plan.certificate.objective.value or 0.0
            own = sum(pool["nodes"] * pool["gpus_per_node"] for pool in chosen)
            used: Any = plan.decision["roles"]
            yield value * own / gpus, frozenset(str(role["pool"]) for role in used)


def group_plans(problem: Json) -> Plans:
    """The best placement with every set of degrees."""
    options = problem["options"]
    sets = [
        [chosen for size in range(1, len(options[axis]) + 1) for chosen in itertools.combinations(options[axis], size)]
        for axis in ("tp", "pp")
    ]
    for tp, pp in itertools.product(*sets):
        try:
            plan = solve(resolved({**problem, "options": {**options, "tp": [*tp], "pp": [*pp]}}))
        except (Infeasible, PlannerError):  # refused where no group of these lies within a node
            continue
        roles: Any = plan.decision["roles"]
        used = {f"{axis}={role['parallelism'].get(axis, 1)}" for role in roles for axis in ("tp", "pp")}
        yield plan.certificate.objective.value or 0.0, frozenset(used)


def experts_plans(problem: Json) -> Plans:
    """The best layout of every number of slots: all sets of experts on each of two ranks, copies sharing equally.

    A rank holds an expert once at most (`planner/solvers/layouts/spread.py`).
    """
    with np.load(problem["options"]["loads"]) as file:
        rows = file["load"][0][:2]
    for slots in range(4, problem["options"]["slots_per_rank"] + 1):
        sets = [*itertools.combinations(range(8), slots)]
        counts = np.array([np.bincount(chosen, minlength=8) for chosen in sets])
        yield float(np.mean([_least_imbalance(counts, row) for row in rows])), frozenset({f"slots={slots}"})


def _least_imbalance(counts: Any, load: Any) -> float:  # noqa: ANN401 - arrays
    best = float("inf")
    for first in counts:
        copies = first + counts
        held = (copies > 0).all(axis=1)
        share = np.where(copies > 0, first / np.maximum(copies, 1), 0.0)[held] @ load
        if len(share):
            total = float(load.sum())
            best = min(best, float(np.maximum(share, total - share).min()) / (total / 2.0))
    return best


KINDS: Mapping[str, tuple[Callable[..., Json], Callable[[Json], Plans]]] = {
    "serve": (serve_problem, serve_plans),
    "train": (train_problem, train_plans),
    "train, pools": (pools_problem, pools_plans),
    "rl": (rl_problem, rl_plans),
    "rl, horizon": (horizon_problem, horizon_plans),
    "experts": (experts_problem, experts_plans),
    "place, groups": (group_problem, group_plans),
    "place, layers": (layers_problem, layers_plans),
    "place, mix": (mix_problem, mix_plans),
    "place, adapters": (lora_problem, lora_plans),
}
"""Of each kind, and of each form of placements, what draws a problem and what lists its plans."""
