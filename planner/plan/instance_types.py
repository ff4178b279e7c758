"""Names of instance types, by which proofs, explanations and pages know what a role is: written and read here alone.

`decode/qwen3/2x1x1x1x1/104/0` is function, model, degrees, batch limit and chunk. Of the degrees, micro-batches, pieces
and redundant experts follow as far as they are not what all have. `+drafts/3` follows where it drafts,
`+ffn/4x1x1x1x4/2` where feed-forward layers stand on devices of their own: their degrees, the micro-batches that take
turns, and their pool where it is another one. What follows a `#` tells apart types of one name.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.plan.records import BY_NUMBER, Parallelism
from planner.plan.schema import Role

_SIZES = 5  # tp, pp, dp, moe_tp, ep
_PLAIN = (1, 1, BY_NUMBER)  # micro-batches, pieces, redundant experts


def type_degrees(degrees: Sequence[int]) -> tuple[int, ...]:
    """tp, pp, dp, moe_tp, ep as given, and micro-batches, pieces and redundant experts up to the last not plain."""
    further = len(degrees)
    while further > _SIZES and degrees[further - 1] == _PLAIN[further - 1 - _SIZES]:
        further -= 1
    return tuple(degrees[:further])


def type_name(
    function: str, model: str, degrees: tuple[int, ...], max_batch: object, chunk_tokens: object, draft_tokens: object
) -> str:
    """The name of a type that stands on devices of one kind."""
    drafts = f"+drafts/{draft_tokens}" if draft_tokens else ""
    return f"{function}/{model}/{_written(degrees)}/{max_batch}/{chunk_tokens}{drafts}"


def unit_name(attention: str, ffn_degrees: tuple[int, ...], micro_batches: object, pool: str | None) -> str:
    """The name of a type with the sides apart, from that of its attention; `pool` where the other side has its own."""
    return f"{attention}+ffn/{_written(ffn_degrees)}/{micro_batches}{f'/{pool}' if pool is not None else ''}"


def unlimited_name(function: str, model: str | None, degrees: Sequence[int], pool: str) -> str:
    """`decode/qwen3/tp2/h200`: what a type is, whatever its batch and chunk, and whose expert parallelism it has."""
    tp, pp, dp, _, ep = degrees[:5]
    shape = Parallelism(tp=tp, pp=pp, dp=dp, ep=ep).text.replace(" ", "") or "tp1"
    return f"{function}/{model}/{shape}/{pool}"


def name_of_role(role: Role, ffn: Role | None = None) -> str:
    """The name of the type of a role, with the role of its feed-forward side where it has one."""
    limits = (role.limits.get(name, 0) for name in ("max_batch", "chunk_tokens", "draft_tokens"))
    name = type_name(role.function, role.model or "", role_degrees(role), *limits)
    if ffn is None:
        return name
    pool = None if ffn.pool == role.pool else ffn.pool
    return unit_name(name, role_degrees(ffn), role.limits.get("micro_batches"), pool)


def role_degrees(role: Role) -> tuple[int, ...]:
    """Those of the degrees of a role that its type is named by."""
    return type_degrees(all_degrees(role))


def all_degrees(role: Role) -> tuple[int, ...]:
    """tp, pp, dp, moe_tp, ep, micro-batches, pieces and redundant experts of a role.

    Micro-batches that take turns between two sides are none of one side.
    """
    own, limits = role.parallelism, role.limits
    halves = 1 if role.function in ("attention", "ffn") else int(limits.get("micro_batches", 1))
    further = (halves, int(limits.get("pieces", 1)), int(limits.get("redundant_experts", BY_NUMBER)))
    return (own.tp, own.pp, own.dp, own.moe_tp, own.ep, *further)


@dataclass(frozen=True, slots=True)
class InstanceType:
    """What a name says."""

    function: str
    model: str
    degrees: tuple[int, ...]
    max_batch: int
    chunk_tokens: int
    draft_tokens: int = 0
    ffn_degrees: tuple[int, ...] = ()

    @property
    def shape(self) -> str:
        """`tp2 moe-tp2`."""
        return shape_text(self.degrees)


def shape_text(degrees: tuple[int, ...]) -> str:
    """`tp2 moe-tp2`, or `1 GPU`, what is cut, the instance in pieces, its steps in batches, and what is copied."""
    tp, pp, dp, moe_tp, ep, micro_batches, pieces, redundant = (*degrees, *_PLAIN[len(degrees) - _SIZES :])
    whole = Parallelism(tp=tp, pp=pp, dp=dp, moe_tp=moe_tp, ep=ep).text or "1 GPU"
    cut = f" in {pieces} pieces" if pieces > 1 else ""
    placed = f" with {redundant} redundant experts" if redundant != BY_NUMBER else ""
    return f"{whole}{cut}{' in two batches' if micro_batches > 1 else ''}{placed}"


def read_type(name: str) -> InstanceType | None:
    """The type of that name; None for what is none, such as a line of a frontier."""
    typed, _, ffn = name.partition("#")[0].partition("+ffn/")
    whole, _, drafts = typed.partition("+drafts/")
    parts = whole.split("/")
    if len(parts) < 5:
        return None
    function, *model, degrees, max_batch, chunk_tokens = parts
    try:
        limits = int(max_batch), int(chunk_tokens), int(drafts or 0)
        apart = _read(ffn.partition("/")[0]) if ffn else ()
        return InstanceType(function, "/".join(model), _read(degrees), *limits, apart)
    except ValueError:
        return None


def _written(degrees: tuple[int, ...]) -> str:
    return "x".join(map(str, degrees))


def _read(degrees: str) -> tuple[int, ...]:
    tp, pp, dp, moe_tp, ep, *several = map(int, degrees.split("x"))
    return (tp, pp, dp, moe_tp, ep, *several)
