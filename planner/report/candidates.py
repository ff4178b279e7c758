"""Tokens a second and GPU over tokens a second and user, of every candidate that a plan was chosen from.

They are priced again from the problem in the plan: its proof holds none that were left out before it.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.documents.units import significant
from planner.engines.serving.registry import SERVING_ENGINES
from planner.errors import PlannerError
from planner.kinds.registry import find_kind
from planner.plan.considered import Considered, Standing
from planner.plan.instance_types import read_type, role_degrees
from planner.plan.schema import Decision, Envelope, Role
from planner.problem.recorded import AtHand, resolved_again
from planner.report.charts import Point, Shade, cloud
from planner.report.page import Section

_AXES = ("tokens/s/user", "tokens/s/GPU")
_NOTE = "Each point is an instance type that decodes, alone, at its full load; rings are those of the plan."
_STANDINGS: Mapping[Standing, str] = {
    "proof": "kept for the mix (full)",
    "dominated": "worse than another batch or chunk of the same shape (pale)",
    "limit": "that cannot keep the limits, at their full batch (hollow)",
}
_SHADES: Mapping[Standing, Shade] = {"proof": "", "dominated": "pale", "limit": "hollow"}
_ACROSS, _UP = 120, 60  # spots of the picture, each some five units wide


def candidates_section(envelope: Envelope, decision: Decision, folder: Path) -> Iterator[Section]:
    """Nothing of a plan that was stated and not searched, nor of a kind that chooses among no instance types.

    `folder` is that of the plan, in which the files of its problem are looked for.
    """
    points, what = _considered(envelope, decision, folder) if envelope.certificate.proof else ([], "")
    points = [*points, *_of_frontier(envelope)]
    if points:
        yield Section("Candidates", cloud("candidates", points, *_AXES), f"{_NOTE} {what}")


def _considered(envelope: Envelope, decision: Decision, folder: Path) -> tuple[list[Point], str]:
    """A point for every instance type that was considered, or for those in the proof, and which of both it is."""
    kind, digests, confidence = find_kind(envelope.kind), envelope.digests, envelope.certificate.confidence
    try:
        hand = AtHand(folders=(folder,))
        resolved = resolved_again(envelope.inputs, kind.options, hand, digests.profiles, confidence)
        everything = kind.considered(resolved)
    except PlannerError as error:
        return list(_of_mix(envelope)), f"Those in the proof alone: {error.what}."
    chosen = {type_ for role in decision.roles if (type_ := _type_of(role, everything)) is not None}
    counts = Counter(each.standing for each in everything)
    told = [f"{counts[standing]:,} {words}" for standing, words in _STANDINGS.items() if counts[standing]]
    return list(_thinned(everything, chosen, _engine(envelope))), f"{len(everything):,} types: {', '.join(told)}."


def _type_of(role: Role, everything: Sequence[Considered]) -> Considered | None:
    """The type that a role is: of its degrees on its pool, the one of the nearest batch and chunk."""
    stands = (role.function, role.model, role_degrees(role))
    types = ((each, read_type(each.name)) for each in everything if each.pool == role.pool)
    alike = {
        each: (type_.max_batch, type_.chunk_tokens)
        for each, type_ in types
        if type_ is not None and (type_.function, type_.model, type_.degrees) == stands
    }
    wanted = [float(str(role.limits.get(name) or 0)) for name in ("max_batch", "chunk_tokens")]

    def apart(each: Considered) -> float:
        pairs = zip(alike[each], wanted, strict=True)
        return sum(abs(math.log((own + 1.0) / (value + 1.0))) for own, value in pairs)

    return min(alike, key=apart, default=None)


def _thinned(everything: Sequence[Considered], chosen: Collection[Considered], engine: str) -> Iterator[Point]:
    """Of types that stand on the same spot, the one in the plan or nearest to it, with how many more there are."""
    widest = max((each.tokens_per_s_per_user for each in everything), default=1.0)
    highest = max((each.tokens_per_s_per_gpu for each in everything), default=1.0)
    spots: dict[tuple[int, int, Standing], list[Considered]] = {}
    for each in everything:
        across, up = each.tokens_per_s_per_user / widest, each.tokens_per_s_per_gpu / highest
        spots.setdefault((round(across * _ACROSS), round(up * _UP), each.standing), []).append(each)
    for (_, _, standing), here in spots.items():
        first = min(here, key=lambda each: (each not in chosen, -each.tokens_per_s_per_gpu))
        words = [flags(first.name), launch_flags(first.name, engine)]
        words += [_figures(first.tokens_per_s_per_gpu, first.tokens_per_s_per_user)]
        words += ["in the plan" if first in chosen else _STANDINGS[standing]]
        words += [f"and {len(here) - 1} more here"] if len(here) > 1 else []
        place = (first.tokens_per_s_per_user, first.tokens_per_s_per_gpu)
        family = first.name.partition("/")[0]
        yield Point(*place, "\n".join(filter(None, words)), family, first in chosen, _SHADES[standing])


def _figures(per_gpu: float, per_user: float) -> str:
    return f"{significant(per_gpu)} tokens/s/GPU, {significant(per_user)} tokens/s/user"


def _of_mix(envelope: Envelope) -> Iterator[Point]:
    mix: Any = envelope.certificate.proof.get("mix")
    tokens, counts = _tokens(envelope), envelope.certificate.proof.get("values") or []
    for place, shape in enumerate(mix["shapes"] if isinstance(mix, dict) else ()):
        rates, held = shape.get("rate_per_s") or [0.0], shape.get("held_s") or [0.0]
        if shape.get("role") == "first" or not tokens or not rates[0] or not held[0]:
            continue
        name = str(shape.get("name", "")).partition("#")[0]
        taken = isinstance(counts, list) and place < len(counts) and float(str(counts[place])) > 0.5
        x, y = tokens / held[0], rates[0] * tokens / max(shape.get("devices", 1), 1)
        told = [flags(name), launch_flags(name, _engine(envelope)), _figures(y, x), "in the plan" if taken else ""]
        yield Point(x, y, "\n".join(filter(None, told)), name.partition("/")[0], taken)


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
    type_ = read_type(name)
    if type_ is None:
        return name
    chunk = f", chunk {type_.chunk_tokens}" if type_.chunk_tokens else ""
    return f"{type_.function}, {type_.shape}, batch {type_.max_batch}{chunk}"


def launch_flags(name: str, engine: str) -> str:
    """What an engine is told to be of this type, without what its place adds; sequences are those of a rank."""
    type_ = read_type(name)
    if type_ is None or engine not in SERVING_ENGINES:
        return ""
    own = SERVING_ENGINES[engine].flags
    *_, ep = type_.degrees[:5]
    sizes = zip(own.degrees, type_.degrees, strict=False)
    told = [f"{flag} {size}" for flag, size in sizes if size != 1 or flag == own.degrees[0]]
    if ep != 1:
        told.append(own.experts.format(ep))
    values = (type_.max_batch, type_.chunk_tokens)
    told += [f"{flag} {value}" for flag, value in zip(own.step, values, strict=True) if value]
    return " ".join(told)


def _engine(envelope: Envelope) -> str:
    roles: Any = envelope.decision.get("roles") or [{}]
    return str((roles[0].get("engine") or {}).get("name") or "")
