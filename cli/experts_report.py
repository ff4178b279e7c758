"""What `planner experts` prints: summaries, tables, documents and launchers' files."""

from typing import TYPE_CHECKING, Any

from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.experts.instance import Instance, Placement
    from planner.experts.step_time import MoeCosts


def launchable(placement: "Placement", instance: "Instance", layer_ids: tuple[int, ...], form: str) -> str:
    from planner.errors import did_you_mean
    from planner.experts import launchers

    rows = placement.expert_P
    if rows.ndim != 2:
        rows = rows[-1] if instance.kind == "drift" else rows.reshape(-1, rows.shape[-1])
    forms = {
        "sglang": lambda: launchers.sglang_location(rows, layer_ids, max(layer_ids) + 1, instance.num_experts),
        "vllm": lambda: launchers.vllm_mapping(rows, instance.num_experts),
        "vllm-ascend": lambda: launchers.ascend_map(rows, instance.ranks.num_ranks),
        "tensorrt-llm": lambda: launchers.tensorrt_balancer(rows, layer_ids, (), instance.num_experts),
    }
    if form not in forms:
        hint = did_you_mean(form, ["npz", *forms], otherwise=f"use one of npz, {', '.join(forms)}")
        raise PlannerError(f"unknown form `{form}`", where="--form", hint=hint)
    if form in ("vllm", "vllm-ascend"):
        _require_no_gap(layer_ids)
    free = placement.quota_P is not None
    launchers.require_launchable(rows, instance.ranks.num_ranks, instance.num_experts, free_shares=free)
    return forms[form]()


def _require_no_gap(layer_ids: tuple[int, ...]) -> None:
    """These forms count layers with experts from 0: one without load between others would shift all that follow."""
    missing = sorted(set(range(min(layer_ids), max(layer_ids) + 1)) - set(layer_ids))
    if missing:
        raise PlannerError(
            f"layer {missing[0]} lies between layers with load and has none, so that later layers would be misplaced",
            where="--form",
            hint="record loads of every layer with experts, or write --form sglang or tensorrt-llm, which name layers",
        )


def document_of(instance: "Instance", placement: "Placement") -> dict[str, Any]:
    gap = placement.imbalance / placement.bound - 1.0
    return {
        "schema": "planner.experts/1",
        "name": instance.name,
        "kind": instance.kind,
        "status": placement.status,
        "objective": {"metric": "imbalance", "mean": placement.imbalance.mean(), "worst": placement.imbalance.max()},
        "bound": {"mean": placement.bound.mean(), "worst": placement.bound.max()},
        "gap": {"mean": gap.mean(), "worst": gap.max()},
        **placement.facts,
        "imbalance_by_layer": placement.imbalance.tolist(),
        "bound_by_layer": placement.bound.tolist(),
    }


def summary_of(instance: "Instance", placement: "Placement") -> str:
    from planner.units import format_si

    gap = 100.0 * (placement.imbalance / placement.bound - 1.0)
    lines = [
        f"{instance.name}  {placement.status}",
        f"  imbalance  mean {placement.imbalance.mean():.4f}  worst {placement.imbalance.max():.4f}",
        f"  bound      mean {placement.bound.mean():.4f}  worst {placement.bound.max():.4f}",
        f"  gap        mean {gap.mean():.3f} %  worst {gap.max():.3f} %",
    ]
    moved = placement.facts.get("moved_bytes_after_first")
    if moved:
        lines.append(f"  moved      {format_si(moved, 'B')} after the first window")
    if "nodes_per_token" in placement.facts:
        lines.append(f"  nodes      {placement.facts['nodes_per_token']:.3f} for each token")
    return "\n".join(lines)


def below_peak(instance: "Instance", placement: "Placement", peak_tokens: int) -> bool:
    """Whether no rank gets more tokens than it has room for; says so, and by how much, where one does."""
    import numpy as np

    from planner.cli.output import write_data

    load = np.asarray(instance.array, np.float64)
    if instance.kind == "affinity":
        raise PlannerError("holds choices of tokens, not loads", where="--peak-tokens", hint="leave it out")
    load = load.sum(axis=2) if instance.kind == "realtime" else load
    mean = load.sum(axis=-1) / float(instance.ranks.speed_R.sum()) * float(instance.ranks.speed_R.max())
    least, most = (float((ratio * mean).max()) for ratio in (placement.bound, placement.imbalance))
    if most <= peak_tokens:
        return True
    proved = "no layout is below" if least > peak_tokens else "none was found below; the bound is"
    write_data(
        f"infeasible: a rank gets {most:.0f} tokens of one layer, it has room for {peak_tokens}; {proved} {least:.0f}\n"
        "  nearest: more slots a rank, more ranks, or smaller steps"
    )
    return False


def size_table(rows: list[Any], verdict: dict[str, Any] | None) -> str:
    from planner.cli.render import table
    from planner.units import format_si

    def cells(row: Any) -> list[str]:  # noqa: ANN401 - planner.experts.sizing.Size, imported late
        return [
            str(row.slots_per_rank),
            str(row.redundant_slots),
            f"{row.imbalance_mean:.4f}",
            f"{row.imbalance_worst:.4f}",
            f"{row.bound_mean:.4f}",
            "-" if row.next_mean is None else f"{row.next_mean:.4f}",
            "-" if row.next_worst is None else f"{row.next_worst:.4f}",
            "-" if row.memory_bytes is None else format_si(row.memory_bytes, "B"),
            "-" if row.step_s is None else f"{1e3 * row.step_s:.2f} ms",
        ]

    header = ("slots", "redundant", "mean", "worst", "bound", "next mean", "next worst", "memory", "step")
    text = table(header, [cells(row) for row in rows])
    if verdict is None:
        return text
    word = "pays" if verdict["pays"] else "does not pay: do not rebalance"
    return (
        f"{text}\nrebalancing once in {verdict['steps']} steps, {verdict['slots_per_rank']} slots a rank: saves "
        f"{verdict['gain_s']:.3g} s, takes {verdict['cost_s']:.3g} s; it {word}"
    )


def replayed(row: Any) -> dict[str, Any]:  # noqa: ANN401 - planner.experts.replay.Replayed, imported late
    return {
        "policy": row.policy,
        "imbalance_mean": float(row.imbalance_WL.mean()),
        "imbalance_worst": float(row.imbalance_WL.max()),
        "imbalance_by_window": row.imbalance_WL.mean(axis=1).tolist(),
        "moved_experts": int(row.moved_experts_W.sum()),
        "step_s": row.mean_step_s,
    }


def replay_table(found: list[Any], expert_bytes: float) -> str:
    from planner.cli.render import table
    from planner.units import format_si

    rows = [
        [
            row.policy,
            f"{row.imbalance_WL.mean():.4f}",
            f"{row.imbalance_WL.max():.4f}",
            str(int(row.moved_experts_W.sum())),
            format_si(float(row.moved_experts_W.sum()) * expert_bytes, "B") if expert_bytes else "-",
            "-" if row.mean_step_s is None else f"{1e3 * row.mean_step_s:.2f} ms",
        ]
        for row in found
    ]
    return table(("policy", "mean", "worst", "copies moved", "bytes moved", "step"), rows)


def verdict_of(
    load_WLE: Any,  # noqa: ANN401 - an array of numpy, imported late
    ranks: int,
    ranks_per_node: int | None,
    rows: list[Any],
    costs: "MoeCosts",
    steps: int,
) -> dict[str, Any]:
    """Whether to rebalance once a window, from what engines start with, at the fewest slots that allow copies."""
    from planner.experts.layout import plan_layout
    from planner.experts.ranks import make_ranks
    from planner.experts.replay import replay
    from planner.experts.sizing import worth_moving

    slots = rows[min(1, len(rows) - 1)].slots_per_rank
    on = make_ranks(ranks, slots, ranks_per_node=ranks_per_node or 8)
    if len(load_WLE) > 1:
        static, periodic = (replay(load_WLE, on, policy) for policy in ("static", "periodic"))
        moved = float(periodic.moved_experts_W.mean()) * costs.expert_bytes
        before, after = static.imbalance_WL.mean(axis=0), periodic.imbalance_WL.mean(axis=0)
    else:
        from planner.experts.ranks import linear_layout
        from planner.experts.replay import served_imbalance

        layout = plan_layout(load_WLE[0], on)
        start = linear_layout(on, load_WLE.shape[2])
        before = served_imbalance(on, start[None].repeat(load_WLE.shape[1], axis=0), load_WLE[0])
        moved, after = float(layout.expert_LP.size) * costs.expert_bytes, layout.imbalance_L
    verdict = worth_moving(costs, before, after, moved, steps)
    return {
        "slots_per_rank": slots,
        "steps": steps,
        "gain_s": verdict.gain_s,
        "cost_s": verdict.cost_s,
        "moved_bytes": moved,
        "pays": verdict.pays,
    }


def tradeoff_table(rows: list[dict[str, Any]]) -> str:
    """What each number of copies moved buys."""
    from planner.cli.render import table
    from planner.units import format_si

    cells = [
        [
            str(row["moved_experts"]),
            "-" if row["moved_bytes"] is None else format_si(row["moved_bytes"], "B"),
            f"{row['imbalance_mean']:.4f}",
            f"{row['imbalance_worst']:.4f}",
            "-" if row["step_s"] is None else f"{1e3 * row['step_s']:.2f} ms",
            "-" if row["move_s"] is None else f"{1e3 * row['move_s']:.0f} ms",
        ]
        for row in rows
    ]
    return table(("copies moved", "bytes", "mean", "worst", "step", "moving"), cells)
