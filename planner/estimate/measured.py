"""Reads tables of measured serving deployments: one row to one case.

Columns (one row a benchmark point): id, aic_model or model, weights, system, backend, backend_version (the engine's
release), mode (agg, disagg), isl, osl, concurrency, gpus; agg: tp, pp, dp, moe_tp, moe_ep; disagg: the same with the
prefixes prefill_ and decode_, and workers. Columns that may be left out: what launch scripts and load generators were
told (`planner.estimate.settings`); workers of agg (1), rate_per_s of an open loop (whose concurrency is empty);
micro_batches (2 where steps are cut in halves that hide each other's exchange between experts, 1) and redundant_experts
(`planner.estimate.settings`), with the prefixes of disagg; draft_tokens (of a sequence in a step that decodes, 0) with
their acceptance (the chance of a draft to be right where those before it are), from the prediction heads of the model,
or else a draft_model, or whatever takes draft_step_s for each; batch_per_rank of agg, the requests of one attention
rank: where those of all stated ranks are fewer than the concurrency, the ranks of each tensor-parallel group have
requests of their own (attention data parallel), or where their number does not fit, the row is one of several equal
instances. Further columns are ignored.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache

from pydantic import ValidationError

from planner.costs.serving.speculation import Drafter, drafter_of
from planner.engines.serving.registry import SERVING_ENGINES
from planner.errors import PlannerError, in_one_line, require_known
from planner.estimate.case import REQUESTS_PER_CLIENT, Case, Part, Refused
from planner.estimate.settings import held_steps, redundant_of_row, settings_of_row
from planner.hardware.cluster import Pool
from planner.models.architecture import BITS, Architecture
from planner.models.formats import OWN, format_named
from planner.problem.speculation import MOST_DRAFTS, SpeculationSpec

REQUIRED = ("id", "system", "backend", "mode", "isl", "osl", "concurrency", "gpus")
LARGEST = 1e9  # no length in tokens and no load comes near


def cases_of_table(path: str) -> Iterator[Case | Refused]:
    """One case a row; raises PlannerError when the file cannot be read or lacks a column."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            yield from cases_of_rows(rows_of_table(file, path))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no table of UTF-8 text"
        raise PlannerError(f"cannot be read: {reason}", where=path, hint="check the path") from None


def cases_of_rows(rows: Iterable[Mapping[str, str]]) -> Iterator[Case | Refused]:
    """One case a row; what is wrong with a row stands in its own refusal."""
    return (_case(row) for row in rows)


def rows_of_table(lines: Iterable[str], source: str) -> Iterator[dict[str, str]]:
    """The rows of a table, by column.

    Raises PlannerError for a table that lacks a column, has one twice or is none, and for a row with more values.
    """
    try:
        reader = csv.DictReader(lines)
        twice = [name for name, times in Counter(reader.fieldnames or ()).items() if times > 1 and name]
        if twice:
            raise PlannerError(f"has two columns `{twice[0]}`", where=f"{source}:1", hint="leave one of them out")
        missing = [name for name in REQUIRED if name not in (reader.fieldnames or ())]
        if missing:
            raise PlannerError(
                f"has no column `{missing[0]}`",
                where=f"{source}:1",
                hint=f"its columns must hold {', '.join(REQUIRED)}",
            )
        for row in reader:
            if None in row:
                what = f"has more values than the {len(row) - 1} columns of the header"
                raise PlannerError(what, where=f"{source}:{reader.line_num}", hint="quote values that hold commas")
            yield row
    except csv.Error as error:
        raise PlannerError(f"is no table: {error}", where=source, hint="give a CSV file with a header") from None


def _case(row: Mapping[str, str]) -> Case | Refused:
    try:
        return case_of_row(row)
    except PlannerError as error:
        return Refused(row.get("id") or "", in_one_line(error))


def case_of_row(row: Mapping[str, str]) -> Case:
    """The deployment of one row.

    Raises PlannerError for an unknown model, system or engine, for what is no number, and for what no deployment is.
    """
    require_known("engine", row.get("backend") or "", SERVING_ENGINES, where="backend")
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
    sizes = {
        "isl": case.isl,
        "osl": case.osl,
        "concurrency or rate_per_s": float(case.clients) or case.rate_per_s,
        "memory_utilisation": case.memory_utilisation,
    }
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
            *((name, 0 < size < LARGEST) for name, size in sizes.items()),
        )
        if not right
    ]
    if wrong:
        raise PlannerError(f"{wrong[0]} of the row cannot be", hint="correct the row")
    ranks = sum(part.replicas * part.tp * part.pp * part.dp for part in parts)
    if case.gpus != ranks:
        hint = "correct one of them, or `workers`, the instances"
        raise PlannerError(f"`gpus` is {case.gpus}, and the degrees of parallelism make {ranks}", hint=hint)


def _build(row: Mapping[str, str]) -> Case:
    gpus = int(float(row["gpus"]))
    disaggregated = row["mode"] == "disagg"
    rate_per_s = float(row.get("rate_per_s") or 0.0)
    clients = 0 if rate_per_s and not row["concurrency"] else int(float(row["concurrency"]))
    pool = _pool(row["system"], gpus)
    settings = settings_of_row(row, pool.node.accelerator)
    prefill = _part(row, "prefill_", chunk_tokens=settings.chunk_tokens) if disaggregated else None
    chunk_tokens = 0 if disaggregated else settings.chunk_tokens
    decode = _part(row, "decode_" if disaggregated else "", settings.max_batch, chunk_tokens)
    if prefill is None:
        decode, clients = _ranks(decode, clients, float(row.get("batch_per_rank") or 0.0))
    arch = _model(
        row.get("aic_model") or row["model"],
        row.get("weights") or "",
        settings.kv_cache,
        settings.attention_output,
        settings.expert_inputs,
    )
    drafts = int(float(row.get("draft_tokens") or 0))
    osl = float(row["osl"]) * settings.length_scale
    return Case(
        id=row["id"],
        arch=arch,
        pool=pool,
        engine=row["backend"],
        version=settings.version,
        memory_utilisation=settings.memory_utilisation,
        most_memory_utilisation=settings.most_memory_utilisation,
        free_memory_share=settings.free_memory_share,
        reserved_output=settings.reserved_output,
        requests_per_client=settings.requests / clients if settings.requests and clients else REQUESTS_PER_CLIENT,
        isl=float(row["isl"]) * settings.length_scale,
        osl=osl,
        isl_cv=settings.length_cv,
        clients=clients,
        rate_per_s=rate_per_s,
        prefill=prefill,
        decode=decode,
        gpus=gpus,
        staggered=settings.staggered,
        in_process=settings.in_process,
        mixed_steps=settings.mixed_steps,
        hold_steps=held_steps(settings, decode.dp, clients, osl),
        poll_steps=settings.poll_steps,
        captured_tokens=settings.captured_tokens,
        jitter=settings.jitter,
        graph_batch=settings.graph_batch,
        preempts=settings.preempts,
        whole_tiles=settings.whole_tiles,
        triton_experts=settings.triton_experts,
        whole_prompts=settings.whole_prompts,
        prefix_hits=settings.prefix_hits,
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


def _part(row: Mapping[str, str], prefix: str, max_batch: int = 0, chunk_tokens: int = 0) -> Part:
    tp, pp, dp, moe_tp, ep = (
        int(float(row[f"{prefix}{name}"] or 1)) for name in ("tp", "pp", "dp", "moe_tp", "moe_ep")
    )
    replicas = int(float(row[f"{prefix}workers"] if prefix else row.get("workers") or 1))
    micro_batches = int(float(row.get(f"{prefix}micro_batches") or 1))
    redundant = redundant_of_row(row, prefix)
    return Part(replicas, tp, pp, dp, moe_tp, ep, max_batch, chunk_tokens, micro_batches, redundant)


@cache
def _model(
    name: str, weights: str, cache_format: str | None, output_format: str | None, expert_inputs: str | None
) -> Architecture:
    from planner.models.library import find_model, with_precision

    arch = with_precision(find_model(name), None if weights.strip().lower() in OWN else weights, cache_format)
    inputs = format_named(expert_inputs, BITS) if expert_inputs else arch.precisions.expert_activation
    output = format_named(output_format, BITS) if output_format else None
    return replace(arch, precisions=replace(arch.precisions, attention_output=output, expert_activation=inputs))


@cache
def _pool(system: str, gpus: int) -> Pool:
    from planner.hardware.library import find_node

    node = find_node(system)
    return Pool(node.accelerator.name, node, max(1, -(-gpus // node.num_gpus)))
