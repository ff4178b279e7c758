"""A proposed benchmark run as a plan of its own and as commands: launch, load, and use of the report."""

import shlex
from dataclasses import replace
from pathlib import Path

from planner import __version__
from planner.documents.files import digest
from planner.emit.loads.drive import drive_of
from planner.emit.loads.generators import GUIDELLM_REPORT, GeneratorRun, guidellm
from planner.emit.registry import emit
from planner.emit.serving.scene import API_PORT, ROUTER_PORT
from planner.errors import PlannerError
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.plan.place import placement_blocks
from planner.kinds.serve.steady.context import role_context
from planner.plan.schema import (
    SCHEMA,
    Certificate,
    Digests,
    Engine,
    Envelope,
    Objective,
    Parallelism,
    Prediction,
    Role,
    Route,
    Software,
)
from planner.problem.resolve import normalised
from planner.problem.schema import LoadSpec, MomentLengths, Problem, TraceLengths
from planner.problem.slo import SloSpec
from planner.propose.alternative import Alternative
from planner.propose.deployments import Question

REQUESTS_PER_CLIENT = 8  # of a run, at least: fewer are all opening burst
LEAST_S = 60.0


def plan_of(question: Question, alternative: Alternative) -> Envelope:
    """The deployment of `alternative` on the first GPUs of its pool, under its load: a plan that claims nothing."""
    resolved = question.setting.resolved
    (workload,) = resolved.problem.workloads
    (facts,) = resolved.workloads
    update: dict[str, object] = {"load": LoadSpec(concurrency=alternative.case.clients), "slo": SloSpec()}  # no promise
    for side, lengths in (("input_tokens", facts.input), ("output_tokens", facts.output)):
        if isinstance(getattr(workload, side), TraceLengths):  # a generator needs numbers
            update[side] = MomentLengths(mean=lengths.mean_tokens, cv=lengths.cv)
    loaded = workload.model_copy(update=update)
    problem = resolved.problem.model_copy(update={"workloads": (loaded,)})
    inputs = normalised(replace(resolved, problem=problem))
    known = resolved.digests()
    metric = "output_tokens_per_s_per_gpu"
    output = alternative.output_tokens_per_s_per_gpu(alternative.ttft_s, alternative.tpot_s) * alternative.price
    return Envelope(
        schema=SCHEMA,
        kind="serve",
        name=f"{problem.name}-{alternative.name}",
        software=Software(planner=__version__),
        seed=problem.seed,
        digests=Digests(
            problem=digest(inputs), models=known["models"], hardware=known["hardware"], traces=known["traces"]
        ),
        inputs=inputs,
        decision=_decision(question, alternative).model_dump(mode="json", exclude_none=True),
        predictions=(
            Prediction(metric="ttft_s", of=workload.name, value=alternative.ttft_s),
            Prediction(metric="tpot_s", of=workload.name, value=alternative.tpot_s),
            Prediction(metric=metric, value=output),
        ),
        certificate=Certificate(
            claim="a deployment to be measured; nothing is claimed of it",
            status="stated",
            objective=Objective(metric=metric, sense="maximize", value=output),
        ),
    )


def _decision(question: Question, alternative: Alternative) -> ServeDecision:
    setting, team = question.setting, question.teams[alternative.name]
    pool = setting.resolved.pools[team.decode[0].pool]
    engine = setting.resolved.problem.engine
    parts = [part for part in (alternative.case.prefill, alternative.case.decode) if part is not None]
    roles = []
    for (candidate, count), part in zip(team.members, parts, strict=True):
        shape = candidate.shape
        held = role_context(candidate, setting.costs_of_pool[candidate.model, candidate.pool])
        limits: dict[str, float | int | str] = {"max_context_tokens": held.tokens}
        sizes = {"max_batch": part.max_batch, "chunk_tokens": part.chunk_tokens, "draft_tokens": candidate.draft_tokens}
        limits |= {name: size for name, size in sizes.items() if size} | shape.limits
        roles.append(
            Role(
                name=candidate.function,
                function=candidate.function,
                model=candidate.model,
                engine=Engine(name=engine.name, version=engine.version),
                pool=pool.name,
                replicas=count,
                parallelism=Parallelism(tp=shape.tp, pp=shape.pp, dp=shape.dp, moe_tp=shape.moe_tp, ep=shape.ep),
                limits=limits,
            )
        )
    (target,) = setting.targets
    routing = [Route(workload=target.name, to=roles[0].name, share=1.0)]
    if len(roles) == 2:
        routing.append(Route(workload=target.name, source=roles[0].name, to=roles[1].name, share=1.0))
    return ServeDecision(
        mode="colocated" if len(roles) == 1 else "disaggregated",
        roles=tuple(roles),
        placement=tuple(
            placement_blocks(
                pool, [(((candidate.function, candidate.shape),), count) for candidate, count in team.members]
            )
        ),
        routing=tuple(routing),
    )


def duration_s(alternative: Alternative) -> float:
    """How long a run should last: every client sends REQUESTS_PER_CLIENT requests."""
    request_s = alternative.ttft_s + alternative.tpot_s * (alternative.case.osl - 1.0)
    return max(LEAST_S, float(round(REQUESTS_PER_CLIENT * request_s)))


def commands(question: Question, alternative: Alternative, envelope: Envelope, folder: str) -> list[str]:
    """Shell lines that make the run of `alternative`, whose plan lies under `folder` as `plan_file` says."""
    several = sum(count for _, count in question.teams[alternative.name].members) > 1
    drive = drive_of(envelope, Problem.model_validate(envelope.inputs))
    port = ROUTER_PORT if several else API_PORT
    here = Path(folder) / alternative.name
    run = GeneratorRun(drive, f"http://127.0.0.1:{port}", drive.model, duration_s(alternative), here)
    return [*_launch(envelope, folder, alternative), shlex.join(["mkdir", "-p", str(here)]), shlex.join(guidellm(run))]


def plan_file(folder: str, alternative: Alternative) -> Path:
    """Where the plan of a run lies."""
    return Path(folder) / f"{alternative.name}.plan.json"


def report_file(folder: str, alternative: Alternative) -> Path:
    """Where the report of a run will lie."""
    return Path(folder) / alternative.name / GUIDELLM_REPORT


def _launch(envelope: Envelope, folder: str, alternative: Alternative) -> list[str]:
    """Writing the launch scripts and starting each on its node; a remark where none can be written."""
    plan, engine = plan_file(folder, alternative), alternative.case.engine
    try:
        scripts = emit(envelope, ServeDecision.model_validate(envelope.decision), engine)
    except PlannerError as error:
        return [f"# start {engine} as {plan} says; launch scripts cannot be written: {error.what}".replace("\n", " ")]
    launch = Path(folder) / alternative.name / "launch"
    first = shlex.join(["planner", "emit", str(plan), "--target", engine, "-o", str(launch)])
    where = "  # each on its node" if len(scripts) > 1 else ""
    return [first, *(f"{shlex.quote(str(launch / name))} &{where}" for name in sorted(scripts))]
