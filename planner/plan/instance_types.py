"""Names of instance types, by which proofs, explanations and pages know what a role is: written and read here alone.

`decode/qwen3/2x1x1x1x1/104/0` is function, model, degrees, batch limit and chunk. `+drafts/3` follows where it drafts,
`+ffn/4x1x1x1x4/2` where feed-forward layers stand on devices of their own: their degrees, the micro-batches that take
turns, and their pool where it is another one. What follows a `#` tells apart types of one name.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.plan.records import Parallelism
from planner.plan.schema import Role


def type_degrees(shape: Sequence[int], micro_batches: int = 1, pieces: int = 1) -> tuple[int, ...]:
    """tp, pp, dp, moe_tp, ep as given, and micro-batches and pieces where there are several."""
    if pieces > 1:
        return (*shape, micro_batches, pieces)
    return (*shape, micro_batches) if micro_batches > 1 else tuple(shape)


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
    """The degrees of a role; micro-batches that take turns between two sides are none of one side."""
    own, limits = role.parallelism, role.limits
    halves = 1 if role.function in ("attention", "ffn") else int(limits.get("micro_batches", 1))
    return type_degrees((own.tp, own.pp, own.dp, own.moe_tp, own.ep), halves, int(limits.get("pieces", 1)))


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
    """`tp2 moe-tp2`, or `1 GPU`, and what is cut: the instance in pieces, its steps in batches."""
    tp, pp, dp, moe_tp, ep, micro_batches, pieces = (*degrees, 1, 1)[:7]
    whole = Parallelism(tp=tp, pp=pp, dp=dp, moe_tp=moe_tp, ep=ep).text or "1 GPU"
    cut = f" in {pieces} pieces" if pieces > 1 else ""
    return f"{whole}{cut}{' in two batches' if micro_batches > 1 else ''}"


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
