"""Benchmark problems of RL resource planning (docs/rl-problems.md), read as `RlProblem` and stated as problems.

What the file holds beyond the format is ignored, so that problems may carry notes and statistics.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import numpy as np

from planner.documents.read import Document, Key
from planner.errors import PlannerError
from planner.hardware.unspecified import UNSPECIFIED
from planner.problem.schema import SCHEMA
from planner.rl.curves import NEVER_FITS, CurvePool, DecodeCurve, GenerationOption, TrainingOption
from planner.rl.document_part import DocumentPart
from planner.rl.plan import Placement, RlMode, Sync
from planner.rl.problem import Dispatch, Objective, RlProblem, validate
from planner.rl.trajectories import SampleBatch

PLACEMENTS: tuple[Placement, ...] = ("colocated", "disaggregated")
SYNCS: tuple[Sync, ...] = ("sync", "stream_sync", "one_step_async")
OBJECTIVES: tuple[Objective, ...] = ("iteration_time", "cost_per_iter")
DISPATCHES: tuple[Dispatch, ...] = ("fifo", "predicted_longest_first")
SYNCHRONY = {"sync": "synchronous", "stream_sync": "stream", "one_step_async": "one_step"}
TRAINING = (
    *("pool", "tp", "pp", "train_tokens_per_s", "forward_tokens_per_s", "micro_tokens", "min_dp"),
    *("optimizer_s", "offload_s", "offload_sharded_s"),
)
"""Fields that a training curve shares with the option that it is read as."""
TAIL_FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)  # where the file states no grid of its own


def read_problem(document: Document) -> RlProblem:
    """The problem in `document`. Raises PlannerError naming file, line and field, with a value that would work."""
    top = DocumentPart(document, document.data)
    if not isinstance(document.data, dict):
        raise top.refuse("must be a mapping", "write a problem of docs/rl-problems.md")
    workload = top.part("workload")
    problem = problem_of(top, read_batches(workload, workload))
    with placed_errors(document):
        validate(problem)
    return problem


def read_batches(holder: DocumentPart, workload: DocumentPart) -> tuple[SampleBatch, ...]:
    """The `batches` of `holder`; what they do not state themselves, `workload` states for all."""
    return tuple(_batch(part, workload) for part in holder.parts("batches"))


def problem_of(top: DocumentPart, batches: tuple[SampleBatch, ...]) -> RlProblem:
    """The problem that `top` states beside its lengths, for `batches`; not validated."""
    full = top.one_of("stage", ("full", "gen_only"), "full") == "full"
    return replace(
        read_curves(top, batches, full=full),
        modes=_modes(top, full),
        dispatch=top.one_of("dispatch", DISPATCHES, "fifo"),
        max_groups=1 if full else 2,
        tail_fractions=() if full else _tail_fractions(top),
    )


FIELDS: dict[str, tuple[Key, ...]] = {
    "batches": ("workload", "batches"),
    "samples": ("workload", "samples"),
    "minibatches": ("workload", "minibatches"),
    "generation": ("cost", "gen"),
    "training": ("cost", "train"),
    "weight_sync_s": ("cost", "wsync", "cross_gbs"),
    "pools": ("cluster", "pools"),
    "modes": ("allowed",),
}
"""Where the document states what `planner.rl.problem.validate` names by its own fields."""


@contextmanager
def placed_errors(document: Document, moved: Mapping[str, tuple[Key, ...]] | None = None) -> Iterator[None]:
    """Errors about a field of `RlProblem` name the line of `document` that it came from, by `FIELDS` or `moved`."""
    try:
        yield
    except PlannerError as error:
        path = {**FIELDS, **(moved or {})}.get(error.where)
        if path is None:
            raise
        dotted = ".".join(str(key) for key in path)
        raise PlannerError(error.what, where=f"{document.where(path)}: {dotted}", hint=error.hint) from None


def read_curves(top: DocumentPart, batches: tuple[SampleBatch, ...], *, full: bool) -> RlProblem:
    """Pools, curves and objective of a problem, without modes; without training unless `full`."""
    pools = _pools(top.part("cluster"))
    cost = top.part("cost")
    names = [pool.name for pool in pools]
    return RlProblem(
        pools=pools,
        generation=_generation(cost.part("gen"), names),
        training=_training(cost.part("train"), top, names) if full else (),
        batches=batches,
        minibatches=_minibatches(top.part("workload"), batches) if full else 1,
        modes=(),
        weight_sync_s=_weight_sync(cost.part("wsync"), names) if full and "wsync" in cost else {},
        switch_s=cost.part("switch").number("base_s") if full and "switch" in cost else 0.0,
        objective=top.one_of("objective", OBJECTIVES, "iteration_time"),
        max_iteration_s=top.number("max_iteration_s", positive=True) if "max_iteration_s" in top else None,
    )


def _pools(cluster: DocumentPart) -> tuple[CurvePool, ...]:
    pools = tuple(
        CurvePool(
            part.text("name"),
            part.count("nodes") * part.count("gpus_per_node"),
            part.number("cost_per_gpu_hour", 0.0),
        )
        for part in cluster.parts("pools")
    )
    names = [pool.name for pool in pools]
    if len(set(names)) < len(names):
        raise cluster.refuse("two pools have the same name", "name each pool differently", "pools")
    return pools


def _known_pool(part: DocumentPart, name: str, names: list[str]) -> None:
    if name not in names:
        raise part.refuse(f"no pool is called `{name}`", f"known: {', '.join(names)}")


def _generation(gen: DocumentPart, names: list[str]) -> tuple[GenerationOption, ...]:
    options = []
    for pool, of_pool in gen.entries():  # null: the model fits no replica on that pool
        _known_pool(of_pool, pool, names)
        for text, part in of_pool.entries():
            if not text.isdecimal() or int(text) < 1:
                raise part.refuse(f"must be a tensor-parallel degree, found `{text}`", 'write "1", "2", "4"')
            options.append(GenerationOption(pool, int(text), _curve(part), int(text)))
    return tuple(options)


def _curve(part: DocumentPart) -> DecodeCurve:
    return DecodeCurve(
        part.number("alpha"),
        part.number("beta"),
        part.number("gamma"),
        part.number("prefill_tok_s", positive=True),
        part.count("max_running"),
        int(part.number("kv_tokens")),
    )


def _training(train: DocumentPart, top: DocumentPart, names: list[str]) -> tuple[TrainingOption, ...]:
    options: dict[tuple[str, int, int], TrainingOption] = {}
    missing_gb = []
    for pool, part in train.entries():
        _known_pool(part, pool, names)
        memory_gb = top.part("cluster").parts("pools")[names.index(pool)].number("mem_gb", positive=True)
        for curve in part.parts("curves") if part.data.get("curves") else []:
            option, missing = _training_option(pool, part, curve, top, memory_gb)
            missing_gb.append(missing)
            options.setdefault((pool, option.tp, option.pp), option)
    if not options:
        raise train.refuse("no pool has a training curve", "give `curves` of at least one pool")
    if min(missing_gb) > 0:
        raise train.refuse(
            "training fits in the memory of no pool at any data parallelism",
            f"use GPUs with more than {min(missing_gb):.4g} GB in addition, or a curve with larger tp and pp",
        )
    return tuple(options.values())


def _training_option(
    pool: str, part: DocumentPart, curve: DocumentPart, top: DocumentPart, memory_gb: float
) -> tuple[TrainingOption, float]:
    """The option with the smallest dp that fits, and the missing GB where the unsharded part alone does not."""
    tp, pp = curve.count("tp"), curve.count("pp")
    static, optimizer, activation = (part.number(key) for key in ("static_gb", "opt_gb", "act_gb"))
    capacity = memory_gb * part.number("mem_util", positive=True)
    room = capacity - static / (tp * pp) - activation / tp
    switch = top.part("cost").part("switch") if "switch" in top.part("cost") else None
    rate = switch.number("offload_gbs", positive=True) if switch is not None else math.inf
    option = TrainingOption(
        pool=pool,
        gpus=tp * pp,
        train_tokens_per_s=curve.number("train_tok_s", positive=True),
        forward_tokens_per_s=curve.number("fwd_tok_s", positive=True),
        micro_tokens=part.count("micro_tokens"),
        tp=tp,
        pp=pp,
        min_dp=_min_dp(static / (tp * pp), optimizer, tp * pp, activation / tp, capacity),
        optimizer_s=part.number("opt_fixed_s", 0.0),
        offload_s=static / (tp * pp) / rate,
        offload_sharded_s=optimizer / (tp * pp) / rate,
    )
    return option, max(0.0, -room / part.number("mem_util")) if option.min_dp >= NEVER_FITS else 0.0


def _min_dp(static_gb: float, optimizer_gb: float, shard: int, activation_gb: float, capacity_gb: float) -> int:
    """The smallest dp that fits, by the sum that the format states and not by its solution, which rounds otherwise."""

    def fits(dp: int) -> bool:
        return static_gb + optimizer_gb / (shard * dp) + activation_gb <= capacity_gb

    if not fits(NEVER_FITS):
        return NEVER_FITS
    low, high = 0, 1
    while not fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _weight_sync(wsync: DocumentPart, names: list[str]) -> dict[tuple[str, str], float]:
    """Seconds by (generating pool, training pool); pools have no network in common where cross_gbs is absent or 0."""
    base_s, model_gb = wsync.number("base_s"), wsync.number("model_gb")
    intra, cross = wsync.number("intra_gbs", positive=True), wsync.number("cross_gbs", 0.0)
    rates = {pair: intra if pair[0] == pair[1] else cross for pair in product(names, names)}
    return {pair: base_s + model_gb / rate for pair, rate in rates.items() if rate > 0}


def _batch(part: DocumentPart, workload: DocumentPart) -> SampleBatch:
    output = part.counts("output_len")
    samples = workload.count("samples", len(output))
    if len(output) != samples:
        raise part.refuse(
            f"{len(output)} lengths for {samples} samples",
            f"give {samples} lengths, or write `samples: {len(output)}`",
            "output_len",
        )
    stated = part if "prompt_len" in part else workload
    if isinstance(stated.data.get("prompt_len"), list):
        prompt = stated.counts("prompt_len", least=0)
    else:
        prompt = np.full(len(output), stated.count("prompt_len", least=0), np.int64)
    if len(prompt) != len(output):
        raise stated.refuse(f"{len(prompt)} prompts for {len(output)} outputs", "give one a sample", "prompt_len")
    keys = part.numbers("predicted_rank_key") if "predicted_rank_key" in part else None
    if keys is not None and len(keys) != len(output):
        raise part.refuse(f"{len(keys)} keys for {len(output)} samples", "give one key a sample", "predicted_rank_key")
    return SampleBatch(prompt, output, keys)


def _minibatches(workload: DocumentPart, batches: tuple[SampleBatch, ...]) -> int:
    parts, samples = workload.count("minibatches"), min(batch.size for batch in batches)
    if parts > samples:
        raise workload.refuse(f"{samples} samples in {parts} minibatches", f"write at most {samples}", "minibatches")
    return parts


def _modes(top: DocumentPart, full: bool) -> tuple[RlMode, ...]:
    """Allowed pairs; colocated goes with sync alone, and generation alone has one mode."""
    if not full and "allowed" not in top:
        return (RlMode("disaggregated", "sync"),)
    allowed = top.part("allowed")
    placements, syncs = allowed.some_of("placement", PLACEMENTS), allowed.some_of("sync", SYNCS)
    if not full:
        placement: Placement = "disaggregated" if "disaggregated" in placements else placements[0]
        return (RlMode(placement, "sync" if "sync" in syncs else syncs[0]),)
    pairs = [pair for pair in product(placements, syncs) if pair[0] != "colocated" or pair[1] == "sync"]
    if not pairs:
        raise allowed.refuse(
            f"`colocated` takes turns and cannot be `{syncs[0]}`",
            "allow `sync`, or the placement `disaggregated`",
            "sync",
        )
    return tuple(RlMode(placement, sync, int(sync == "one_step_async")) for placement, sync in pairs)


def _tail_fractions(top: DocumentPart) -> tuple[float, ...]:
    """The grid of the file: the list in `search_space` whose name speaks of the tail or of fractions."""
    space = top.data.get("search_space")
    if not isinstance(space, dict):
        return TAIL_FRACTIONS
    part = DocumentPart(top.document, space, ("search_space",))
    for key in space:
        if ("tail" in str(key) or "fraction" in str(key)) and isinstance(space[key], list):
            return tuple(sorted({float(fraction) for fraction in part.numbers(key) if 0 < fraction < 1}))
    return TAIL_FRACTIONS


def rl_problem(document: Document) -> dict[str, Any]:
    """The problem of kind `rl` that `document` states; raises PlannerError as `read_problem` does."""
    given = read_problem(document)
    return {**stated(document, given), "options": {**options_of(given), "records": records_of(given.batches)}}


def stated(document: Document, given: RlProblem) -> dict[str, Any]:
    """All but the options: pools of GPUs that nobody names, and what counts."""
    name, goal = document.data.get("name"), "iteration_time" if given.objective == "iteration_time" else "cost"
    return {
        "schema": SCHEMA,
        "kind": "rl",
        "name": str(name)[:200] if name else "plan",
        "cluster": {"pools": [_pool_spec(pool) for pool in document.data["cluster"]["pools"]]},
        "objective": {"minimize": goal},
    }


def _pool_spec(pool: Mapping[str, Any]) -> dict[str, Any]:
    price = pool.get("cost_per_gpu_hour") or None
    shape = {"nodes": int(pool["nodes"]), "gpus_per_node": int(pool["gpus_per_node"])}
    priced = {} if price is None else {"usd_per_gpu_hour": float(price)}
    return {"gpu": UNSPECIFIED, "name": pool["name"], **shape, **priced}


def options_of(given: RlProblem) -> dict[str, Any]:
    """Options of the kind, without lengths: what may be chosen, and every cost as it was measured."""
    apart = [mode for mode in given.modes if mode.placement == "disaggregated"] or list(given.modes)
    options = {**shared_options(given), "synchrony": list(dict.fromkeys(SYNCHRONY[mode.sync] for mode in apart))}
    if not given.training:
        options |= {"generation_only": True, "arrangements": ["disaggregated"], "synchrony": ["synchronous"]}
    if "one_step" in options["synchrony"]:
        options["max_staleness"] = 1
    if given.dispatch != "fifo":
        options["dispatch"] = "longest_first"
    return options | ({"tail_fractions": list(given.tail_fractions)} if given.tail_fractions else {})


def shared_options(given: RlProblem) -> dict[str, Any]:
    """Options that problems of every form state: the job, where roles may stand, costs and the deadline."""
    options: dict[str, Any] = {
        "algorithm": "any",
        "prompts": given.trained_samples,
        "minibatches": given.minibatches,
        "equal_shares": False,
        "arrangements": list(dict.fromkeys(mode.placement for mode in given.modes)),
        "costs": costs_of(given),
    }
    return options if given.max_iteration_s is None else {**options, "max_iteration_s": given.max_iteration_s}


def costs_of(given: RlProblem) -> dict[str, Any]:
    """Curves of replicas that fit, and what handing weights over takes."""
    generation = [
        {"pool": option.pool, "tp": option.tp, **asdict(option.curve)}
        for option in given.generation
        if option.curve.kv_tokens > 0
    ]
    training = [
        {name: getattr(option, name) for name in TRAINING} for option in given.training if option.min_dp < NEVER_FITS
    ]
    sync = [
        {"generation": generating, "training": trained, "sync_s": seconds}
        for (generating, trained), seconds in given.weight_sync_s.items()
    ]
    costs = {"generation": generation, "training": training, "weight_sync": sync}
    return {name: rows for name, rows in costs.items() if rows} | (
        {"switch_s": given.switch_s} if given.switch_s else {}
    )


def records_of(batches: tuple[SampleBatch, ...]) -> list[dict[str, Any]]:
    """Lengths of successive iterations, sample by sample."""
    return [_record(batch) for batch in batches]


def _record(batch: SampleBatch) -> dict[str, Any]:
    prompts = batch.prompt_tokens_N.tolist()
    row = {
        "input_tokens": prompts[:1] if len(set(prompts)) == 1 else prompts,
        "output_tokens": batch.output_tokens_N.tolist(),
    }
    return row if batch.rank_key_N is None else {**row, "predicted": batch.rank_key_N.tolist()}
