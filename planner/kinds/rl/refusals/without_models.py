"""RL problems without models: what must then be stated, and what only models read."""

from collections.abc import Iterator

from planner.kinds.rl.options import RlOptions
from planner.kinds.rl.refusals import Refusal
from planner.problem.resolve import Resolved

OF_MODELS = (
    *("actor", "critic", "reference", "reward", "tools", "speculation", "length_error", "iterations", "max_running"),
    *("fused_training", "fusion_thresholds", "late_thresholds", "late_change_s", "partial_rollouts", "recompute"),
    *("teacher", "served", "reward_calls", "training_precision", "rollout_weights", "engine_sleep"),
    *("host_bandwidth_bytes_per_s", "critic_gpus"),
    *("useful_share", "max_output_tokens", "weight_sync_s", "training_cp", "training_ep", "simulated_rollouts"),
    "launcher",
)
"""Options without effect where all is stated and no model named."""


def without_models(resolved: Resolved, options: RlOptions) -> Iterator[Refusal]:
    """Without a model all is stated: lengths sample by sample, curves, and what handing over takes; else drawn."""
    bare, costs, horizon = not resolved.problem.models, options.costs, options.horizon
    periods = () if horizon is None else horizon.periods
    recorded = all(period.records for period in periods) if periods else bool(options.records or options.agents)
    yield bare and not recorded, ("models",), "no model is named, and lengths are not recorded", "add `models:`"
    what = "no model is named, and what it takes to generate is not measured"
    yield bare and not costs.generation, ("models",), what, "add `models:`, or curves: `options.costs.generation`"
    what = "no model is named, and what it takes to train is not measured"
    trains = not options.generation_only
    yield bare and trains and not costs.training, ("models",), what, "add `models:`, or `options.costs.training`"
    stated = {
        "records": bool(options.records),
        "agents": options.agents is not None,
        "dispatch": options.dispatch is not None,
        "generation_only": options.generation_only,
        "equal_shares": not options.equal_shares,
        "costs.weight_sync": bool(costs.weight_sync),
        "costs.switch": costs.switch_s is not None,
        "horizon.periods": any(period.records for period in periods),
        "horizon.running": horizon is not None and horizon.running is not None,
    }
    for name, given in stated.items():
        what = f"`{name}` goes with costs and lengths that are all stated, and models are named"
        yield not bare and given, ("options", *name.split(".")), what, f"leave `{name}` out, or `models`"
    for name in OF_MODELS:
        what = f"`{name}` is of a model, and none is named"
        wrong = bare and name in options.model_fields_set
        yield wrong, ("options", name), what, f"leave `{name}` out, or add `models:`"
    what = "`over_sampling` draws more samples, and they are recorded"
    yield bare and options.over_sampling > 1, ("options", "over_sampling"), what, "leave it out"
    alone = options.generation_only
    what = "generation alone is planned, and training is measured"
    yield alone and bool(costs.training), ("options", "costs", "training"), what, "leave it out"
    what, apart = "generation alone has GPUs of its own", "disaggregated" in options.arrangements
    yield alone and not apart, ("options", "arrangements"), what, "write `arrangements: [disaggregated]`"
    in_turn = "synchronous" in (options.synchrony or ("synchronous",))
    yield alone and not in_turn, ("options", "synchrony"), what, "write `synchrony: [synchronous]`"
    what = "generation alone is planned, and a horizon changes training too"
    yield options.generation_only and horizon is not None, ("options", "horizon"), what, "leave one of them out"
    records = [row for period in periods for row in period.records] or list(options.records)
    sizes = {len(row.output_tokens) for row in records}
    sizes |= {len(batch.trajectories) for batch in options.agents.batches} if options.agents is not None else set()
    what = f"{options.prompts * options.samples_per_prompt} samples are trained on, and records have {sorted(sizes)}"
    short = bool(sizes) and min(sizes) != options.prompts * options.samples_per_prompt
    yield bare and short, ("options", "prompts"), what, "write the samples of the smallest record"
