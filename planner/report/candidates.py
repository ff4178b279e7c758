"""Tokens a second and GPU over tokens a second and user, of every candidate that the proof of a plan holds."""

from collections.abc import Iterator
from typing import Any

from planner.documents.units import significant
from planner.plan.schema import Envelope
from planner.report.charts import Point, cloud
from planner.report.page import Section

_AXES = ("tokens/s/user", "tokens/s/GPU")
_FLAGS = {
    "vllm": (
        ("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size"),
        "--enable-expert-parallel",
        ("--max-num-seqs", "--max-num-batched-tokens"),
    ),
    "sglang": (
        ("--tp-size", "--pp-size", "--dp-size"),
        "--ep-size",
        ("--max-running-requests", "--chunked-prefill-size"),
    ),
    "trtllm": (("--tp_size", "--pp_size", "--dp_size"), "--ep_size", ("--max_batch_size", "--max_num_tokens")),
}
"""Of each engine, the flags of tp, pp and dp, of experts that are spread, and of a step's sequences and tokens."""


def candidates_section(envelope: Envelope) -> Iterator[Section]:
    """Nothing of a plan whose proof holds no instance mix, unless it has a frontier of its own."""
    points = [*_of_mix(envelope), *_of_frontier(envelope)]
    if points:
        note = "Each point is an instance type that decodes, alone, at its full load; rings are those of the plan."
        yield Section("Candidates", cloud("candidates", points, *_AXES), note)


def _of_mix(envelope: Envelope) -> Iterator[Point]:
    mix: Any = envelope.certificate.proof.get("mix")
    if not isinstance(mix, dict):
        return
    tokens = _tokens(envelope)
    counts = envelope.certificate.proof.get("values") or []
    for place, shape in enumerate(mix.get("shapes") or ()):
        rates, held = shape.get("rate_per_s") or [0.0], shape.get("held_s") or [0.0]
        if shape.get("role") == "first" or not tokens or not rates[0] or not held[0]:
            continue
        name = str(shape.get("name", "")).partition("#")[0]
        chosen = isinstance(counts, list) and place < len(counts) and float(str(counts[place])) > 0.5
        x, y = tokens / held[0], rates[0] * tokens / max(shape.get("devices", 1), 1)
        told = [flags(name), launch_flags(name, _engine(envelope))]
        told += [f"{significant(y)} tokens/s/GPU, {significant(x)} tokens/s/user", "in the plan" if chosen else ""]
        words = "\n".join(filter(None, told))
        yield Point(x, y, words, name.partition("/")[0], chosen)


def _tokens(envelope: Envelope) -> float | None:
    """Output tokens of a request, from what the plan predicts of the first workload."""
    rates = {row.metric: row.value for row in reversed(envelope.predictions) if row.of}
    requests, tokens = rates.get("requests_per_s"), rates.get("output_tokens_per_s")
    return tokens / requests if requests and tokens else None


def _of_frontier(envelope: Envelope) -> Iterator[Point]:
    for point in envelope.decision.get("frontier") or ():  # type: ignore[union-attr]  # a list of records
        row: Any = point
        words = f"{', '.join(row['roles'])}\n{significant(row['tokens_per_s_per_gpu'])} tokens/s/GPU"
        yield Point(row["tokens_per_s_per_user"], row["tokens_per_s_per_gpu"], words, "frontier")


def flags(name: str) -> str:
    """`decode, tp2 moe-tp2, batch 104` from the name of an instance type."""
    parts = name.split("+")[0].split("/")
    if len(parts) < 5:
        return name
    degrees = zip(("tp", "pp", "dp", "moe-tp", "ep"), parts[2].split("x"), strict=False)
    shape = " ".join(f"{axis}{size}" for axis, size in degrees if size != "1") or "1 GPU"
    chunk = f", chunk {parts[4]}" if parts[4] != "0" else ""
    return f"{parts[0]}, {shape}, batch {parts[3]}{chunk}"


def launch_flags(name: str, engine: str) -> str:
    """What an engine is told to be of this type, without what its place adds; sequences are those of a rank."""
    parts = name.split("+")[0].split("/")
    if len(parts) < 5 or engine not in _FLAGS:
        return ""
    sizes, spread, limits = _FLAGS[engine]
    degrees = parts[2].split("x")
    told = [f"{flag} {size}" for flag, size in zip(sizes, degrees, strict=False) if size != "1" or flag == sizes[0]]
    if degrees[4:5] not in ([], ["1"]):
        told.append(spread if engine == "vllm" else f"{spread} {degrees[4]}")
    told += [f"{flag} {value}" for flag, value in zip(limits, parts[3:5], strict=True) if value != "0"]
    return " ".join(told)


def _engine(envelope: Envelope) -> str:
    roles: Any = envelope.decision.get("roles") or [{}]
    return str((roles[0].get("engine") or {}).get("name") or "")
