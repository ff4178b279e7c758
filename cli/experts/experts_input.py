"""Input of `planner experts`: problem instances or recorded expert loads, options, and the step cost model."""

from pathlib import Path
from typing import Any

import numpy as np

from planner.cli.options import fraction
from planner.cli.output import say
from planner.documents.units import BYTES, parse_quantity
from planner.errors import PlannerError
from planner.experts.instance import DRIFT_SLACK, ExpertsInstance
from planner.experts.model_layers import layers_of
from planner.experts.ranks import make_ranks
from planner.experts.readers import Loads, read_loads
from planner.experts.step_time import MoeCosts, expert_bytes
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.hardware.unspecified import UNSPECIFIED
from planner.interchange.experts_instance import experts_problem, read_instance
from planner.interchange.experts_stated import instance_of_problem, refuse_stated, setting_of
from planner.interchange.formats import states_instance, states_problem
from planner.models.architecture import Architecture
from planner.models.library import find_model, load_model


def instance_of(
    path: str,
    array: str | None,
    ranks: int | None,
    slots: str | None,
    speeds: str | None,
    ranks_per_node: int | None,
    groups: int,
    model: str | None = None,
) -> ExpertsInstance:
    """The instance in a file, or one made of loads and flags; `model` says which layers of the loads have experts."""
    given = {
        "--array": array, "--ranks": ranks, "--slots-per-rank": slots, "--rank-speeds": speeds,
        "--ranks-per-node": ranks_per_node,
    }  # fmt: skip
    setting = setting_of(path, {**given, "--groups": None if groups == 1 else groups, "--model": model})
    if setting is not None:
        return instance_of_problem(setting)
    if states_instance(path):
        refuse_stated("an instance", given)
        return read_instance(path)
    recorded = _read(path, array, model)
    for flag, value in (("--ranks", ranks), ("--slots-per-rank", slots)):
        if value is None:
            raise PlannerError("is needed: the loads do not say", where=flag, hint=f"write for example `{flag} 8`")
    assert ranks is not None
    assert slots is not None
    windows = len(recorded.load_WLE)
    return ExpertsInstance(
        name=path,
        kind="drift" if windows > 1 else "static",
        array=recorded.load_WLE if windows > 1 else recorded.load_WLE[0],
        ranks=make_ranks(
            ranks,
            [int(count) for count in _by_rank(slots, ranks, "--slots-per-rank", whole=True)],
            speeds=None if speeds is None else _by_rank(speeds, ranks, "--rank-speeds"),
            ranks_per_node=min(ranks_per_node or 8, ranks),
        ),
        num_experts=recorded.load_WLE.shape[2],
        groups=groups,
        expert_bytes=0.0 if model is None else expert_bytes(model_of(model)),
    )


def _by_rank(text: str, ranks: int, flag: str, *, whole: bool = False) -> list[float]:
    """`9` for every rank, or one figure for each of them as `9,9,8`."""
    wanted = "a whole number of at least 1" if whole else "a positive number"
    figures = []
    for part in text.split(","):
        try:
            value = float(int(part)) if whole else float(part)
        except ValueError:
            value = 0.0
        if not 0.0 < value < float("inf"):
            raise PlannerError(f"must be {wanted}, or one for every rank, found `{text}`", where=flag)
        figures.append(value)
    if len(figures) not in (1, ranks):
        raise PlannerError(f"{len(figures)} figures for {ranks} ranks", where=flag, hint=f"give one, or {ranks}")
    return figures if len(figures) == ranks else figures * ranks


def _read(path: str, array: str | None, model: str | None) -> Loads:
    """Recorded loads; says which layers were left out as dense where no model does."""
    recorded = read_loads(path, array=array, model=None if model is None else layers_of(model_of(model)))
    if model is None and recorded.layer_ids[0] > 0:
        say(f"layers before {recorded.layer_ids[0]} record no load and are left out as dense")
    return recorded


def model_of(name: str) -> Architecture:
    """The model of `--model`: a name of the catalog, or the path of a config.json or of a folder that holds one."""
    try:
        return load_model(name) if Path(name).exists() else find_model(name)
    except PlannerError as error:
        raise PlannerError(error.what, where=f"--model: {error.where}".removesuffix(": "), hint=error.hint) from None


def problem_of(
    path: str,
    instance: ExpertsInstance,
    array: str | None,
    model: str | None,
    resident: str | None,
    seed: int,
    **wishes: Any,  # noqa: ANN401 - options of the kind
) -> dict[str, Any]:
    """The problem of kind `experts` that the instance and the flags state; PlannerError for a file that is one."""
    if states_problem(path):
        raise PlannerError(
            "is a problem: this verb makes one of loads and flags",
            where=path,
            hint="`planner solve PROBLEM`, and `planner emit PLAN --target experts-placement` for the layout's arrays",
        )
    near = resident is not None and instance.kind == "static" and not wishes["ahead"]
    if near and wishes["tolerance"] is None:
        wishes["tolerance"] = DRIFT_SLACK
    stated = {name: value for name, value in wishes.items() if value not in (False, "equal")}
    problem = experts_problem(instance, path, array=array, resident=resident, **stated)
    if model is not None and not states_instance(path):
        problem["models"] = {"moe": {"config" if Path(model).exists() else "name": model}}
    return {**problem, "seed": seed} if seed else problem


def wishes_of(
    shares: str,
    ahead: bool,
    tolerance: str | None,
    most_moved: str | None,
    nodes_per_group: int | None,
    imbalance_price: float | None,
) -> dict[str, Any]:
    """Flags of the search as options of the kind."""
    if shares not in ("equal", "free"):
        raise PlannerError(f"must be `equal` or `free`, found `{shares}`", where="--shares", hint="use `equal`")
    if ahead and (shares == "free" or most_moved is not None):
        raise PlannerError(
            "layouts made ahead have equal shares, and moves as --tolerance allows",
            where="--ahead",
            hint="leave out --shares and --most-moved",
        )
    most_bytes = None if most_moved is None else parse_quantity(most_moved, BYTES, where="--most-moved")
    if most_bytes is not None and most_bytes < 0:
        raise PlannerError(f"must be at least 0, found `{most_moved}`", where="--most-moved", hint="write `50GB`")
    return {
        "shares": shares,
        "ahead": ahead,
        "tolerance": None if tolerance is None else fraction(tolerance, "--tolerance"),
        "most_moved_bytes": most_bytes,
        "nodes_per_group": nodes_per_group,
        "imbalance_price": imbalance_price,
    }


def loads_of(path: str, array: str | None, ranks: int | None, model: str | None = None) -> tuple[Any, int]:
    """[W, L, E] loads and the number of ranks, from an instance, a problem, or recorded loads."""
    setting = setting_of(path, {"--array": array, "--model": model})
    if setting is not None and setting.options.policy == "affinity":
        raise PlannerError("holds choices of tokens, not loads", where=path, hint="name loads by window")
    if setting is not None:
        return setting.loads.load_WLE, ranks or setting.options.ep
    if states_instance(path):
        instance = read_instance(path)
        if instance.kind == "affinity":
            raise PlannerError("holds choices of tokens, not loads", where=path, hint="name loads by window")
        load = np.asarray(instance.array, np.float64)
        load = load.sum(axis=2) if instance.kind == "realtime" else load
        return (load if load.ndim == 3 else load[None]), ranks or instance.ranks.num_ranks
    if ranks is None:
        raise PlannerError("is needed: the loads do not say", where="--ranks", hint="write for example `--ranks 32`")
    return _read(path, array, model).load_WLE, ranks


def per_node_of(path: str, ranks_per_node: int | None) -> int:
    """Ranks of a node: those of the problem's machines, of the flag, or 8."""
    setting = setting_of(path, {"--ranks-per-node": ranks_per_node})
    return ranks_per_node or 8 if setting is None else setting.near.node.num_gpus


def costs_of(
    path: str, model: str | None, gpu: str | None, ranks: int, ranks_per_node: int | None, tokens_per_rank: int
) -> MoeCosts | None:
    """The cost model of the problem's model and GPUs, or of `--model` on `--gpu`; None where neither says them."""
    setting = setting_of(path, {"--model": model, "--gpu": gpu})
    if (
        setting is not None
        and setting.model is not None
        and setting.resolved.problem.cluster.pools[0].gpu != UNSPECIFIED
    ):
        return MoeCosts(setting.model, setting.near, ranks, float(tokens_per_rank))
    if model is None and gpu is None:
        return None
    if model is None or gpu is None:
        missing = "--model" if model is None else "--gpu"
        raise PlannerError("is needed for step times", where=missing, hint="give both --model and --gpu")
    node = find_node(gpu).of_size(ranks_per_node or 8)
    pool = Pool(name=gpu, node=node, num_nodes=-(-ranks // node.num_gpus))
    return MoeCosts(model_of(model), pool, ranks, float(tokens_per_rank))
