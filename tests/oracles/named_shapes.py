"""Random shapes that somebody may name, and the rules that forbid them, from the numbers that models publish.

Nothing of the planner's spaces is imported. A problem is a document; a shape is what `--why-not` takes.
"""

import copy
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from ranked_plans import resolved
from train_problems import every_candidate, job

from planner.api import solve
from planner.errors import Infeasible, PlannerError
from planner.explain.facts import Fact
from planner.plan.schema import Envelope

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Published:
    """What the config.json of a model says."""

    layers: int
    heads: int
    kv_heads: int
    widths: tuple[int, ...]  # of dense feed-forward layers
    experts: int = 0
    expert_width: int = 0


MODELS: Mapping[str, Published] = {
    "Qwen/Qwen3-32B": Published(64, 64, 8, (25600,)),
    "meta-llama/Llama-3.1-8B": Published(32, 32, 8, (14336,)),
    "meta-llama/Llama-3.1-70B": Published(80, 64, 8, (28672,)),
    "Qwen/Qwen3-30B-A3B": Published(48, 32, 4, (), 128, 768),
    "Qwen/Qwen2.5-7B": Published(28, 28, 4, (18944,)),
}


@dataclass(frozen=True, slots=True)
class Named:
    """A problem and the axes that somebody names."""

    problem: Json
    axes: Mapping[str, int | str]

    @property
    def text(self) -> str:
        return ",".join(f"{axis}={value}" for axis, value in self.axes.items())


def serve_problem(model: str, gpus: int, goal: Json, **workload: Any) -> Json:  # noqa: ANN401
    limits = {"slo": {"ttft": {"p95": "2s"}, "tpot": {"p95": "40ms"}}, "load": {"rate": "4/s"}} | workload
    return {
        "schema": "planner.problem/1",
        "kind": "serve",
        "models": {"m": {"name": model, "weights": "fp8", "kv_cache": "fp8"}},
        "cluster": {"pools": [{"gpu": "h200", "gpus": gpus, "price": "3USD/h"}]},
        "workloads": [{"name": "chat", "input_tokens": 1500, "output_tokens": 200, **limits}],
        "objective": goal,
        "options": {"max_batch": [16, 64], "chunk_tokens": [2048]},
    }


def train_problem(model: str, nodes: int, batch: int) -> Json:
    return {
        "schema": "planner.problem/1",
        "kind": "train",
        "models": {"m": {"name": model}},
        "cluster": {"pools": [{"gpu": "h100_sxm", "nodes": nodes}]},
        "objective": {"minimize": "step_time"},
        "options": {"global_batch": batch, "sequence_tokens": 4096, "choice": "fastest"},
    }


SERVED = (
    serve_problem("Qwen/Qwen3-32B", 8, {"minimize": "cost"}),
    serve_problem("meta-llama/Llama-3.1-70B", 8, {"maximize": "goodput_per_gpu"}),
    serve_problem("Qwen/Qwen3-30B-A3B", 8, {"minimize": "gpus"}),
    serve_problem(
        "meta-llama/Llama-3.1-8B", 4, {"minimize": "gpus"}, slo={"ttft": {"p95": "300ms"}, "tpot": {"p95": "9ms"}}
    ),
)
TRAINED = (
    train_problem("meta-llama/Llama-3.1-8B", 2, 64),
    train_problem("meta-llama/Llama-3.1-70B", 4, 64),
    train_problem("Qwen/Qwen3-30B-A3B", 4, 64),
)


def draw_named(seed: int) -> Named:
    """One of many shapes: of serving and training alike often, whole or in part, many of which cannot be."""
    draw = random.Random(seed)
    if draw.random() < 0.5:
        return Named(draw.choice(SERVED), dict(_served(draw)))
    return Named(draw.choice(TRAINED), dict(_trained(draw)))


def _served(draw: random.Random) -> Iterator[tuple[str, int | str]]:
    axes: Json = {
        "tp": [1, 2, 3, 4, 5, 8, 16],
        "pp": [1, 2, 4, 100],
        "ep": [1, 2, 7, 8],
        "dp": [1, 2, 4],
        "max_batch": [1, 4, 128],
    }
    role = draw.choice(["", "", "role.decode.", "role.prefill."])
    if role or draw.random() < 0.3:
        yield "mode", "disaggregated" if role else draw.choice(["colocated", "disaggregated"])
    for axis in draw.sample(sorted(axes), draw.choice([1, 1, 2, 3])):
        yield (f"{role}{axis}" if axis != "max_batch" else axis), draw.choice(axes[axis])


def _trained(draw: random.Random) -> Iterator[tuple[str, int | str]]:
    axes: Json = {
        "tp": [1, 2, 3, 4, 8, 16], "pp": [1, 2, 4, 7, 100], "dp": [1, 3, 4, 8, 64], "cp": [1, 2, 3], "ep": [1, 4, 7, 8],
        "micro_batch": [1, 2, 3, 64], "vpp": [1, 2, 5], "zero_stage": [0, 1, 3], "recompute": ["none", "full"],
        "schedule": ["1f1b", "interleaved", "zb_v"],
    }  # fmt: skip
    for axis in draw.sample(sorted(axes), draw.choice([1, 2, 2, 3, 4])):
        yield axis, draw.choice(axes[axis])


WORDS = {
    "devices": ("more devices than", "is more than the"),
    "node": ("do not divide the node",),
    "domain": ("leaves the scale-up domain",),
    "heads": ("attention heads",),
    "layers": ("more stages than",),
    "dense": ("without experts",),
    "experts": ("experts do not divide", "do not divide the 128 experts"),
    "engine": ("delivers caches to no pipeline",),
    "batch": ("does not divide the batch",),
    "sequence": ("no method of context parallelism",),
    "groups": ("groups of experts do not tile", "is a multiple of ep"),
    "schedule": ("does not run",),
    "memory": ("memory of a GPU", "fits no allowed shape"),
}
"""What an answer says of each rule."""
BY_THE_REST = {"devices", "domain"}
"""Rules that other values of axes left open break: an answer may list them beside the one of the values named."""


def rules_said(what: str) -> set[str]:
    return {rule for rule, words in WORDS.items() if any(word in what for word in words)}


def rules_broken(named: Named) -> set[str]:
    """The rules that the values named break by themselves, whatever the axes left open are."""
    (model,) = named.problem["models"].values()
    known, (pool,) = MODELS[model["name"]], named.problem["cluster"]["pools"]
    gpus = pool.get("gpus") or 8 * pool["nodes"]
    served = named.problem["kind"] == "serve"
    sizes = {name.rpartition(".")[2]: value for name, value in named.axes.items() if isinstance(value, int)}
    tp, pp, dp, cp, ep = (sizes.get(axis, 1) for axis in ("tp", "pp", "dp", "cp", "ep"))
    product = tp * pp * dp * cp
    broken = {
        "devices": product > gpus,
        "heads": known.heads % tp > 0 or (known.kv_heads % tp > 0 and tp % known.kv_heads > 0),
        "layers": pp > known.layers,
        "dense": not known.experts and (ep > 1 or (served and dp > 1)),
        "experts": known.experts > 0 and known.experts % ep > 0,
    }
    if served:
        apart = named.axes.get("mode") == "disaggregated"
        decode_pp = named.axes.get("role.decode.pp", named.axes.get("pp", 1) if apart else 1)
        broken |= {"node": product & (product - 1) > 0, "domain": tp > 8, "engine": decode_pp != 1}
    else:
        options = named.problem["options"]
        batch, tokens = options["global_batch"], options["sequence_tokens"]
        broken |= {
            "batch": batch % (dp * sizes.get("micro_batch", 1)) > 0,
            "sequence": tokens % (cp * tp) > 0
            or (cp > 1 and tokens % (2 * cp * tp) > 0 and known.heads % (cp * tp) > 0),
        }
    return {rule for rule, holds in broken.items() if holds}


def stated(named: Named, axes: Mapping[str, int | str]) -> Json:
    """The problem with the values in its options, where the reference of problem files says that they stand."""
    data = copy.deepcopy(named.problem)
    options = data["options"]
    for name, value in axes.items():
        role, _, axis = name.removeprefix("role.").rpartition(".")
        if data["kind"] == "train":
            options.setdefault("search", {})[axis] = [value]
        elif role:
            options.setdefault("roles", {}).setdefault(role, {})[axis] = [value]
        else:
            options["modes" if axis == "mode" else axis] = [value]
    return data


def solved(data: Json) -> Envelope | None:
    try:
        return solve(resolved(data), level="static")
    except (Infeasible, PlannerError):
        return None


def wrong(named: Named, best: Envelope, fact: Fact) -> str:
    """What is wrong with an answer; empty where it names the true loss, or the true rule."""
    broken = rules_broken(named)
    there = solved(stated(named, named.axes))
    if there is not None and _without_its_role(named, there):
        there = solved(stated(named, {**named.axes, "mode": "disaggregated"}))
    if "no plan" not in fact.what:
        return _wrong_loss(best, there, fact, broken)
    if there is not None and not _without_its_role(named, there):
        return "there is a plan"
    said = rules_said(fact.what)
    if broken:
        return "" if said & broken and said <= broken | BY_THE_REST else f"said {said}, broken {broken}"
    if named.problem["kind"] == "train":
        return _wrong_rule_of_training(named, said)
    return _wrong_limits(named, fact, said)


def _without_its_role(named: Named, there: Envelope) -> bool:
    roles = {str(role["function"]) for role in there.decision["roles"]}  # type: ignore[union-attr,index,call-overload]  # a list of records
    return any(name.startswith("role.") and name.split(".")[1] not in roles for name in named.axes)


def _wrong_loss(best: Envelope, there: Envelope | None, fact: Fact, broken: set[str]) -> str:
    if broken:
        return f"priced, and broken are {broken}"
    if there is None:
        return "there is no plan"
    ours, theirs = best.certificate.objective, there.certificate.objective
    if ours.value is None or theirs.value is None:
        return "no objective"
    loss = (ours.value - theirs.value if ours.sense == "maximize" else theirs.value - ours.value) / abs(ours.value)
    return "" if abs(float(fact.figures["loss"] or 0.0) - loss) < 1e-6 else f"the loss is {loss:.4f}"


def _wrong_rule_of_training(named: Named, said: set[str]) -> str:
    """Memory is short where an enumeration of its own finds a legal candidate; else several axes break a rule."""
    legal = next(every_candidate(job(stated(named, named.axes))), None) is not None
    if legal:
        return "" if said == {"memory"} else f"candidates are legal, said {said}"
    return "" if said and "memory" not in said else f"no candidate is legal, said {said}"


def _wrong_limits(named: Named, fact: Fact, said: set[str]) -> str:
    """Limits that are named give way to a plan where they are lifted."""
    data = stated(named, named.axes)
    (workload,), (pool,) = data["workloads"], data["cluster"]["pools"]
    rule = str(fact.rule)
    for time in ("ttft", "tpot"):
        if f"{time} <=" in rule:
            del workload["slo"][time]
    if "rate " in rule:
        workload["load"]["rate"] = "0.001/s"
    if "gpus <=" in rule:
        pool |= {"nodes": 16, "gpus_per_node": 8}
        pool.pop("gpus")
    if "memory_reserve" in rule:
        data["options"]["memory_reserve"] = 0
    if data == stated(named, named.axes):
        return f"names no limit of the problem: {rule}"
    return "" if solved(data) is not None else f"no plan without {rule}"


def by_one_rule(named: Named) -> bool:
    """The one-line rule: it can be where all sizes are powers of two that together are no more than the GPUs."""
    sizes = [value for name, value in named.axes.items() if isinstance(value, int) and "batch" not in name]
    (pool,) = named.problem["cluster"]["pools"]
    return prod(sizes) <= (pool.get("gpus") or 8 * pool["nodes"]) and all(size & (size - 1) == 0 for size in sizes)
