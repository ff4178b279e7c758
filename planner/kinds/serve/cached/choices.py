"""The choices of memory of a serving problem: its trace read once, and any units of its tiers priced."""

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.models.architecture import Architecture
from planner.models.kv import kv_bytes, state_bytes_per_sequence
from planner.problem.prefix_tiers import PrefixCacheSpec
from planner.problem.resolve import Resolved
from planner.problem.schema import TraceLengths
from planner.simulate.prefixes.choices import PrefixChoices, prefix_choices
from planner.simulate.requests.arrivals import arrivals
from planner.simulate.requests.traces import Trace, read_trace

SEED = 0  # of the times at which requests of the trace are taken to come, for bandwidths and waits


def prefix_choices_of(resolved: Resolved) -> PrefixChoices:
    """Raises PlannerError for problems that memory for prefixes is not decided for, with what to write instead."""
    spec = _require_decidable(resolved)
    trace = trace_of(resolved)
    token_bytes = token_bytes_of(resolved.models[resolved.workloads[0].model], trace.block_tokens)
    return prefix_choices(trace, spec, token_bytes, arrivals_of(resolved, len(trace)), resolved.where)


def trace_of(resolved: Resolved) -> Trace:
    """The requests that the only workload names."""
    path = resolved.workloads[0].trace
    assert path is not None
    return read_trace(path)


def arrivals_of(resolved: Resolved, count: int) -> Floats:
    """Times of so many requests at the rate of the workload, from 0 on."""
    load = resolved.workloads[0].spec.load
    assert load is not None
    assert load.rate_per_s is not None
    if load.arrival_cv <= 0.0:
        return np.arange(count) / load.rate_per_s
    return arrivals("gamma", load.rate_per_s, count, cv=load.arrival_cv, seed=SEED)


def token_bytes_of(arch: Architecture, block_tokens: int) -> float:
    """The cache of a token within a block, all ranks together; raises PlannerError where a state must be kept too."""
    if float(state_bytes_per_sequence(arch, np.ones(1))[0]) > 0.0:
        raise PlannerError(
            f"{arch.name} keeps a state for each sequence, and what tiers would hold of that has no price",
            where="cache",
            hint="remove `cache`, or take a model of attention alone",
        )
    return float(kv_bytes(arch, np.array([float(block_tokens)]))[0]) / block_tokens


def _require_decidable(resolved: Resolved) -> PrefixCacheSpec:
    problem, (first, *others) = resolved.problem, resolved.workloads
    spec, load = problem.cache, first.spec.load
    assert spec is not None
    sides = [getattr(first.spec, side) for side in ("input_tokens", "output_tokens")]
    names = {side.trace if isinstance(side, TraceLengths) else None for side in sides}
    refused = (
        (
            problem.objective.minimize != "cost",
            "what memory is worth follows from cost alone",
            "write `minimize: cost`",
        ),
        (len(others) > 0, f"memory for prefixes of {1 + len(others)} workloads is not decided", "leave one workload"),
        (
            None in names or len(names) > 1,
            "lengths and what prompts share must come from the same requests",
            "name one trace in `input_tokens` and `output_tokens`, with `hash_ids` or `conversation_id`",
        ),
        (
            load is None or load.rate_per_s is None,
            "clients that wait for answers ask for no rate of blocks",
            "write `load: {rate: 10/s}`",
        ),
        (first.spec.prefix_hits is not None, "hits are stated and decided", "remove `prefix_hits` or `cache`"),
        (
            first.media is not None,
            "memory keeps no outputs of towers, whose requests are encoded whole",
            "remove `images`, `audio_s` or `cache`",
        ),
        (
            problem.engine.host_cache_bytes_per_gpu is not None,
            "host memory is given and decided",
            "remove `engine.host_cache`, and offer it as the tier `host` of `cache`",
        ),
        (
            problem.limits.usd_per_hour is not None,
            "a cap on the price and the least cost",
            "remove `limits.price`: no plan costs less",
        ),
        (
            problem.options.get("judged_by") == "simulation",
            "placements searched by simulation compute whole prompts",
            "leave `judged_by` out",
        ),
    )
    for wrong, what, hint in refused:
        if wrong:
            raise PlannerError(what, where=resolved.where(("cache",)), hint=hint)
    return spec
