"""Agentic RL plans by brute force: every plan in turn, rollouts simulated step by step, iterations one by one."""

import math
from collections.abc import Callable, Iterator
from itertools import combinations, product
from typing import Any

from rollout_oracle import NaiveRollout

Json = dict[str, Any]


def rollout_end(problem: Json, plan: Json, batch: int) -> float:
    """When the rollout of a batch ends; infinite where a trajectory does not fit a worker it may start on."""
    given = problem["workload"]["batches"][batch]["trajectories"]
    trajectories = [_with_predictions(trajectory) for trajectory in given]
    curves = [
        problem["cost"]["gen"][group["pool"]][str(group["tp"])]
        for group in plan["gen"]
        for _ in range(group["replicas"])
    ]
    order = sorted(range(len(given)), key=lambda index: -trajectories[index]["predicted"][0])
    if plan["dispatch"] == "assigned":
        places = plan["assignment"][batch]
        queues = [[index for index in order if places[index] == worker] for worker in range(len(curves))]
    else:
        queues = [order if plan["dispatch"] == "predicted_longest_first" else list(range(len(given)))]
    workers: list[Json] = [
        {"curve": _curve(curve), "queue": index if plan["dispatch"] == "assigned" else 0}
        for index, curve in enumerate(curves)
    ]
    move = problem["rollout"].get("move", {"base_s": 0.0, "token_s": 0.0})
    policy = {
        "keep_kv": problem["rollout"]["keep_kv"],
        "longest_first": plan["priority"] == "longest_first",
        "move_threshold": math.inf if plan["move_threshold"] is None else plan["move_threshold"],
        "move_s": move["base_s"],
        "move_token_s": move["token_s"],
    }
    naive = NaiveRollout(workers, trajectories, queues, policy)
    for worker in workers:
        starting = queues[worker["queue"]]
        if any(naive.need(index) > worker["curve"]["kv_tokens"] for index in starting):
            return math.inf
    return naive.run()


def _with_predictions(trajectory: Json) -> Json:
    left = [sum(turn[0] for turn in trajectory["turns"][index:]) for index in range(len(trajectory["turns"]))]
    return {**trajectory, "predicted": trajectory.get("predicted", left)}


def _curve(curve: Json) -> Json:
    return {
        "step": curve["alpha"],
        "sequence": curve["beta"],
        "token": curve["gamma"],
        "prefill": curve["prefill_tok_s"],
        "max_running": curve["max_running"],
        "kv_tokens": curve["kv_tokens"],
    }


def tokens(problem: Json, batch: int) -> int:
    """Tokens of a batch, observations after the last turn left out."""
    return sum(
        trajectory["prompt"]
        + sum(turn[0] for turn in trajectory["turns"])
        + sum(turn[2] for turn in trajectory["turns"][:-1])
        for trajectory in problem["workload"]["batches"][batch]["trajectories"]
    )


def training_time(problem: Json, plan: Json, batch: int) -> float:
    """K minibatches of equal tokens."""
    train, parts = plan["train"], problem["workload"]["minibatches"]
    cost = problem["cost"]["train"][train["pool"]]
    (curve,) = (curve for curve in cost["curves"] if (curve["tp"], curve["pp"]) == (train["tp"], train["pp"]))
    each = tokens(problem, batch) / parts / train["dp"]
    micro = max(1, math.ceil(each / cost["micro_tokens"]))
    bubble = (micro + train["pp"] - 1) / micro
    return float(parts * (each * (1 / curve["fwd_tok_s"] + 1 / curve["train_tok_s"]) * bubble + cost["opt_fixed_s"]))


def long_run(generation: list[float], training: list[float], handover: float, staleness: int) -> float:
    """Mean iteration of very many, simulated one by one; the transient is over after the first half."""
    generated = 0.0
    trained: list[float] = []
    periods = 400
    for iteration in range(periods * len(generation)):
        weights = trained[iteration - 1 - staleness] if iteration > staleness else 0.0
        generated = max(generated, weights) + generation[iteration % len(generation)]
        before = trained[-1] if trained else 0.0
        trained.append(max(generated, before) + training[iteration % len(generation)] + handover)
    half = periods // 2 * len(generation)
    return (trained[-1] - trained[half - 1]) / (len(trained) - half)


def objective(problem: Json, plan: Json, ends: list[float]) -> float:
    """What a plan whose rollouts end at `ends` is worth; infinite where it breaks a rule."""
    train, gpus = plan["train"], {pool["name"]: pool["gpus_per_node"] for pool in problem["cluster"]["pools"]}
    generating: dict[str, int] = {}
    for group in plan["gen"]:
        generating[group["pool"]] = generating.get(group["pool"], 0) + group["tp"] * group["replicas"]
    count = train["tp"] * train["pp"] * train["dp"]
    used = dict(generating)
    if plan["placement"] == "colocated":
        if generating != {train["pool"]: count}:
            return math.inf
    elif plan["placement"] == "hybrid":
        used[train["pool"]] = max(used.get(train["pool"], 0), count)
    else:
        used[train["pool"]] = used.get(train["pool"], 0) + count
    cost = problem["cost"]["train"][train["pool"]]
    shard = train["tp"] * train["pp"]
    state_gb = cost["static_gb"] / shard + cost["opt_gb"] / (shard * train["dp"])
    size = len(problem["workload"]["batches"][0]["trajectories"])
    fits = state_gb + cost["act_gb"] / train["tp"] <= 80 * cost["mem_util"] and all(
        number <= gpus[name] for name, number in used.items()
    )
    if not fits or train["dp"] > size // problem["workload"]["minibatches"] or math.isinf(max(ends)):
        return math.inf
    wsync, switch = problem["cost"]["wsync"], problem["cost"]["switch"]
    apart = any(name != train["pool"] for name in generating)
    handover = wsync["base_s"] + wsync["model_gb"] / wsync["cross_gbs" if apart else "intra_gbs"]
    turns = switch["base_s"] + state_gb / switch["offload_gbs"]
    handover = {"colocated": turns, "hybrid": handover + turns}.get(plan["placement"], handover)
    trained = [training_time(problem, plan, batch) for batch in range(len(ends))]
    if plan["staleness"] == 0:
        time = float(sum(ends) + sum(trained)) / len(ends) + handover
    else:
        time = long_run(ends, trained, handover, plan["staleness"])
    if problem["objective"] == "iteration_time":
        return float(time)
    price = {pool["name"]: pool["cost_per_gpu_hour"] for pool in problem["cluster"]["pools"]}
    return float(sum(price[name] * number for name, number in used.items()) * time / 3600)


def rollout_plans(problem: Json) -> Iterator[Json]:
    """Every mix of at most two kinds of workers with every policy; assignments are listed batch by batch."""
    gpus = {pool["name"]: pool["gpus_per_node"] for pool in problem["cluster"]["pools"]}
    kinds = [(pool, int(tp)) for pool, of_pool in problem["cost"]["gen"].items() for tp in of_pool]
    allowed = problem["allowed"]
    policies = list(product(allowed["dispatch"], allowed["priority"], allowed["move_threshold"]))
    for number in (1, 2):
        for chosen in combinations(kinds, number):
            for counts in product(*(range(1, gpus[pool] // tp + 1) for pool, tp in chosen)):
                gen = [
                    {"pool": pool, "tp": tp, "replicas": count}
                    for (pool, tp), count in zip(chosen, counts, strict=True)
                ]
                used = {
                    pool: sum(group["tp"] * group["replicas"] for group in gen if group["pool"] == pool)
                    for pool in gpus
                }
                if all(used[pool] <= gpus[pool] for pool in gpus):
                    for dispatch, priority, threshold in policies:
                        yield {"gen": gen, "dispatch": dispatch, "priority": priority, "move_threshold": threshold}


def best_ends(problem: Json, plan: Json) -> list[float]:
    """When the rollouts end, under the best assignment where the dispatch is one."""
    batches = range(len(problem["workload"]["batches"]))
    if plan["dispatch"] != "assigned":
        return [rollout_end(problem, plan, batch) for batch in batches]
    workers = sum(group["replicas"] for group in plan["gen"])
    ends = []
    for batch in batches:
        count = len(problem["workload"]["batches"][batch]["trajectories"])
        every = product(range(workers), repeat=count)
        ends.append(min(rollout_end(problem, {**plan, "assignment": {batch: places}}, batch) for places in every))
    return ends


def optimum(problem: Json, lies: Callable[[Json], bool] = lambda plan: True) -> float:
    """The best objective of all plans that lie as they must."""
    gpus = {pool["name"]: pool["gpus_per_node"] for pool in problem["cluster"]["pools"]}
    trains = [
        {"pool": pool, "tp": curve["tp"], "pp": curve["pp"], "dp": dp}
        for pool, cost in problem["cost"]["train"].items()
        for curve in cost["curves"]
        for dp in range(1, gpus[pool] // (curve["tp"] * curve["pp"]) + 1)
    ]
    modes = [
        (placement, staleness)
        for placement in problem["allowed"]["placement"]
        for staleness in problem["allowed"]["staleness"]
        if placement == "disaggregated" or staleness == 0
    ]
    best = math.inf
    for plan in rollout_plans(problem):
        ends = best_ends(problem, plan)
        for train, (placement, staleness) in product(trains, modes):
            whole = {**plan, "train": train, "placement": placement, "staleness": staleness}
            best = min(best, objective(problem, whole, ends)) if lies(whole) else best
    return best
