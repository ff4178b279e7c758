"""Shadow prices: what a little more of each limit is worth, from LP duals of the plan's instance mix.

A dual says how the best objective moves per unit of a limit when instances could be divided. It bounds what whole
instances can gain from below or above by rounding alone; `planner.explain.moves` solves with whole ones.
"""

from collections.abc import Iterator, Sequence

from planner.documents.units import significant
from planner.explain.facts import Fact
from planner.explain.mix import Mix, needs_rate
from planner.solvers.backends.model import ModelRow
from planner.solvers.mix import group_sizes

_LEAST = 1e-9  # relative to the objective: less is rounding
_MARGIN = "at the margin, if instances could be divided"


def worth_facts(mix: Mix) -> Iterator[Fact]:
    """The worth of a GPU of each pool, of a request, of money, of network, of a client."""
    from planner.solvers.backends.mathopt import Relaxation

    answer = Relaxation(mix.model).solve(mix.model.lower, mix.model.upper)
    if answer.duals is None:
        return
    duals = {row.name: (row, dual) for row, dual in zip(mix.model.rows, answer.duals, strict=True)}
    for p, pool in enumerate(mix.problem.pools):
        each = [(duals[f"C4[{p},{s}]"][1], s) for s in group_sizes(mix.problem, p) if f"C4[{p},{s}]" in duals]
        gain = sum(dual / size for dual, size in each)
        yield from _worth(mix, gain, f"one GPU more in pool `{pool.name}`", (pool.name, "gpus"), f"C4[{p},*]")
    yield from _requests(mix, duals)
    yield from _limits(mix, duals)


def _requests(mix: Mix, duals: dict[str, tuple[ModelRow, float]]) -> Iterator[Fact]:
    for w, demand in enumerate(mix.problem.demands):
        if needs_rate(mix.problem) and demand.rate_per_s is not None and f"C2[{w}]" in duals:
            gain = duals[f"C2[{w}]"][1] / mix.columns.rate_unit_per_s
            about = (demand.name, "requests_per_s")
            yield from _worth(mix, gain, f"one request/s more of `{demand.name}`", about, f"C2[{w}]")
        if demand.clients is not None and f"C7[{w}]" in duals:
            gain = duals[f"C7[{w}]"][1] / demand.clients
            about = (demand.name, "requests_per_s")
            yield from _worth(mix, gain, f"one client more of `{demand.name}`", about, f"C7[{w}]")


def _limits(mix: Mix, duals: dict[str, tuple[ModelRow, float]]) -> Iterator[Fact]:
    limits = mix.problem.limits
    if "C6[devices]" in duals:
        yield from _worth(mix, duals["C6[devices]"][1], "one GPU more under the cap", ("gpus",), "C6[devices]")
    if "C6[price]" in duals and limits.price_per_hour:
        row, dual = duals["C6[price]"]
        gain = dual * row.upper / limits.price_per_hour
        yield from _worth(mix, gain, "one USD/h more under the cap", ("price",), "C6[price]")
    for name, (_, dual) in duals.items():
        if name.startswith("C5l["):
            p, q = (int(index) for index in name[4:-1].split(","))
            pools = mix.problem.pools
            what = f"10 % more network from `{pools[p].name}` to `{pools[q].name}`"
            yield from _worth(mix, 0.1 * dual, what, (pools[p].name, pools[q].name, "kv_transfer_bytes_per_s"), name)


def _worth(mix: Mix, gain: float, what: str, about: Sequence[str], rule: str) -> Iterator[Fact]:
    """One fact where the gain, in units of the model's objective, is more than rounding."""
    moved = gain * mix.columns.objective_unit
    if abs(moved) <= _LEAST * max(abs(mix.objective), 1e-12):
        return
    unit, per_plan = mix.whole
    value = moved * mix.factor * per_plan
    verb = "adds" if value > 0 else "saves"
    text = f"{what} {verb} {significant(abs(value))} {unit} ({_MARGIN})"
    yield Fact("worth", text, tuple(about), rule, {"gain": value})
