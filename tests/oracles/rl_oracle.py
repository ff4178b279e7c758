"""RL resource plans by brute force: every plan, generation simulated token by token, straight from the format."""

import math
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]


def decode(lengths: list[tuple[int, int]], replicas: int, curve: Json) -> list[float]:
    """When each (prompt, output) of the queue finishes; one decode step of one replica at a time."""
    queue = list(range(len(lengths)))
    running: list[dict[int, int]] = [{} for _ in range(replicas)]  # tokens made so far
    clock = [0.0] * replicas
    done: dict[int, float] = {}

    def admits(replica: int, sample: int) -> bool:
        tokens = sum(sum(lengths[other]) for other in running[replica])
        room = tokens + sum(lengths[sample]) <= curve["kv_tokens"] or not running[replica]
        return len(running[replica]) < curve["max_running"] and room

    replica = refused = 0
    while queue and refused < replicas:
        if admits(replica, queue[0]):
            running[replica][queue.pop(0)] = 0
            refused = 0
        else:
            refused += 1
        replica = (replica + 1) % replicas
    for replica in range(replicas):
        clock[replica] += sum(lengths[sample][0] for sample in running[replica]) / curve["prefill_tok_s"]

    def step_end(replica: int) -> float:
        tokens = sum(lengths[sample][0] + made for sample, made in running[replica].items())
        return float(clock[replica] + curve["alpha"] + curve["beta"] * len(running[replica]) + curve["gamma"] * tokens)

    while any(running):
        replica = min((index for index in range(replicas) if running[index]), key=step_end)
        clock[replica] = step_end(replica)
        for sample in running[replica]:
            running[replica][sample] += 1
        finished = [sample for sample, made in running[replica].items() if made == lengths[sample][1]]
        for sample in finished:
            del running[replica][sample]
            done[sample] = clock[replica]
        admitted = 0
        while finished and queue and admits(replica, queue[0]):
            running[replica][queue[0]] = 0
            admitted += lengths[queue.pop(0)][0]
        clock[replica] += admitted / curve["prefill_tok_s"]
    return [done[sample] for sample in range(len(lengths))]


def finish_times(problem: Json, plan: Json, batch: Json) -> list[float]:
    """Completion of every sample of a batch; infinite where a sample does not fit its replica."""
    prompt, output = problem["workload"]["prompt_len"], batch["output_len"]
    key: list[float] = batch.get("predicted_rank_key") or output
    ranked = sorted(range(len(output)), key=lambda sample: -key[sample])
    order = ranked if problem.get("dispatch") == "predicted_longest_first" else list(range(len(output)))
    tail = set(ranked[: round(plan.get("tail_fraction", 0.0) * len(output))]) if len(plan["gen"]) == 2 else set()
    done = [0.0] * len(output)
    for index, group in enumerate(plan["gen"]):
        queue = [sample for sample in order if (sample in tail) == (index == 1)]
        curve = problem["cost"]["gen"][group["pool"]][str(group["tp"])]
        if any(prompt + output[sample] > curve["kv_tokens"] for sample in queue):
            return [math.inf] * len(output)
        times = decode([(prompt, output[sample]) for sample in queue], group["replicas"], curve)
        for sample, time in zip(queue, times, strict=True):
            done[sample] = time
    return done


def objective(problem: Json, plan: Json) -> float:
    """What the plan is worth; infinite where it breaks a rule."""
    pools = {pool["name"]: pool for pool in problem["cluster"]["pools"]}
    used = _used(plan)
    if any(count > pools[name]["nodes"] * pools[name]["gpus_per_node"] for name, count in used.items()):
        return math.inf
    if plan["train"] is not None and not _trains(problem, plan, pools):
        return math.inf
    finish = [finish_times(problem, plan, batch) for batch in problem["workload"]["batches"]]
    if any(math.isinf(times[0]) for times in finish):
        return math.inf
    generation = [max(times) for times in finish]
    iteration = sum(generation) / len(generation)
    if plan["train"] is not None:
        iteration = _iteration(problem, plan, finish, generation)
    if iteration > problem.get("max_iteration_s", math.inf):
        return math.inf
    if problem["objective"] == "iteration_time":
        return iteration
    return float(sum(count * pools[name]["cost_per_gpu_hour"] for name, count in used.items()) * iteration / 3600)


def _used(plan: Json) -> dict[str, int]:
    used: dict[str, int] = {}
    for group in plan["gen"]:
        used[group["pool"]] = used.get(group["pool"], 0) + group["tp"] * group["replicas"]
    train = plan["train"]
    if train is not None and plan["placement"] == "disaggregated":
        used[train["pool"]] = used.get(train["pool"], 0) + train["tp"] * train["pp"] * train["dp"]
    return used


def _trains(problem: Json, plan: Json, pools: dict[str, Json]) -> bool:
    train = plan["train"]
    cost = problem["cost"]["train"][train["pool"]]
    gpus = train["tp"] * train["pp"] * train["dp"]
    shard = train["tp"] * train["pp"]
    memory = cost["static_gb"] / shard + cost["opt_gb"] / (shard * train["dp"]) + cost["act_gb"] / train["tp"]
    if memory > pools[train["pool"]]["mem_gb"] * cost["mem_util"]:
        return False
    if train["dp"] > problem["workload"]["samples"] // problem["workload"]["minibatches"]:
        return False
    if plan["placement"] == "colocated":
        (group,) = plan["gen"]
        return bool(group["pool"] == train["pool"] and group["tp"] * group["replicas"] == gpus)
    return True


def _iteration(problem: Json, plan: Json, finish: list[list[float]], generation: list[float]) -> float:
    train = plan["train"]
    cost = problem["cost"]["train"][train["pool"]]
    (curve,) = (curve for curve in cost["curves"] if (curve["tp"], curve["pp"]) == (train["tp"], train["pp"]))
    wsync, switch = problem["cost"]["wsync"], problem["cost"]["switch"]
    apart = any(group["pool"] != train["pool"] for group in plan["gen"])
    sync_s = wsync["base_s"] + wsync["model_gb"] / wsync["cross_gbs" if apart else "intra_gbs"]
    shard = train["tp"] * train["pp"]
    state_gb = cost["static_gb"] / shard + cost["opt_gb"] / (shard * train["dp"])
    switch_s = switch["base_s"] + state_gb / switch["offload_gbs"]
    minibatches = problem["workload"]["minibatches"]
    trained, streamed = [], []
    for batch, times in zip(problem["workload"]["batches"], finish, strict=True):
        order = sorted(range(len(times)), key=lambda sample: times[sample])
        size = len(order) // minibatches
        clock = total = 0.0
        for part in range(minibatches):
            members = order[part * size : (part + 1) * size if part < minibatches - 1 else None]
            tokens = sum(problem["workload"]["prompt_len"] + batch["output_len"][sample] for sample in members)
            each = tokens / train["dp"]
            micro = max(1, math.ceil(each / cost["micro_tokens"]))
            bubble = (micro + train["pp"] - 1) / micro
            work = each / curve["fwd_tok_s"] * bubble + each / curve["train_tok_s"] * bubble + cost["opt_fixed_s"]
            total += work
            clock = max(clock, times[members[-1]]) + work
        trained.append(total)
        streamed.append(clock)
    count = len(trained)
    if plan["sync"] == "sync":
        handover = switch_s if plan["placement"] == "colocated" else sync_s
        times = [generated + training + handover for generated, training in zip(generation, trained, strict=True)]
    elif plan["sync"] == "stream_sync":
        times = [end_s + sync_s for end_s in streamed]
    else:
        times = [max(generation[(index + 1) % count], trained[index]) + sync_s for index in range(count)]
    return float(sum(times) / count)


def plans(problem: Json) -> Iterator[Json]:
    """Every plan of the space, feasible or not."""
    pools = {pool["name"]: pool["nodes"] * pool["gpus_per_node"] for pool in problem["cluster"]["pools"]}
    single = [
        {"pool": pool, "tp": int(tp), "replicas": count}
        for pool, of_pool in problem["cost"]["gen"].items()
        for tp in of_pool
        for count in range(1, pools[pool] // int(tp) + 1)
    ]
    if problem["stage"] == "gen_only":
        yield from _generation_plans(problem, single, pools)
        return
    trains = [
        {"pool": pool, "tp": curve["tp"], "pp": curve["pp"], "dp": dp}
        for pool, cost in problem["cost"]["train"].items()
        for curve in cost["curves"]
        for dp in range(1, pools[pool] // (curve["tp"] * curve["pp"]) + 1)
    ]
    for placement in problem["allowed"]["placement"]:
        for sync in problem["allowed"]["sync"]:
            if placement == "colocated" and sync != "sync":
                continue
            for group in single:
                for train in trains:
                    yield {"placement": placement, "sync": sync, "gen": [group], "train": train}


def _generation_plans(problem: Json, single: list[Json], pools: dict[str, int]) -> Iterator[Json]:
    plan: Json = {"placement": "disaggregated", "sync": "sync", "train": None}
    yield from ({**plan, "gen": [group]} for group in single)
    largest = max(group["tp"] for group in single)
    for first in single:
        for other in single:
            used = _used({**plan, "gen": [first, other]})
            if all(0 <= pools[name] - count < largest for name, count in used.items()):
                for fraction in problem["search_space"]["tail_fractions"]:
                    yield {**plan, "gen": [first, other], "tail_fraction": fraction}


def rank(problem: Json, plan: Json) -> tuple[float, int]:
    """Seconds of the mean rollout, and GPUs in all: of plans alike in mode and objective the least is to be taken."""
    finish = [finish_times(problem, plan, batch) for batch in problem["workload"]["batches"]]
    used, train = _used(plan), plan["train"]
    if train is not None and plan["placement"] != "disaggregated":
        gpus = train["tp"] * train["pp"] * train["dp"]
        used[train["pool"]] = max(used.get(train["pool"], 0), gpus)
    return sum(max(times) for times in finish) / len(finish), sum(used.values())


def optimum(problem: Json) -> float:
    """The best objective of all plans."""
    return min(objective(problem, plan) for plan in plans(problem))
