"""What of requests the roles of a plan are not priced for: beyond their context, and beside text; what is assumed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planner.kinds.serve.plan.encoded import media_assumptions
from planner.kinds.serve.steady.context import role_context
from planner.kinds.serve.steady.demand import Target, served_of
from planner.kinds.serve.steady.search import Outcome, ServeSetting
from planner.plan.schema import Prediction

NEGLIGIBLE = 1e-6  # of the requests: no more is told than that it is less
REFUSED, CUT = "refused_share", "cut_share"


@dataclass(frozen=True, slots=True)
class Beyond:
    """Shares of the requests of a workload that the plan's roles refuse, and whose answers they cut."""

    target: Target
    refused: float
    cut: float
    shorter: bool  # where a role ends before the context that its requests are priced for


def beyond_predictions(setting: ServeSetting, outcome: Outcome) -> Iterator[Prediction]:
    """The shares of each workload that has any worth telling."""
    for beyond in _beyond(setting, outcome):
        if beyond.refused + beyond.cut >= NEGLIGIBLE:
            yield Prediction(metric=REFUSED, of=beyond.target.name, value=beyond.refused)
            yield Prediction(metric=CUT, of=beyond.target.name, value=beyond.cut)


def context_assumptions(setting: ServeSetting, outcome: Outcome) -> Iterator[str]:
    """How long requests are that plans serve, and what becomes of those that are longer."""
    for beyond in _beyond(setting, outcome):
        name, share = beyond.target.name, beyond.refused + beyond.cut
        if 0.0 < share < NEGLIGIBLE:
            yield f"fewer than one in a million requests of `{name}` are longer than the context of their roles"
        elif share > 0.0:
            yield (
                f"`{name}`: a share of {beyond.refused:.3g} of the requests is refused and of {beyond.cut:.3g} cut at "
                "the context of their roles; means and variances are those of what is served, rates count all that come"
            )
        if beyond.shorter and share >= NEGLIGIBLE:
            yield (
                f"`{name}` is priced for requests of up to {beyond.target.context_tokens} tokens, though memory ends "
                "some of its roles before"
            )
    yield from media_assumptions(setting, outcome)


def _beyond(setting: ServeSetting, outcome: Outcome) -> Iterator[Beyond]:
    """By workload that the plan serves, over the ways that its requests take."""
    used = outcome.roles
    tokens = {
        item.role: role_context(item.candidate, setting.costs_of_pool[item.candidate.model, item.candidate.pool]).tokens
        for item in used
    }
    for target in setting.targets:
        workload, ways = setting.resolved.workloads[target.index], _ways(outcome, target, tokens)
        refused = cut = 0.0
        for (first, last), share in ways.items():
            served = served_of(workload, last, first)
            refused += share * served.refused_share
            cut += share * served.cut_share
        if ways:
            shorter = min(min(way) for way in ways) < target.context_tokens
            yield Beyond(target, refused, cut, shorter)


def _ways(outcome: Outcome, target: Target, tokens: Mapping[str, int]) -> dict[tuple[int, int], float]:
    """Shares of a workload by the contexts where it is prefilled and where it is decoded.

    Requests of several prefill roles go on to the roles behind them alike.
    """
    w, ways = target.index, dict[tuple[int, int], float]()
    used = [item for item in outcome.roles if item.load_per_s[w] > 0.0]
    taken = sum(item.load_per_s[w] for item in used if not item.candidate.decodes)
    for item in used:
        if item.candidate.decodes:
            continue
        after = [
            other
            for other in used
            if other.candidate.decodes
            and other.candidate.channel == item.candidate.channel
            and item.candidate.function == "prefill"
        ]
        whole = sum(other.load_per_s[w] for other in after)
        for other in after or [item]:
            part = other.load_per_s[w] / whole if after else 1.0
            key = (tokens[item.role], tokens[other.role])
            ways[key] = ways.get(key, 0.0) + part * item.load_per_s[w] / taken
    return ways
