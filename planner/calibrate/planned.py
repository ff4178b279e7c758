"""A benchmark run of a plan's own deployment: all but load and lengths is read off the plan."""

from collections.abc import Mapping

from planner.benchmark_reports.records import MeasuredRun
from planner.calibrate.serving import Deploy, load_row
from planner.errors import PlannerError
from planner.estimate.case import Case, Part
from planner.plan.records import BY_NUMBER, PlanDocument, Role

_UTILISATION = 0.9  # a plan that does not say
_PLAIN = {"micro_batches": 1, "redundant_experts": BY_NUMBER}  # of roles that do not say
_TAKEN = ("concurrency", "rate_per_s", "isl", "osl", "isl_cv", "backend_version")


def deploy_planned(path: str, facts: Mapping[str, str]) -> Deploy:
    """Cases of the deployment in the plan at `path`; raises PlannerError for a plan that is not one deployment.

    `facts` may tell load, lengths and the engine's version; the rest is the plan's.
    """
    from planner.execute.judge.pricing import plan_pool
    from planner.execute.shards.spec import plan_model
    from planner.plan.reader import read_plan

    plan = read_plan(path)
    foreign = [name for name in facts if name not in _TAKEN]
    if foreign:
        raise PlannerError(
            f"`{foreign[0]}` is stated by the plan",
            where="--fact",
            hint=f"leave it out; with `--plan` a fact may be {', '.join(_TAKEN)}",
        )
    prefill, decode = _roles(plan)
    if decode.limits.get("draft_tokens"):
        raise PlannerError(
            f"role `{decode.name}` speculates, and drafts are no part of the fit",
            where=plan.source,
            hint="measure it without drafts",
        )
    arch, pool = plan_model(plan, decode), plan_pool(plan, decode.pool)
    prefilling, decoding = _part(prefill) if prefill is not None else None, _part(decode)
    used = sum(part.replicas * part.devices for part in (prefilling, decoding) if part is not None)
    asked = plan.inputs.get("engine")
    options = asked if isinstance(asked, Mapping) else {}
    engine = decode.engine.name if decode.engine is not None else str(options.get("name") or "vllm")
    version = decode.engine.version if decode.engine is not None else options.get("version")

    def case_of(run: MeasuredRun, source: str, name: str) -> Case:
        load = load_row(run, facts, source)
        own = facts.get("backend_version") or run.engine_version or version
        return Case(
            id=name,
            arch=arch,
            pool=pool,
            engine=engine,
            version=str(own) if own else None,
            memory_utilisation=float(options.get("memory_utilisation") or _UTILISATION),
            isl=float(load["isl"]),
            osl=float(load["osl"]),
            isl_cv=float(load.get("isl_cv") or 0.0),
            clients=int(load["concurrency"] or 0),
            rate_per_s=float(load["rate_per_s"] or 0.0),
            prefill=prefilling,
            decode=decoding,
            gpus=used,
        )

    return case_of


def _roles(plan: PlanDocument) -> tuple[Role | None, Role]:
    """The roles that prefill alone (None in a colocated plan) and that decode."""
    functions = sorted(role.function for role in plan.roles)
    if plan.kind == "serve" and functions == ["colocated"]:
        return None, plan.roles[0]
    if plan.kind == "serve" and functions == ["decode", "prefill"]:
        by_function = {role.function: role for role in plan.roles}
        return by_function["prefill"], by_function["decode"]
    raise PlannerError(
        f"a measured deployment is one colocated role or one pair, found {', '.join(functions) or 'no role'}",
        where=plan.source,
        hint="give the deployment with `--fact NAME=VALUE` instead",
    )


def _part(role: Role) -> Part:
    shape = role.parallelism
    limits = {name: int(role.limits.get(name) or 0) for name in ("max_batch", "chunk_tokens")}
    ranks = shape.tp * shape.dp
    moe_tp = shape.moe_tp if shape.moe_tp * shape.ep == ranks else ranks // shape.ep
    cut, copies = (int(role.limits.get(name, plain)) for name, plain in _PLAIN.items())
    return Part(
        role.replicas, shape.tp, shape.pp, shape.dp, moe_tp, shape.ep, **limits, micro_batches=cut, redundant=copies
    )
