"""Reads JSON lines of estimate requests: the fields of a problem, and a decision, to one case.

{"id": "a", "models": {...}, "cluster": {...}, "workloads": [...], "engine": {...},
 "decision": {"mode": "colocated", "replicas": 2, "parallelism": {"tp": 4}, "max_batch": 256, "chunk_tokens": 8192}}
{"id": "b", ..., "decision": {"mode": "disaggregated", "prefill": {"replicas": 2, "parallelism": {"tp": 2}},
 "decode": {"replicas": 1, "parallelism": {"tp": 4}}}}
A decision may hold `settings`, what else the engine and the load generator were told (`SettingsSpec`).
"""

import json
import math
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from planner.costs.serving.speculation import Drafter, drafter_of
from planner.engines.formats import runs_on
from planner.engines.serving.registry import SERVING_ENGINES
from planner.engines.settings import engine_setting
from planner.errors import PlannerError, in_one_line
from planner.estimate.case import Case, Part, Refused
from planner.estimate.settings import (
    MOST_JITTER,
    MOST_REDUNDANT,
    placed_at,
    priced_version,
    tiles_at,
    triton_at,
    whole_at,
)
from planner.hardware.accelerator import Accelerator
from planner.kinds.serve.options import ServeOptions
from planner.models.architecture import MoeFfn
from planner.plan.records import Count
from planner.plan.schema import Parallelism
from planner.problem.resolve import Resolved, resolve
from planner.problem.schema import EngineSpec, LoadSpec, Problem
from planner.problem.speculation import MOST_DRAFTS, SpeculationSpec
from planner.schema.base import Spec, Where, refuse
from planner.schema.keys import validated

REQUEST = Where({}, "request")


class PartSpec(Spec):
    """Equal instances of one role."""

    replicas: Count = 1
    parallelism: Parallelism = Parallelism()
    max_batch: Count | None = Field(default=None, description="sequences per attention rank")
    chunk_tokens: Count | None = Field(default=None, description="prefill tokens per step")
    micro_batches: Literal[1, 2] = Field(
        default=1, description="2 where steps are cut in halves that hide each other's exchange between experts"
    )
    redundant_experts: Annotated[int, Field(ge=0, le=MOST_REDUNDANT)] | None = Field(
        default=None, description="experts of a layer that the engine copies to place all by load; absent: by number"
    )


class SettingsSpec(Spec):
    """What else the engine and its load generator were told; the engine's defaults where absent."""

    captured_tokens: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="of the largest step that CUDA graphs hold"
    )
    async_scheduling: bool | None = Field(default=None, description="the next step is scheduled beside the device")
    poll_steps: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="decode steps between looks at new requests"
    )
    hold_steps: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="decode steps for which prompts wait to be batched"
    )
    staggered: bool = Field(default=False, description="clients start one after the other")
    in_process: bool = Field(
        default=False, description="requests are handed to the engine in its own process, past its front end"
    )
    mixed_steps: bool = Field(
        default=False, description="prompts share steps with decoding, as --enable-mixed-chunk has it"
    )
    jitter: Annotated[float, Field(ge=0, le=MOST_JITTER)] = Field(
        default=0.0, description="coefficient of variation of the time of a step"
    )
    graph_batch: Count | None = Field(
        default=None, description="sequences of an attention rank in the largest decoding step of a CUDA graph"
    )
    whole_tiles: bool | None = Field(
        default=None, description="kernels of experts in fp8 blocks compute a tile of each, tokens or not"
    )
    triton_experts: bool | None = Field(
        default=None, description="OpenAI's Triton kernels run experts in mxfp4 on Hopper"
    )
    chunked_prefill: bool | None = Field(default=None, description="prompts are cut to fit into a step")
    preempts: bool = Field(default=False, description="sequences give their place up where the cache is full")


class GivenDecision(PartSpec):
    """A serving decision; the instances' own fields are those of a colocated one."""

    mode: Literal["colocated", "disaggregated"] = "colocated"
    draft_tokens: Annotated[int, Field(ge=0, le=MOST_DRAFTS)] = Field(
        default=0, description="of a sequence in a step that decodes, as `options.speculation` says"
    )
    prefill: PartSpec | None = None
    decode: PartSpec | None = None
    settings: SettingsSpec = SettingsSpec()

    @model_validator(mode="after")
    def parts(self) -> "GivenDecision":
        if self.mode == "disaggregated" and (self.prefill is None or self.decode is None):
            raise refuse("a disaggregated decision needs `prefill` and `decode`", "give both")
        if self.mode == "colocated" and (self.prefill is not None or self.decode is not None):
            raise refuse("a colocated decision has no `prefill` or `decode`", "write `mode: disaggregated`")
        return self


def cases_of_lines(lines: Iterable[str]) -> Iterator[Case | Refused]:
    """One case a line; what is wrong with a line stands in its own answer."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _case(line, number)


def _case(line: str, number: int) -> Case | Refused:
    name = f"line {number}"
    try:
        data = json.loads(line)
        if not isinstance(data, dict):
            return Refused(name, "a request is a JSON object")
        name = str(data.pop("id", name))
        if "decision" not in data:
            return Refused(name, """`decision` is missing: say what to price, such as {"parallelism": {"tp": 8}}""")
        decision = validated(GivenDecision, data.pop("decision"), lambda path: REQUEST(("decision", *path)))
        return _build(name, json.dumps({"kind": "serve", **data}), decision)
    except PlannerError as error:
        return Refused(name, in_one_line(error))
    except (json.JSONDecodeError, RecursionError):
        return Refused(name, "is no JSON")


@cache
def _resolved(text: str) -> Resolved:
    """The problem part of a request; equal parts of many requests are resolved once."""
    problem = validated(Problem, json.loads(text), REQUEST)
    validated(ServeOptions, problem.options, lambda path: REQUEST(("options", *path)))
    return resolve(problem, REQUEST, base=Path())


def _load_of(resolved: Resolved) -> LoadSpec:
    """The load of the one workload of a request, whose problem an estimate can take; raises PlannerError."""
    if len(resolved.workloads) != 1 or len(resolved.pools) != 1:
        raise PlannerError("an estimate takes one workload and one pool", hint="split the request")
    if resolved.workloads[0].media is not None:
        raise PlannerError(
            "estimates are of text alone, and the workload brings images or sounds",
            where="workloads.0",
            hint="leave them out, or solve the problem with `planner solve`",
        )
    load = resolved.workloads[0].spec.load
    if load is None:
        raise PlannerError("the workload has no load", where="workloads.0", hint="add `load: {concurrency: 16}`")
    return load


def _parts(resolved: Resolved, given: GivenDecision) -> tuple[Part | None, Part, int]:
    """What prefills where that is apart, what decodes, and the GPUs of both, which the pool must have."""
    engine, pool = resolved.problem.engine, resolved.pools[0]
    gpu, layers = pool.node.accelerator, resolved.models[resolved.workloads[0].model].layers
    experts = any(isinstance(layer.ffn, MoeFfn) for layer in layers)
    decode = _part(given.decode if given.decode is not None else given, engine, gpu, experts)
    prefill = _part(given.prefill, engine, gpu, experts) if given.prefill is not None else None
    used = sum(part.replicas * part.devices for part in (prefill, decode) if part is not None)
    if used > pool.num_gpus:
        raise PlannerError(f"the decision uses {used} GPUs, the pool has {pool.num_gpus}", where="decision")
    return prefill, decode, used


def _build(name: str, text: str, given: GivenDecision) -> Case:
    resolved = _resolved(text)
    load, workload, problem = _load_of(resolved), resolved.workloads[0], resolved.problem
    prefill, decode, used = _parts(resolved, given)
    drafter = _drafter(text) if given.draft_tokens else None
    if given.draft_tokens and drafter is None:
        raise PlannerError(
            "the decision has drafts, and the problem no drafter",
            where="decision.draft_tokens",
            hint="add `options.speculation`",
        )
    engine, settings = problem.engine, given.settings
    gpu = resolved.pools[0].node.accelerator
    if not runs_on(engine.name, gpu):
        title = SERVING_ENGINES[engine.name].title
        what = f"{title} does not run on {gpu.display_name}"
        raise PlannerError(what, where="engine.name", hint="name another engine, or other GPUs")
    return Case(
        id=name,
        arch=resolved.models[workload.model],
        pool=resolved.pools[0],
        engine=engine.name,
        version=priced_version(engine.name, engine.version, settings.async_scheduling),
        memory_utilisation=engine.memory_utilisation,
        isl=workload.input.mean_tokens,
        osl=workload.output.mean_tokens,
        isl_cv=workload.input.cv,
        osl_cv=workload.output.cv,
        clients=load.concurrency or 0,
        rate_per_s=load.rate_per_s or 0.0,
        prefill=prefill,
        decode=decode,
        gpus=used,
        calibration=problem.costs.calibration,
        staggered=settings.staggered,
        hold_steps=settings.hold_steps,
        poll_steps=settings.poll_steps,
        captured_tokens=settings.captured_tokens,
        in_process=settings.in_process,
        mixed_steps=settings.mixed_steps,
        jitter=settings.jitter,
        graph_batch=settings.graph_batch or math.inf,
        preempts=settings.preempts,
        whole_tiles=tiles_at(engine.name, engine.version, settings.whole_tiles),
        triton_experts=triton_at(engine.name, engine.version, settings.triton_experts),
        whole_prompts=whole_at(engine.name, engine.version, settings.chunked_prefill),
        prefix_hits=workload.spec.prefix_hits or 0.0,
        draft_tokens=given.draft_tokens,
        drafter=drafter,
    )


@cache
def _drafter(text: str) -> Drafter | None:
    """What drafts, as the problem part of a request says."""
    resolved = _resolved(text)
    arch = resolved.models[resolved.workloads[0].model]
    return drafter_of(SpeculationSpec.of(resolved.problem), arch, resolved.models, "options.speculation")


def _part(spec: PartSpec, engine: EngineSpec, gpu: Accelerator, experts: bool) -> Part:
    """With the engine's limits where it states none: of attention ranks that share experts, those of each."""
    shape, ranks = spec.parallelism, spec.parallelism.dp if experts else 1
    max_batch, chunk_tokens = (
        int(engine_setting(engine.name, name, engine.version, gpu, ranks)) for name in ("max_batch", "chunk_tokens")
    )
    moe_tp = shape.moe_tp if shape.moe_tp * shape.ep == shape.tp * shape.dp else shape.tp * shape.dp // shape.ep
    limits = (spec.max_batch or max_batch, spec.chunk_tokens or chunk_tokens, spec.micro_batches)
    redundant = placed_at(engine.name, engine.version, spec.redundant_experts)
    return Part(spec.replicas, shape.tp, shape.pp, shape.dp, moe_tp, shape.ep, *limits, redundant)
