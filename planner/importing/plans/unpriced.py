"""What an artifact sets beside degrees and limits: formats of weights made while loading, and what no plan says."""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.engines.formats import stored_formats
from planner.engines.load import release_of
from planner.engines.serving.registry import SERVING_ENGINES
from planner.errors import PlannerError
from planner.importing.plans.question import Question
from planner.importing.records import AHEAD, QUANTIZATION, RELEASE, UNPRICED, UNREAD, Reading

KV_FORMATS = {"fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "bfloat16": "bf16", "bf16": "bf16", "fp16": "fp16",
              "float16": "fp16", "half": "fp16"}  # fmt: skip


def loaded_weights(reading: Reading, model: Mapping[str, str]) -> str | None:
    """The format that the engine makes the weights of `model` (an entry of a problem) while loading them.

    None where the checkpoint brings its own. Raises PlannerError for a format that is not priced, and for roles that
    differ.
    """
    fields = reading.fields
    stated = {role.get(QUANTIZATION) for role in fields["roles"]}
    if stated <= {None}:
        return None
    if len(stated) > 1:
        told = ", ".join(f"{role['role']} {role.get(QUANTIZATION) or 'none'}" for role in fields["roles"])
        raise PlannerError(
            f"the roles quantise weights unlike each other ({told}), and a plan has one format a model",
            where=QUANTIZATION,
            hint="give all roles one format",
        )
    stored = _stored(model)
    if stored is None or not stored <= {"bf16"}:
        return None
    (name,) = stated
    formats = {flag: weights for weights, flag in SERVING_ENGINES[fields["engine"]].quantises.items()}
    if name in formats:
        return formats[name]
    raise PlannerError(
        f"the checkpoint is in 16 bits, and what {fields['engine']} makes of it by `{name}` is not priced",
        where=QUANTIZATION,
        hint=f"`--model` names a checkpoint that brings its format; made while loading is {' or '.join(formats)}"
        if formats
        else "`--model` names a checkpoint that brings its format",
    )


def _stored(model: Mapping[str, str]) -> frozenset[str] | None:
    """Families of formats of the checkpoint; None where nobody knows the model, which resolving it refuses."""
    from planner.models.library import find_model, load_model

    try:
        return stored_formats(find_model(model["name"]) if "name" in model else load_model(model["config"]))
    except PlannerError:
        return None


def require_prefixes_kept(reading: Reading, workload: Mapping[str, Any]) -> None:
    """Raises PlannerError for stated hits in caches that the roles which prefill have switched off."""
    off = [role["role"] for role in reading.fields["roles"] if role["prefix_caching"] is False]
    if workload.get("prefix_hits") and {"prefill", "colocated"} & set(off):
        raise PlannerError(
            f"the artifact switches prefix caching off ({', '.join(off)}), and the workload states hits",
            where="--workload",
            hint="leave `prefix_hits` out, or switch prefix caching on in the artifact",
        )


def unpriced_notes(reading: Reading, question: Question, gpus_per_node: int) -> Iterator[str]:
    """Where the release is named, and what roles set that neither their times nor their plan know, so that it is lost
    where the plan is launched."""
    if RELEASE in reading.beside:
        release = reading.beside[RELEASE]
        engine = reading.fields["engine"]
        known = release_of(engine, release.version)
        told = "" if known.covers(release.version) else f"; `emit` writes what {known.name} takes, and refuses the plan"
        yield f"{engine} {release.version} is named by {release.source}{told}"
    hits = bool(question.workload.get("prefix_hits") or question.cache)
    for role in reading.fields["roles"]:
        parts = list(_unpriced(role))
        if AHEAD in role and any(other.get(AHEAD) != role[AHEAD] for other in reading.fields["roles"]):
            parts.append(f"a scheduler that forms {'a' if role[AHEAD] else 'no'} step ahead, unlike the other side's")
        if role["prefix_caching"] and role["role"] != "decode" and not hits:
            parts.append("prefix caching (the workload states no `prefix_hits`)")
        if parts:
            yield f"{role['role']}: not priced, and not in the plan: {', '.join(parts)}"
        nodes, gpus = role["nodes_per_replica"], role["gpus_per_replica"]
        if nodes and gpus and nodes > -(-gpus // gpus_per_node):
            yield f"{role['role']}: an instance is on {nodes} nodes in the artifact, and priced on as few as it fits"


def _unpriced(role: Mapping[str, Any]) -> Iterator[str]:
    drafts = role.get("speculative")
    if drafts:
        tokens = f", {drafts['tokens']} tokens" if drafts.get("tokens") else ""
        yield f"drafts ({drafts['method']}{tokens}: no artifact says how often they are right)"
    if role["kv_dtype"] and role["kv_dtype"] not in KV_FORMATS:
        yield f"a KV cache in {role['kv_dtype']}"
    if role["chunk_tokens"] is not None and role["chunk_tokens"] <= 0:
        yield "prompts that are not cut"
    if role.get("enforce_eager"):
        yield "steps without CUDA graphs"
    yield from role.get(UNPRICED, ())
    yield from role.get(UNREAD, ())
