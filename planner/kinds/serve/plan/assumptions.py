"""What a serving plan takes for granted, in words: of the steady state, of engines, and of the settings in use."""

from collections.abc import Iterator, Sequence

from planner.engines.formats import stored_only, weight_formats
from planner.engines.release import judged_by
from planner.kinds.serve.options import Drafting
from planner.kinds.serve.plan.checkpoints import checkpoint_assumptions
from planner.kinds.serve.plan.context import context_assumptions
from planner.kinds.serve.plan.expert_loads import expert_loads
from planner.kinds.serve.plan.memory import memory_assumptions
from planner.kinds.serve.plan.own_runs import margin_assumptions, run_assumptions
from planner.kinds.serve.plan.places import place_assumptions
from planner.kinds.serve.steady.roles_in_use import RoleInUse
from planner.kinds.serve.steady.search import Outcome, ServeSetting

ASSUMPTIONS = (
    "steady state: arrivals, lengths and batches at their means; waiting for prefill as in queues of single servers",
    "an instance reserves the KV cache of whole requests, so none is preempted",
    "requests spread evenly over equal instances, and over the attention ranks of one",
)
CLIENTS_MOST = "clients that wait for answers: no more requests are in the system than there are clients"
CLIENTS_LEAST = (
    "clients that wait for answers: the plan holds all of them within the limits, and predictions are for the load at"
    " which their closed loop rests"
)
SIDES_APART = (
    "attention and feed-forward apart: micro-batches of a replica are equally large and layers alike, and activations"
    " move while devices compute"
)
SPARE = (
    "with instances down: what is left of a role shares its load out anew, of each role and all roles at once; requests"
    " that were running on what failed are not counted"
)


def assumptions(setting: ServeSetting, outcome: Outcome, drafting: Drafting | None) -> Iterator[str]:
    """What the predictions and the optimum take for granted, in words; `drafting` is who drafts in the plan, if any."""
    used, targets = outcome.roles, setting.targets
    yield from ASSUMPTIONS
    if setting.pooling and any(item.candidate.function == "prefill" for item in used):
        yield (
            f"routers choose among equal prefill instances by {setting.routing.value}, and waits count as those of all "
            "of a role together"
        )
    yield from memory_assumptions(setting.resolved)
    hits = [target for target in targets if target.prefix_hits > 0.0]
    off = [*([] if hits else ["prefix caching"]), *([] if drafting else ["speculative decoding"]), "swapping"]
    yield f"{', '.join(off[:-1])}{' and ' * (len(off) > 1)}{off[-1]} {'are' if len(off) > 1 else 'is'} off"
    for target in hits:
        if target.cached is not None:
            continue
        yield (
            f"{100 * target.prefix_hits:.3g} % of the tokens of each prompt of `{target.name}` are in the prefix cache "
            "of every instance that prefills, as stated: they are not computed, take room in every sequence, and move "
            "with the rest of its cache"
        )
    if drafting is not None:
        yield (
            f"drafts of {drafting.drafter} are right with {drafting.acceptance:.3g} where those before them are, each "
            "by itself; times and rates are expected values"
        )
    yield from context_assumptions(setting, outcome)
    yield from setting.resolved.price_notes
    yield from run_assumptions(setting, used)
    yield from place_assumptions(used, targets, setting.options)
    yield from _engine_notes(setting, used)
    yield from checkpoint_assumptions(setting.resolved.problem, [item.candidate.model for item in used])
    if any(target.clients is not None for target in targets):
        yield CLIENTS_MOST if outcome.formulated.problem.maximising else CLIENTS_LEAST
    if any(target.latency_limits for target in targets):
        yield "limits on whole requests are judged at the full batch, and prefill alone has a share of them"
    yield from margin_assumptions(setting, used)
    if len({workload.model for workload in setting.resolved.workloads}) < len(targets):
        yield "an instance that serves several workloads divides its time between them, and each runs as if alone in it"
    if any(item.candidate.ffn is not None for item in used):
        yield SIDES_APART
    if setting.resolved.problem.availability is not None:
        yield SPARE


def _engine_notes(setting: ServeSetting, used: Sequence[RoleInUse]) -> Iterator[str]:
    """Rules of another release than the plan's, weights that a GPU only stores, and how evenly experts are loaded."""
    other = judged_by(setting.release, setting.resolved.problem.engine.version)
    if other is not None:
        yield other
    pools = dict.fromkeys(
        (item.candidate.model, pool) for item in used for pool, _ in item.candidate.devices_of_pool
    )  # fmt: skip
    for model, pool in pools:
        spot = setting.costs_of_pool[model, pool]
        gpu = spot.pool.node.accelerator
        for precision in sorted(weight_formats(spot.costs.arch)):
            stored = stored_only(setting.release, precision, gpu)
            if stored is not None:
                name = setting.release.name
                yield f"{gpu.display_name} has no units for {precision}: {name} runs {stored.format.below}"
    for item in used:
        yield from expert_loads(setting, item)
