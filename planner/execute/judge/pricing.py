"""The kernel-time source for a role of a plan, from the plan alone and without pydantic."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.costs.rates.calibration import Calibration, load_calibration
from planner.costs.rates.pricer import Pricer, make_pricer, open_store, profile_paths
from planner.costs.rates.profiled import EVEN_LOAD, Profiled
from planner.costs.training.rates import rates_on
from planner.errors import PlannerError
from planner.execute.judge.trained import TrainedShards
from planner.hardware.cluster import Pool
from planner.hardware.library import find_fabric, find_node
from planner.models.architecture import Architecture
from planner.plan.records import PlanDocument, Role


def plan_pricer(
    plan: PlanDocument,
    role: Role,
    arch: Architecture,
    *,
    profiles: Sequence[str] = (),
    calibration: str | None = None,
) -> Pricer:
    """Kernel tables where there are any for the role's hardware, else the roofline, as a solve chooses.

    Experts are priced under an even load, which is what random weights and tokens give them, and kernels without the
    engine around them.
    Raises PlannerError for hardware that the catalog does not know, and for a plan whose calibration came from a file
    that is not given.
    """
    pool = plan_pool(plan, role.pool)
    pricer = make_pricer(
        pool,
        arch,
        engine=role.engine.name if role.engine is not None else "default",
        version=role.engine.version if role.engine is not None else None,
        calibration=plan_calibration(plan, calibration),
        store=open_store(profile_paths(profiles)),
        bare=True,
    )
    return replace(pricer, skew=EVEN_LOAD) if isinstance(pricer, Profiled) else pricer


def plan_trained_shards(
    plan: PlanDocument, role: Role, arch: Architecture, *, profiles: Sequence[str] = (), calibration: str | None = None
) -> TrainedShards:
    """What prices the training steps of a role: the rates and kernel tables that a solve takes.

    Raises PlannerError as `plan_pricer` does.
    """
    pool = plan_pool(plan, role.pool)
    rates = rates_on(pool, arch, _calibration_name(plan, calibration), open_store(profile_paths(profiles)))
    return TrainedShards.of(plan, arch, pool, rates)


def plan_calibration(plan: PlanDocument, given: str | None = None) -> Calibration:
    """The calibration file `given`, else the one that the plan's inputs name."""
    return load_calibration(_calibration_name(plan, given))


def _calibration_name(plan: PlanDocument, given: str | None) -> str:
    name = given or str(_mapping(plan.inputs.get("costs")).get("calibration", "default"))
    if name == "file":
        raise PlannerError(
            "the plan was made with a calibration file of its own",
            where=f"{plan.source}: inputs.costs",
            hint="give it: `--calibration FILE`",
        )
    return name


def plan_pool(plan: PlanDocument, name: str) -> Pool:
    """The pool of that name in the plan's inputs, its hardware looked up in the catalog."""
    pools = _mapping(plan.inputs.get("cluster")).get("pools", [])
    named = {str(pool.get("name") or pool.get("gpu")): pool for pool in pools if isinstance(pool, Mapping)}
    where = f"{plan.source}: inputs.cluster.pools"
    if name not in named:
        known = ", ".join(f"`{pool}`" for pool in named) or "none"
        raise PlannerError(f"no pool `{name}`", where=where, hint=f"the pools are {known}")
    return _pool(name, named[name], where)


def _pool(name: str, spec: Mapping[str, Any], where: str) -> Pool:
    node = find_node(str(spec["gpu"]), where=where)
    if spec.get("fabric"):
        node = node.on(find_fabric(str(spec["fabric"]), where=where))
    per_node = int(spec.get("gpus_per_node") or node.num_gpus)
    if spec.get("nodes"):
        num_nodes = int(spec["nodes"])
    else:
        gpus = int(spec.get("gpus") or per_node)
        per_node = min(per_node, gpus)
        num_nodes = max(gpus // per_node, 1)
    node = node.of_size(per_node)
    if spec.get("nic_bandwidth_bytes_per_s"):
        node = replace(node, nic_bandwidth_bytes_per_s=float(spec["nic_bandwidth_bytes_per_s"]))
    return Pool(name, node, num_nodes, oversubscription=float(spec.get("oversubscription", 1.0)))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
