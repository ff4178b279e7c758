"""What would change the plan: its integer instance mix solved again as one input moves at a time."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.documents.units import significant
from planner.explain.facts import Fact
from planner.explain.mix import Mix, NodeSizes, limited, needs_rate
from planner.solvers.mix import MixObjective, MixProblem, MixShape

_SAME = 1e-6  # relative; objectives this near are equal
_BETTER = 1e-4  # relative; a plan that is cheaper by less is not looked for
_STEPS = 10  # mixes looked at for a break-even price; two to four suffice as a rule
_CHEAPEST, _DEAREST = 0.1, 10.0  # factors of a price that are looked at
_LEAST_RATE = 0.1  # of the rate: how far down is looked


def move_facts(mix: Mix) -> Iterator[Fact]:
    """A node more or fewer in each pool; how far rates and prices can move before another plan is best."""
    for p in range(len(mix.problem.pools)):
        yield from _nodes(mix, p)
    if needs_rate(mix.problem) and all(demand.clients is None for demand in mix.problem.demands):
        yield from _headroom(mix)
        yield from _slack(mix)
    if mix.problem.objective is MixObjective.PRICE and len(mix.problem.pools) > 1:
        for p in range(len(mix.problem.pools)):
            yield from _price(mix, p)


def replica_facts(mix: Mix, role: str) -> Iterator[Fact]:
    """What one instance more or fewer of a role would do to the objective."""
    c = mix.shape_of_role.get(role)
    if c is None:
        return
    for most in sorted({mix.count(c) - 1, 0}, reverse=True):
        fewer = limited(mix.problem, dict.fromkeys(_alike(mix, c), most))
        yield _instances(mix, role, most, mix.best(fewer))


def _alike(mix: Mix, c: int) -> list[int]:
    """The shapes of the same type and pool, whatever channel they take and however many stand together."""
    kind, pool = mix.problem.shapes[c].name.partition("#")[0], mix.problem.shapes[c].pool
    shapes = enumerate(mix.problem.shapes)
    return [other for other, shape in shapes if (shape.name.partition("#")[0], shape.pool) == (kind, pool)]


def _instances(mix: Mix, role: str, most: int, objective: float | None) -> Fact:
    amount = f"at most {most} instance{'s' if most != 1 else ''}" if most else "no instances"
    start = f"with {amount} like those of `{role}`"
    if not objective:
        return Fact("change", f"{start} no plan keeps the limits", (role, "replicas"))
    loss = mix.loss(objective)
    what = "another plan is as good" if abs(loss) <= _SAME else f"the best plan is {100 * loss:.2f} % worse"
    return Fact("change", f"{start} {what}", (role, "replicas", "parallelism"), figures={"loss": loss})


def _nodes(mix: Mix, p: int) -> Iterator[Fact]:
    pool = mix.problem.pools[p]
    domains = Counter(dict(pool.nodes))
    fullest = max(domains, default=0)
    sizes = mix.node_sizes.get(pool.name, NodeSizes(fullest, fullest))
    moved = (("more", _joined(domains, sizes)), ("fewer", domains - _domain(fullest) + _domain(fullest - sizes.node)))
    for word, left in moved:
        nodes = tuple(sorted(left.items()))
        pools = tuple(replace(old, nodes=nodes) if q == p else old for q, old in enumerate(mix.problem.pools))
        about = (pool.name, "gpus")
        start = f"one node {word} in pool `{pool.name}` ({sizes.node} GPUs)"
        objective = mix.best(replace(mix.problem, pools=pools))
        if not objective:
            yield Fact("change", f"{start}: no plan keeps the limits", about)
        elif abs(mix.loss(objective)) > _SAME:
            yield _moved(mix, start, objective, about)


def _joined(domains: Counter[int], sizes: NodeSizes) -> Counter[int]:
    """Domains, by their free GPUs, with one node more: in the fullest that has room for it, else in one of its own."""
    old = max((free for free in domains if free + sizes.node <= sizes.domain), default=0)
    return domains - _domain(old) + _domain(old + sizes.node)


def _domain(free: int) -> Counter[int]:
    """One domain of so many free GPUs; none of none."""
    return Counter([free] if free > 0 else ())


def _moved(mix: Mix, start: str, objective: float, about: tuple[str, ...]) -> Fact:
    unit, per_plan = mix.whole
    scale = mix.factor * per_plan
    relative = objective / mix.objective - 1.0
    what = f"{start}: {significant(objective * scale)} in place of {significant(mix.objective * scale)} {unit}"
    return Fact("change", f"{what} ({100 * relative:+.1f} %)", about, figures={"relative": relative})


def _scaled_loads(mix: Mix) -> MixProblem:
    """The mix that serves as much of all rates together as it can; its objective is the share of them."""
    demands = tuple(replace(demand, share=demand.rate_per_s or 0.0, rate_per_s=None) for demand in mix.problem.demands)
    return replace(mix.problem, objective=MixObjective.SCALE, demands=demands)


def _headroom(mix: Mix) -> Iterator[Fact]:
    """How much more load the instances of the plan can take."""
    counts = {c: mix.count(c) for c in range(len(mix.problem.shapes))}
    most = mix.best(limited(_scaled_loads(mix), counts))
    if most and most >= 1.0 - _SAME:
        text = f"the instances of the plan hold {significant(100 * (most - 1.0))} % more load: {_load_text(mix, most)}"
        yield Fact("change", text, (*_names(mix), "requests_per_s"), figures={"load_factor": most})


def _slack(mix: Mix) -> Iterator[Fact]:
    """The most load that some better plan can take."""
    cheaper = _scaled_loads(mix)
    limits = cheaper.limits
    if mix.problem.objective is MixObjective.DEVICES:
        limits = replace(limits, devices=round(mix.objective) - 1)
    else:
        limits = replace(limits, price_per_hour=mix.objective * (1.0 - _BETTER))
    least = mix.best(replace(cheaper, limits=limits)) or 0.0
    if _LEAST_RATE < least < 1.0:
        less = significant(100 * (1.0 - least))
        what = f"with {less} % less load a better plan takes over: {_load_text(mix, least)}"
        yield Fact("change", what, (*_names(mix), "requests_per_s"), figures={"load_factor": least})


def _names(mix: Mix) -> tuple[str, ...]:
    return tuple(demand.name for demand in mix.problem.demands)


def _load_text(mix: Mix, factor: float) -> str:
    rates = ((demand.name, demand.rate_per_s) for demand in mix.problem.demands if demand.rate_per_s is not None)
    return ", ".join(f"`{name}` {significant(rate * factor, 4)} requests/s" for name, rate in rates)


def _price(mix: Mix, p: int) -> Iterator[Fact]:
    """Between which prices of a pool the instances of the plan stay the cheapest."""
    pool = mix.problem.pools[p]
    whole = [shape for shape in mix.problem.shapes if shape.pool == p and not shape.aside]
    each = [shape.price_per_hour / shape.devices for shape in whole if shape.price_per_hour]
    if not each or max(each) - min(each) > _SAME * max(each):
        return
    price = each[0]
    low, high = _break_even(mix, p, price, _CHEAPEST), _break_even(mix, p, price, _DEAREST)
    from_text = f"from {significant(low * price)}" if low > _CHEAPEST else "from below"
    to_text = f"to {significant(high * price)}" if high < _DEAREST else "and more"
    what = f"this plan stays the cheapest with a GPU of `{pool.name}` {from_text} {to_text} USD/h"
    figures = {"low_usd_per_gpu_hour": low * price, "high_usd_per_gpu_hour": high * price}
    yield Fact("change", f"{what} (now {significant(price)})", (pool.name, "price"), figures=figures)


def _inside(shape: MixShape, p: int, price: float) -> float:
    """What an instance costs in a pool where a device has a price."""
    return price * sum(part.devices for part in shape.slots if part.pool == p)


def _break_even(mix: Mix, p: int, price: float, factor: float) -> float:
    """The factor on the price of a pool, from 1 towards `factor`, up to which the plan stays the cheapest.

    Costs are lines in the factor: where a cheaper mix is found, the next factor tried is where the two lines meet.
    """
    ours = _line(mix.problem, [mix.count(c) for c in range(len(mix.problem.shapes))], p, price)
    for _ in range(_STEPS):
        shapes = tuple(
            replace(shape, price_per_hour=shape.price_per_hour + _inside(shape, p, price) * (factor - 1.0))
            for shape in mix.problem.shapes
        )
        cheapest = mix.solution(replace(mix.problem, shapes=shapes))
        if cheapest is None:
            return factor
        theirs = _line(mix.problem, cheapest.counts, p, price)
        cost, other = ours[0] + ours[1] * factor, theirs[0] + theirs[1] * factor
        if cost <= other * (1.0 + _SAME) or theirs[1] == ours[1]:
            return factor
        factor = (theirs[0] - ours[0]) / (ours[1] - theirs[1])
    return factor


def _line(problem: MixProblem, counts: Sequence[int], p: int, price: float) -> tuple[float, float]:
    """What instances cost outside a pool, and in it at its present prices."""
    inside = outside = 0.0
    for shape, count in zip(problem.shapes, counts, strict=True):
        there = _inside(shape, p, price)
        inside, outside = inside + there * count, outside + (shape.price_per_hour - there) * count
    return outside, inside
