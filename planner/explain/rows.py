"""Binding constraints of the instance mix (`planner.solvers.mix_model.build`) at the plan, in words."""

import re
from collections.abc import Callable, Iterator
from typing import Any

from planner.documents.units import figure, significant
from planner.explain.facts import NEAR, TIGHT, Fact
from planner.explain.mix import Mix, shown_shape
from planner.solvers.backends.model import ModelRow
from planner.solvers.mix import MixShape, group_sizes

_NAME = re.compile(r"(C\d\w?)\[(.*)\]")
_MOST_OTHERS = 6  # instance types that are shown in place of one
_STAGES = {"whole": "colocated", "first": "prefill", "second": "decode"}


def row_facts(mix: Mix) -> Iterator[Fact]:
    """What is used up or nearly so: devices, links, ports, limits, clients, and the time of instances."""
    yield from _pools(mix)
    for row in mix.model.rows:
        match = _NAME.fullmatch(row.name)
        tell = _TELL.get(match[1]) if match is not None else None
        if tell is not None and match is not None:
            yield from tell(mix, row, match[2])


def used_share(row: ModelRow, values: tuple[float, ...]) -> float:
    """How much of a row's room is taken: 1 where it is used up.

    Room is what the negative terms and the side give, taken what the positive terms need; for a row with only a lower
    side, the other way round.
    """
    upper = row.upper < float("inf")
    terms = [a * values[j] for j, a in zip(row.columns, row.coefficients, strict=True)]
    gained = sum(term for term in terms if term > 0.0)
    lost = -sum(term for term in terms if term < 0.0)
    side = row.upper if upper else row.lower
    needed, room = (gained, side + lost) if upper else (side + lost, gained)
    return needed / room if room > 0.0 else 1.0 if needed >= 0.0 else 0.0


def _pools(mix: Mix) -> Iterator[Fact]:
    """Devices of each pool in use, and whether a larger group would still find a place (C4)."""
    for p, pool in enumerate(mix.problem.pools):
        total = sum(free * count for free, count in pool.nodes)
        taken = sum(
            mix.count(c) * part.devices
            for c, shape in enumerate(mix.problem.shapes)
            for part in shape.slots
            if part.pool == p
        )
        about = (pool.name, "gpus")
        figures = {"taken": float(taken), "in_service": float(total)}
        if taken == total:
            yield Fact("binding", f"all {total} GPUs of pool `{pool.name}` are taken", about, f"C4[{p},*]", figures)
            continue
        yield Fact(
            "limit", f"{total - taken} of {total} GPUs of pool `{pool.name}` are idle", about, f"C4[{p},*]", figures
        )
        if taken:
            yield from _full_sizes(mix, p)


def _full_sizes(mix: Mix, p: int) -> Iterator[Fact]:
    pool = mix.problem.pools[p]
    rows = {row.name: row for row in mix.model.rows}
    for size in group_sizes(mix.problem, p):
        row = rows.get(f"C4[{p},{size}]")
        if row is not None and used_share(row, mix.values) >= TIGHT:
            what = f"no node of pool `{pool.name}` has room for another group of {size} GPUs"
            yield Fact("binding", what, (pool.name, "gpus"), row.name, {"group": float(size)})
            return


def _role_of(mix: Mix, c: int) -> str | None:
    return next((role for role, shape in mix.shape_of_role.items() if shape == c), None)


def _busy(mix: Mix, row: ModelRow, index: str) -> Iterator[Fact]:
    c = int(index)
    role = _role_of(mix, c)
    if role is None or not mix.count(c):
        return
    share = mix.busy(c)
    count = f"{mix.count(c)} instance{'s' if mix.count(c) != 1 else ''}"
    state = "fully busy" if share >= TIGHT else f"{100 * share:.1f} % busy"
    topic = "binding" if share >= NEAR else "limit"
    yield Fact(topic, f"{count} of `{role}` {state}", (role, "replicas"), row.name, {"busy": share})  # type: ignore[arg-type]  # one of Topic


def _link(mix: Mix, row: ModelRow, index: str) -> Iterator[Fact]:
    p, q = (int(pool) for pool in index.split(","))
    share = used_share(row, mix.values)
    pools = mix.problem.pools
    capacity = mix.problem.link_bytes_per_s(p, q) or 0.0
    if share > 0.0:
        name = f"network from `{pools[p].name}` to `{pools[q].name}`"
        what = f"{name} carries {figure('x_bytes_per_s', share * capacity)} of {figure('x_bytes_per_s', capacity)}"
        about = (pools[p].name, pools[q].name, "kv_transfer_bytes_per_s")
        yield _graded(what, share, about, row.name)


def _port(mix: Mix, row: ModelRow, index: str) -> Iterator[Fact]:
    role = _role_of(mix, int(index))
    share = used_share(row, mix.values)
    if role is not None and mix.count(int(index)) and share >= NEAR:
        yield _graded(f"the network ports of `{role}`", share, (role, "kv_transfer_bytes_per_s"), row.name)


def _limit(mix: Mix, row: ModelRow, index: str) -> Iterator[Fact]:
    share = used_share(row, mix.values)
    limits = mix.problem.limits
    word, _, stage = index.partition(" ")
    role = _STAGES.get(stage.rpartition(".")[2].lower(), stage)
    texts = {
        "devices": f"the cap of {limits.devices} GPUs",
        "price": f"the cap of {significant(limits.price_per_hour or 0.0)} USD/h",
        "shapes": f"the cap of {limits.shapes} instance types",
        "min": f"the least number of {role} instances",
        "max": f"the largest number of {role} instances",
    }
    yield _graded(texts.get(word, f"the limit {index}"), share, ("gpus" if word == "devices" else word,), row.name)


def _clients(mix: Mix, row: ModelRow, index: str) -> Iterator[Fact]:
    demand = mix.problem.demands[int(index)]
    what = f"room for clients of `{demand.name}`, of whom there are {demand.clients or 0:g}"
    yield _graded(what, used_share(row, mix.values), (demand.name, "requests_per_s"), row.name)


def _graded(what: str, share: float, about: tuple[str, ...], rule: str) -> Fact:
    state = "used up" if share >= TIGHT else f"{100 * share:.0f} % used"
    return Fact("binding" if share >= NEAR else "limit", f"{what}: {state}", about, rule, {"used": share})


_TELL: dict[str, Callable[[Mix, ModelRow, Any], Iterator[Fact]]] = {
    "C1": _busy,
    "C5l": _link,
    "C5e": _port,
    "C6": _limit,
    "C7": _clients,
}


def unused_shapes(mix: Mix, role: str) -> Iterator[Fact]:
    """Other instance types that could stand in for those of a role, and how they compare at their best load."""
    index = mix.shape_of_role.get(role)
    if index is None:
        return
    shapes = mix.problem.shapes
    own = shapes[index]
    others = [
        c for c, other in enumerate(shapes) if c != index and (other.role, other.channel) == (own.role, own.channel)
    ]
    others.sort(key=lambda c: -max(shapes[c].rate_per_s) / shapes[c].devices)
    for c in others[:_MOST_OTHERS]:
        rates = _per_device(shapes[c])
        pairs = [(rate, base) for rate, base in zip(rates, _per_device(own), strict=True) if rate or base]
        text = ", ".join(f"{significant(rate)} instead of {significant(base)} requests/s/gpu" for rate, base in pairs)
        figures = {"rate_per_gpu": max(rates)}
        yield Fact("alternative", f"{shown_shape(mix, c)}: {text}", (role, "parallelism"), figures=figures)


def _per_device(shape: MixShape) -> list[float]:
    return [rate / shape.devices for rate in shape.rate_per_s]
