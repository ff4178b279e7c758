"""Reads tables of measured serving deployments: one row to one case.

Columns (one row a benchmark point): id, source, aic_model or model, weights, system, backend, backend_version, mode
(agg, disagg), isl, osl, concurrency, gpus; agg: tp, pp, dp, moe_tp, moe_ep; disagg: the same with the prefixes prefill_
and decode_, and workers. Columns that may be left out: workers of agg (1), rate_per_s of an open loop (whose
concurrency is empty), isl_cv (0), prefix_hits (the share of prompt tokens that a prefix cache holds, 0),
memory_utilisation, and the engine's limits max_batch (sequences of a decoding rank) and chunk_tokens (prompt tokens of
a step); micro_batches (2 where steps are cut in halves that hide each other's exchange between experts, 1; with the
prefixes of disagg); draft_tokens (of a sequence in a step that decodes, 0) with their acceptance (the chance of a draft
to be right where those before it are), from the prediction heads of the model, or else a draft_model, or whatever takes
draft_step_s for each; batch_per_rank of agg, the requests of one attention rank: where those of all stated ranks are
fewer than the concurrency, the ranks of each tensor-parallel group have requests of their own (attention data
parallel), or where their number does not fit, the row is one of several equal instances.
Where `source` is inferencex, lengths are uniform in [0.8, 1.0] of the nominal ones, and engines run as its recipes set
them (`recipes.py`). Checkpoints in fp8 with one scale a tensor and in nvfp4 are those of NVIDIA's Model Optimizer,
which name an fp8 cache (`kv_cache_quant_algo` in hf_quant_config.json).
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache

from pydantic import ValidationError

from planner.costs.rates.calibration import section_of
from planner.costs.serving.speculation import Drafter, drafter_of
from planner.errors import PlannerError, in_one_line
from planner.estimate.case import Case, Part, Refused
from planner.estimate.recipes import GB200_NODE, Recipe, leaves_out_ep, recipe_of
from planner.hardware.cluster import Pool
from planner.models.architecture import Architecture
from planner.models.formats import OWN, our_name
from planner.problem.speculation import MOST_DRAFTS, SpeculationSpec

REQUIRED = ("id", "system", "backend", "mode", "isl", "osl", "concurrency", "gpus")
UNIFORM_LOW = 0.8
UNIFORM_MEAN = (1.0 + UNIFORM_LOW) / 2.0
UNIFORM_CV = (1.0 - UNIFORM_LOW) / 12**0.5 / UNIFORM_MEAN
LARGEST = 1e9  # no length in tokens and no load comes near


def cases_of_table(path: str) -> Iterator[Case | Refused]:
    """One case a row; raises PlannerError when the file cannot be read or lacks a column."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            yield from (_case(row) for row in rows_of_table(file, path))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no table of UTF-8 text"
        raise PlannerError(f"cannot be read: {reason}", where=path, hint="check the path") from None


def rows_of_table(lines: Iterable[str], source: str) -> Iterator[dict[str, str]]:
    """The rows of a table, by column; raises PlannerError for a table that lacks a column or is none."""
    try:
        reader = csv.DictReader(lines)
        missing = [name for name in REQUIRED if name not in (reader.fieldnames or ())]
        if missing:
            raise PlannerError(
                f"has no column `{missing[0]}`",
                where=f"{source}:1",
                hint=f"its columns must hold {', '.join(REQUIRED)}",
            )
        yield from reader
    except csv.Error as error:
        raise PlannerError(f"is no table: {error}", where=source, hint="give a CSV file with a header") from None


def _case(row: Mapping[str, str]) -> Case | Refused:
    try:
        return case_of_row(row)
    except PlannerError as error:
        return Refused(row.get("id") or "", in_one_line(error))


def case_of_row(row: Mapping[str, str]) -> Case:
    """The deployment of one row; raises PlannerError for an unknown model or system, and for what is no number."""
    try:
        case = _build(row)
    except (ValueError, OverflowError, KeyError, TypeError) as error:
        raise PlannerError(f"a field is missing or no number: {error}", hint="correct the row") from None
    _require_possible(case, row["mode"])
    return case


def _require_possible(case: Case, mode: str) -> None:
    """Raises PlannerError for a row that no deployment can be."""
    parts = [part for part in (case.prefill, case.decode) if part is not None]
    degrees = [value for part in parts for value in (part.replicas, part.tp, part.pp, part.dp)]
    experts = [value for part in parts for value in (part.moe_tp, part.ep)]  # 0 where a model has none
    sizes = (case.isl, case.osl, float(case.clients) or case.rate_per_s, case.memory_utilisation)
    wrong = [
        name
        for name, right in (
            ("mode", mode in ("agg", "disagg")),
            ("gpus", case.gpus >= 1),
            ("degrees of parallelism", min(degrees) >= 1 and min(experts) >= 0),
            ("max_batch or chunk_tokens", min(case.decode.max_batch, case.decode.chunk_tokens) >= 0),
            ("micro_batches", all(part.micro_batches in (1, 2) for part in parts)),
            ("draft_tokens", 0 <= case.draft_tokens <= MOST_DRAFTS),
            ("prefix_hits", 0 <= case.prefix_hits <= 1),
            ("lengths, load or memory", all(0 < size < LARGEST for size in sizes)),
        )
        if not right
    ]
    if wrong:
        raise PlannerError(f"{wrong[0]} of the row cannot be", hint="correct the row")


def _build(row: Mapping[str, str]) -> Case:
    recipes = row.get("source") == "inferencex"
    scale, spread = (UNIFORM_MEAN, UNIFORM_CV) if recipes else (1.0, float(row.get("isl_cv") or 0.0))
    gpus = int(float(row["gpus"]))
    disaggregated = row["mode"] == "disagg"
    rate_per_s = float(row.get("rate_per_s") or 0.0)
    clients = 0 if rate_per_s and not row["concurrency"] else int(float(row["concurrency"]))
    decode = _part(row, "decode_" if disaggregated else "")
    set_to = recipe_of(row, clients, decode.replicas * decode.dp)
    prefill = _part(row, "prefill_") if disaggregated else None
    if prefill is None:
        decode = replace(decode, chunk_tokens=int(float(row.get("chunk_tokens") or set_to.step_tokens)))
        decode, clients = _ranks(decode, clients, float(row.get("batch_per_rank") or 0.0))
    arch = _model(
        row.get("aic_model") or row["model"],
        row.get("weights") or "",
        _cache_format(row, set_to),
        set_to.output_format,
        set_to.expert_inputs,
    )
    drafts = int(float(row.get("draft_tokens") or 0))
    return Case(
        id=row["id"],
        arch=arch,
        pool=_pool(row["system"], gpus),
        engine=row["backend"],
        version=_version(row, set_to),
        memory_utilisation=float(row.get("memory_utilisation") or set_to.memory_utilisation),
        isl=float(row["isl"]) * scale,
        osl=float(row["osl"]) * scale,
        isl_cv=spread,
        clients=clients,
        rate_per_s=rate_per_s,
        prefill=prefill,
        decode=replace(decode, max_batch=int(float(row.get("max_batch") or set_to.max_batch))),
        gpus=gpus,
        staggered=set_to.staggered,
        hold_steps=set_to.hold_steps,
        poll_steps=set_to.poll_steps,
        captured_tokens=set_to.captured_tokens,
        prefix_hits=float(row.get("prefix_hits") or set_to.prefix_hits),
        draft_tokens=drafts,
        drafter=_drafter(row, arch) if drafts else None,
    )


def _drafter(row: Mapping[str, str], arch: Architecture) -> Drafter:
    """What drafts in a row; raises PlannerError for a drafter that cannot be."""
    stated = row.get("draft_step_s")
    return _known_drafter(
        arch, float(row["acceptance"] or ""), row.get("draft_model") or None, float(stated) if stated else None
    )


@cache
def _known_drafter(arch: Architecture, acceptance: float, model: str | None, draft_step_s: float | None) -> Drafter:
    from planner.models.library import find_model

    method = "model" if model is not None else "mtp" if draft_step_s is None else "stated"
    given: dict[str, object] = {
        "method": method,
        "acceptance": acceptance,
        "model": model,
        "draft_step_s": draft_step_s,
    }
    models = {} if model is None else {model: find_model(model)}
    try:
        spec = SpeculationSpec.model_validate(given)
    except ValidationError:
        raise PlannerError("acceptance or the drafter of the row cannot be", hint="correct the row") from None
    drafter = drafter_of(spec, arch, models, "")
    assert drafter is not None
    return drafter


def _ranks(part: Part, clients: int, batch_per_rank: float) -> tuple[Part, int]:
    """The instance and its clients, where the requests of a rank tell of more ranks than are stated."""
    ranks = round(clients / batch_per_rank / part.dp) if batch_per_rank > 0 else 1
    if ranks <= 1:
        return part, clients
    if ranks == part.tp:
        return replace(part, tp=1, dp=part.dp * part.tp), clients
    return part, round(batch_per_rank) * part.dp


def _version(row: Mapping[str, str], set_to: Recipe) -> str | None:
    """Of the engine; None where it runs as the newest do, or where only the framework around it is named."""
    engine, version = row["backend"], row.get("backend_version") or None
    if version is None or (engine == "trtllm" and version.startswith("0.")):
        return set_to.release
    ahead = set_to.asynchronous and section_of(engine, version) != engine
    return None if ahead else version


def _part(row: Mapping[str, str], prefix: str) -> Part:
    tp, pp, dp, moe_tp, ep = (
        int(float(row[f"{prefix}{name}"] or 1)) for name in ("tp", "pp", "dp", "moe_tp", "moe_ep")
    )
    replicas = int(float(row[f"{prefix}workers"] if prefix else row.get("workers") or 1))
    if dp > 1 and ep == 1 and leaves_out_ep(row):
        tp, dp, moe_tp, ep = (dp, 1, dp, 1) if dp <= GB200_NODE else (tp, dp, 1, dp * tp)
    return Part(replicas, tp, pp, dp, moe_tp, ep, micro_batches=int(float(row.get(f"{prefix}micro_batches") or 1)))


def _cache_format(row: Mapping[str, str], set_to: Recipe) -> str | None:
    """Of the KV cache, where the checkpoint or the recipe of the run names one."""
    return "fp8" if our_name(row.get("weights") or "") in ("fp8", "nvfp4") else set_to.cache_format


@cache
def _model(
    name: str, weights: str, cache_format: str | None, output_format: str | None, expert_inputs: str | None
) -> Architecture:
    from planner.models.library import find_model, with_precision

    arch = with_precision(find_model(name), None if weights.strip().lower() in OWN else weights, cache_format)
    inputs = expert_inputs or arch.precisions.expert_activation
    kept = replace(arch.precisions, attention_output=output_format, expert_activation=inputs)
    return replace(arch, precisions=kept)


@cache
def _pool(system: str, gpus: int) -> Pool:
    from planner.hardware.library import find_node

    node = find_node(system)
    return Pool(node.accelerator.name, node, max(1, -(-gpus // node.num_gpus)))
