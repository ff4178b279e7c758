"""A problem with every name resolved: architectures, pools, engine, and digests of all of it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from planner.documents.files import digest
from planner.errors import PlannerError, errors_at
from planner.hardware.cluster import NodeType, Pool
from planner.hardware.unspecified import NODE, UNSPECIFIED
from planner.models.architecture import Architecture
from planner.problem.cached_prefixes import CachedPrefixes
from planner.problem.encoded import Media, media_of
from planner.problem.lengths import LengthFacts
from planner.problem.schema import (
    Lengths,
    ModelSpec,
    MomentLengths,
    PoolSpec,
    Problem,
    ShapeLengths,
    TraceLengths,
    UniformLengths,
    WorkloadSpec,
)
from planner.problem.shapes import find_shape
from planner.problem.trace_rows import recorded, trace_rows
from planner.problem.wiring import wired
from planner.schema.base import Where


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload with its lengths as numbers."""

    spec: WorkloadSpec
    model: str
    input: LengthFacts
    output: LengthFacts
    trace: Path | None = None  # of its prompts, where they are those of a trace
    media: Media | None = None  # that its requests bring


@dataclass(frozen=True, slots=True)
class Resolved:
    """Everything a kind needs to solve; `where` locates a path of the problem in its file."""

    problem: Problem
    models: dict[str, Architecture]
    pools: tuple[Pool, ...]
    workloads: tuple[Workload, ...]
    where: Where
    cached: CachedPrefixes | None = None  # what of the `cache` of the problem is bought, once that is decided
    confidence: float | None = None  # with which limits are kept of which the problem does not say, once it is chosen

    @property
    def price_notes(self) -> tuple[str, ...]:
        """Where the price of each pool comes from that the problem leaves to the catalog: provider, region and day."""
        from planner.hardware.library import find_instance

        unpriced = [pool for pool in self.problem.cluster.pools if pool.usd_per_gpu_hour is None]
        instances = [(pool, find_instance(pool.gpu)) for pool in unpriced]
        return tuple(
            f"the price of pool `{pool.label}` is the on-demand price of {instance.name} in {instance.region} "
            f"on {instance.date}: {instance.usd_per_hour:g} USD an hour for {instance.node.num_gpus} GPUs"
            for pool, instance in instances
            if instance is not None and instance.usd_per_hour is not None
        )

    def require_priceable(self, key: str, *, trained: bool = False) -> None:
        """Raises PlannerError for a model with parts that have no cost, where it runs or where it is `trained`."""
        model, place = self.models[key], self.where(("models", key))
        reasons = model.unsupported_parts()
        if reasons:
            raise PlannerError(
                f"{model.name} has parts without a cost: unsupported {'; '.join(reasons)}",
                where=place,
                hint="choose a model whose layers all have costs; `planner models show` tells which do",
            )
        beside = model.parts_beside(sized=trained)
        if beside:
            text_alone = "to plan its text part alone, save the `text_config` of its config.json as a config.json"
            of_use = "training" if trained else "running"
            raise PlannerError(
                f"{model.name} has parts beside its decoder that {of_use} it has no cost for: {', '.join(beside)}",
                where=place,
                hint=f"name a model without them; {text_alone} of its own, and name that: `config: ...`",
            )

    def digests(self) -> dict[str, dict[str, str]]:
        """Digests by section of the plan's `digests`, path-free."""
        from planner.hardware.library import hardware_facts
        from planner.models.library import model_facts

        traces = {
            f"{workload.spec.name}.{side}": facts.digest
            for workload in self.workloads
            for side, facts in (("input", workload.input), ("output", workload.output))
            if facts.digest is not None
        }
        if self.cached is not None:
            traces[f"{self.workloads[0].spec.name}.prefixes"] = self.cached.digest
        return {
            "models": {key: digest(model_facts(architecture)) for key, architecture in self.models.items()},
            "hardware": {pool.name: digest(hardware_facts(pool.node)) for pool in self.pools},
            "traces": traces,
        }


def resolve(problem: Problem, where: Where, *, base: Path = Path()) -> Resolved:
    """Look every name up; relative paths in the problem are relative to `base`, the problem file's folder.

    Raises PlannerError for unknown names, unreadable files and pools without a usable node.
    """
    problem = _with_contents(recorded(problem, where, base), where, base)
    models = {key: resolve_model(problem, key, where, base) for key in problem.models}
    return Resolved(
        problem=problem,
        models=models,
        pools=tuple(resolve_pool(spec, index, where) for index, spec in enumerate(problem.cluster.pools)),
        workloads=tuple(
            _workload(problem, models, spec, index, where, base) for index, spec in enumerate(problem.workloads)
        ),
        where=where,
    )


def _workload(
    problem: Problem, models: dict[str, Architecture], spec: WorkloadSpec, index: int, where: Where, base: Path
) -> Workload:
    model = problem.model_of(spec)
    sides = [
        lengths_facts(getattr(spec, side), side, where(("workloads", index, side)), base)
        for side in ("input_tokens", "output_tokens")
    ]
    return Workload(
        spec=spec,
        model=model,
        input=sides[0],
        output=sides[1],
        trace=base / spec.input_tokens.trace if isinstance(spec.input_tokens, TraceLengths) else None,
        media=media_of(spec, models[model], sides[0].mean_tokens, where, index) if model in models else None,
    )


def normalised(resolved: Resolved) -> dict[str, JsonValue]:
    """The problem as plain data with defaults filled in and paths left out: what the plan carries and digests."""
    data: dict[str, Any] = resolved.problem.model_dump(mode="json", by_alias=True, exclude_none=True)
    data.pop("current", None)
    if "objective" not in resolved.problem.model_fields_set:
        del data["objective"]  # its default is that of serving alone
    if not resolved.pools:
        del data["cluster"]  # of plans that stand on none
    for written, pool in zip(data.get("cluster", {}).get("pools", []), resolved.pools, strict=True):
        if pool.usd_per_gpu_hour is not None:
            written["usd_per_gpu_hour"] = pool.usd_per_gpu_hour
    costs = data["costs"]
    costs.pop("profiles", None)
    if costs["calibration"] not in ("default", "none"):
        costs["calibration"] = "file"
    for workload in data["workloads"]:
        for side in ("input_tokens", "output_tokens"):
            if isinstance(workload[side], dict) and "trace" in workload[side]:
                workload[side]["trace"] = Path(workload[side]["trace"]).name
    return data


def _with_contents(problem: Problem, where: Where, base: Path) -> Problem:
    """The problem with what every config.json says in place of where it lies."""

    def told(key: str, spec: ModelSpec) -> ModelSpec:
        with errors_at(where(("models", key, "config"))):
            name, contents = _config_of(spec, base)
        return spec.model_copy(update={"config": name, "contents": contents})

    own = {key: told(key, spec) for key, spec in problem.models.items() if spec.config is not None}
    return problem.model_copy(update={"models": {**problem.models, **own}}) if own else problem


def _config_of(spec: ModelSpec, base: Path) -> tuple[str, dict[str, Any]]:
    """The name of a model and what its config.json says, as stated or read from the file."""
    from planner.models.library import read_checkpoint

    return read_checkpoint(base / str(spec.config)) if spec.contents is None else (str(spec.config), spec.contents)


def resolve_model(problem: Problem, key: str, where: Where, base: Path) -> Architecture:
    """The model under `key`, in the precision asked for; raises PlannerError when it is unknown or unreadable."""
    from planner.models.library import find_model, model_of_config, with_precision

    spec = problem.models[key]
    with errors_at(where(("models", key, "name" if spec.name is not None else "config"))):
        architecture = find_model(spec.name) if spec.name is not None else model_of_config(*_config_of(spec, base))
        if spec.weights is None and spec.kv_cache is None:
            return architecture
        return with_precision(architecture, spec.weights, spec.kv_cache)


def resolve_pool(spec: PoolSpec, index: int, where: Where) -> Pool:
    """The pool of `spec`; raises PlannerError for unknown hardware, odd sizes, and a pool without a node in service."""
    from planner.hardware.library import find_fabric, find_node, price_per_gpu_hour

    path = ("cluster", "pools", index)
    place = where(path)
    with errors_at(where((*path, "gpu"))):
        node = NODE if spec.gpu == UNSPECIFIED else find_node(spec.gpu)
    if spec.fabric is not None:
        with errors_at(where((*path, "fabric"))):
            node = node.on(find_fabric(spec.fabric))
    node, num_nodes = _sized(node, spec, place)
    if spec.nic_bandwidth_bytes_per_s is not None:
        node = replace(node, nic_bandwidth_bytes_per_s=spec.nic_bandwidth_bytes_per_s)
    pool = Pool(
        name=spec.label,
        node=node,
        num_nodes=num_nodes,
        usd_per_gpu_hour=spec.usd_per_gpu_hour if spec.usd_per_gpu_hour is not None else price_per_gpu_hour(spec.gpu),
        out_of_service=tuple(sorted({_node_index(spec, entry, num_nodes, place) for entry in spec.out_of_service})),
        oversubscription=spec.oversubscription,
    )
    if pool.num_gpus == 0:
        raise PlannerError(
            f"pool `{pool.name}` has no node in service", where=place, hint="take a node off `out_of_service`"
        )
    return pool if spec.topology is None else wired(pool, spec.topology, where((*path, "topology")))


def gpus_per_node(spec: PoolSpec) -> int:
    """GPUs of a node of a pool, as its problem or the catalog says."""
    from planner.hardware.library import find_node

    size = spec.gpus_per_node
    if size is None:
        size = NODE.num_gpus if spec.gpu == UNSPECIFIED else find_node(spec.gpu).num_gpus
    return min(size, spec.gpus) if spec.gpus is not None else size


def _sized(node: NodeType, spec: PoolSpec, where: str) -> tuple[NodeType, int]:
    """The node type and how many, from `nodes`, `gpus` and `gpus_per_node`."""
    per_node = spec.gpus_per_node or node.num_gpus
    if spec.nodes is not None:
        num_nodes = spec.nodes
    else:
        assert spec.gpus is not None
        per_node = min(per_node, spec.gpus)
        num_nodes, rest = divmod(spec.gpus, per_node)
        if rest:
            raise PlannerError(
                f"{spec.gpus} GPUs are no whole number of nodes of {per_node}",
                where=where,
                hint=f"write `gpus: {num_nodes * per_node}` or `gpus: {(num_nodes + 1) * per_node}`",
            )
    return node.of_size(per_node), num_nodes


def _node_index(spec: PoolSpec, entry: int | str, num_nodes: int, where: str) -> int:
    if isinstance(entry, str) and spec.node_names is not None and entry in spec.node_names:
        return spec.node_names.index(entry)
    if isinstance(entry, int) and 0 <= entry < num_nodes:
        return entry
    raise PlannerError(
        f"out_of_service names the unknown node {entry!r}",
        where=where,
        hint=f"use an index from 0 to {num_nodes - 1} or a name of `node_names`",
    )


def lengths_facts(spec: Lengths, column: str, where: str, base: Path = Path()) -> LengthFacts:
    """Mean and CV of lengths; raises PlannerError for traces that cannot be read and shapes that nobody knows."""
    match spec:
        case int():
            return LengthFacts(float(spec), 0.0)
        case UniformLengths():
            mean = (spec.low + spec.high) / 2
            width = spec.high - spec.low + 1
            return LengthFacts(mean, ((width**2 - 1) / 12) ** 0.5 / mean)
        case MomentLengths():
            return LengthFacts(spec.mean, spec.cv)
        case TraceLengths():
            return _trace_lengths(base / spec.trace, spec.column or column, where)
        case ShapeLengths():
            return _facts(find_shape(spec.shape, where=where).lengths(column))


def _trace_lengths(path: Path, column: str, where: str) -> LengthFacts:
    lengths = [_length(row, column, number, path, where) for number, row in enumerate(trace_rows(path, where), 1)]
    if not lengths:
        raise PlannerError(f"trace `{path.name}` has no rows", where=where, hint="give a trace with requests")
    return _facts(tuple(lengths))


def _facts(lengths: tuple[int, ...]) -> LengthFacts:
    mean = sum(lengths) / len(lengths)
    variance = sum((length - mean) ** 2 for length in lengths) / len(lengths)
    return LengthFacts(mean, variance**0.5 / mean, digest(list(lengths)), lengths)


def _length(row: dict[str, str], column: str, number: int, path: Path, where: str) -> int:
    if column not in row:
        known = ", ".join(f"`{name}`" for name in row)
        raise PlannerError(f"`{path.name}` has no column `{column}`", where=where, hint=f"its columns are {known}")
    try:
        value = int(float(row[column]))
    except (TypeError, ValueError):
        value = 0
    if value < 1:
        raise PlannerError(
            f"row {number} of `{path.name}` has the length {row[column]!r}", where=where, hint="lengths are at least 1"
        )
    return value
