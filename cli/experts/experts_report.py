"""Output of `planner experts`: summaries, tables, JSON documents and the engines' placement files."""

from pathlib import Path
from typing import Any

import numpy as np

from planner.cli.experts.experts_input import model_of
from planner.cli.output import say, write_data, write_folder
from planner.cli.render.columns import table
from planner.documents.units import format_si
from planner.errors import PlannerError
from planner.experts.forms import files_of, find_form, launch_rows
from planner.experts.instance import ExpertsInstance, ExpertsPlacement
from planner.experts.layout import copies_moved, plan_layout
from planner.experts.model_layers import layers_of
from planner.experts.ranks import linear_layout, make_ranks
from planner.experts.replay import Replayed, replay, served_imbalance
from planner.experts.sizing import worth_moving
from planner.experts.step_time import MoeCosts
from planner.experts.tokens import TokenLayout
from planner.experts.tradeoff import Tradeoff


def launch_files(
    placement: ExpertsPlacement, instance: ExpertsInstance, form: str, model: str | None
) -> dict[str, str]:
    """The files that an engine starts from, the layout first; of several windows, the layout of the last."""
    find_form(form)
    if model is None:
        raise PlannerError(
            f"is needed for --form {form}, which names layers of the model",
            where="--model",
            hint="write for example `--model deepseek-ai/DeepSeek-V3`, or the path of a config.json",
        )
    if instance.kind == "realtime":
        raise PlannerError(
            "layouts made step by step are not started from a file",
            where="--form",
            hint="write --form npz, or plan windows of loads",
        )
    rows = placement.expert_P[-1] if placement.expert_P.ndim == 3 else placement.expert_P
    layers = layers_of(model_of(model))
    return files_of(
        form, launch_rows(rows, instance.ranks.num_ranks, layers, free_shares=placement.quota_P is not None)
    )


def write_files(files: dict[str, str], output: str | None) -> None:
    """All files into a folder; or the first, the layout, to a file or stdout, and the others told on stderr."""
    if output not in (None, "-") and not Path(str(output)).suffix:
        write_folder(files, str(output))
        return
    (_, layout), *others = files.items()
    write_data(layout, output)
    for name, text in others:
        say(f"{name}: {text.strip()}")


def document_of(instance: ExpertsInstance, placement: ExpertsPlacement) -> dict[str, Any]:
    """The layout of an instance as data: imbalance beside its bound, in the mean, at worst, and by layer."""
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


def summary_of(instance: ExpertsInstance, placement: ExpertsPlacement) -> str:
    """The same in lines."""
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
    if "leaving_share" in placement.facts:
        lines.append(f"  leave node {100 * placement.facts['leaving_share']:.1f} % of visits to experts")
    if "nodes_per_token" in placement.facts:
        lines.append(f"  nodes      {placement.facts['nodes_per_token']:.3f} for each token")
        lines.append(f"  to expect  {placement.facts['fresh_imbalance']:.4f} on as many fresh tokens")
    return "\n".join(lines)


def below_peak(instance: ExpertsInstance, placement: ExpertsPlacement, peak_tokens: int) -> bool:
    """Whether no rank gets more tokens than it has room for; says so, and by how much, where one does."""
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
    """Numbers of slots in a table, with the verdict on rebalancing below."""

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


def replayed(row: Replayed, costs: MoeCosts | None) -> dict[str, Any]:
    """A replayed policy as data."""
    return {
        "policy": row.policy,
        "imbalance_mean": float(row.imbalance_WL.mean()),
        "imbalance_worst": float(row.imbalance_WL.max()),
        "imbalance_by_window": row.imbalance_WL.mean(axis=1).tolist(),
        "moved_experts": int(row.moved_experts_W.sum()),
        "moved_experts_by_window": row.moved_experts_W.tolist(),
        "step_s": row.mean_step_s,
        "tokens_per_s": tokens_per_s(row, costs),
    }


def tokens_per_s(row: Replayed, costs: MoeCosts | None) -> float | None:
    """Of all ranks, net of moves and planning."""
    if costs is None or row.mean_step_s is None:
        return None
    return costs.tokens_per_rank * costs.ranks / row.mean_step_s


def replay_table(replays: list[Replayed], expert_bytes: float, costs: MoeCosts | None) -> str:
    """Replayed policies in a table; `expert_bytes` of one expert, 0 where nobody says it."""
    rows = [
        [
            row.policy,
            f"{row.imbalance_WL.mean():.4f}",
            f"{row.imbalance_WL.max():.4f}",
            str(int(row.moved_experts_W.sum())),
            format_si(float(row.moved_experts_W.sum()) * expert_bytes, "B") if expert_bytes else "-",
            "-" if row.mean_step_s is None else f"{1e3 * row.mean_step_s:.2f} ms",
            "-" if costs is None else f"{tokens_per_s(row, costs):.4g}",
        ]
        for row in replays
    ]
    return table(("policy", "mean", "worst", "copies moved", "bytes moved", "step", "tokens/s"), rows)


def verdict_of(
    load_WLE: Any,  # noqa: ANN401 - an array of numpy, imported late
    ranks: int,
    ranks_per_node: int | None,
    rows: list[Any],
    costs: MoeCosts,
    steps: int,
) -> dict[str, Any]:
    """Whether to rebalance once a window, from what engines start with, at the fewest slots that allow copies."""
    slots = rows[min(1, len(rows) - 1)].slots_per_rank
    on = make_ranks(ranks, slots, ranks_per_node=ranks_per_node or 8)
    if len(load_WLE) > 1:
        static, periodic = (replay(load_WLE, on, policy) for policy in ("static", "periodic"))
        moved = float(periodic.moved_experts_W.mean()) * costs.expert_bytes
        before, after = static.imbalance_WL.mean(axis=0), periodic.imbalance_WL.mean(axis=0)
    else:
        layout = plan_layout(load_WLE[0], on)
        start = linear_layout(on, load_WLE.shape[2])
        start_LP = start[None].repeat(load_WLE.shape[1], axis=0)
        before = served_imbalance(on, start_LP, load_WLE[0])
        moved, after = copies_moved(on, start_LP, layout.expert_LP) * costs.expert_bytes, layout.imbalance_L
    verdict = worth_moving(costs, before, after, moved, steps)
    return {
        "slots_per_rank": slots,
        "steps": steps,
        "gain_s": verdict.gain_s,
        "cost_s": verdict.cost_s,
        "moved_bytes": moved,
        "pays": verdict.pays,
    }


def tradeoff_rows(choices: list[Tradeoff], costs: MoeCosts | None, expert_bytes: float) -> list[dict[str, Any]]:
    """Choices as plain data; seconds where costs are known."""
    each = expert_bytes or (costs.expert_bytes if costs is not None else 0.0)
    return [
        {
            "slots_per_rank": choice.slots_per_rank,
            "redundant_slots": choice.redundant_slots,
            "moved_experts": choice.moved_experts,
            "moved_bytes": choice.moved_experts * each if each else None,
            "imbalance_mean": choice.imbalance_mean,
            "imbalance_worst": choice.imbalance_worst,
            "leaving_share": choice.leaving_share,
            "step_s": None if costs is None else costs.step_s(choice.layout.imbalance_L),
            "gain_s": None if choice.verdict is None else choice.verdict.gain_s,
            "move_s": None if choice.verdict is None else choice.verdict.cost_s,
            "pays": None if choice.verdict is None else choice.verdict.pays,
        }
        for choice in choices
    ]


def tradeoff_table(rows: list[dict[str, Any]]) -> str:
    """What each choice costs, and what it buys."""
    cells = [
        [
            f"{row['slots_per_rank']:g}",
            str(row["moved_experts"]),
            "-" if row["moved_bytes"] is None else format_si(row["moved_bytes"], "B"),
            f"{row['imbalance_mean']:.4f}",
            f"{row['imbalance_worst']:.4f}",
            f"{100 * row['leaving_share']:.1f} %",
            "-" if row["step_s"] is None else f"{1e3 * row['step_s']:.2f} ms",
            "-" if row["move_s"] is None else f"{1e3 * row['move_s']:.0f} ms",
            "-" if row["gain_s"] is None else f"{row['gain_s']:.3g} s",
            "-" if row["pays"] is None else "yes" if row["pays"] else "no",
        ]
        for row in rows
    ]
    header = ("slots", "copies moved", "bytes", "mean", "worst", "leave node", "step", "moving", "saved", "pays")
    return table(header, cells)


def token_rows(layouts: list[TokenLayout]) -> list[dict[str, Any]]:
    """Choices between nodes a token and balance, as plain data."""
    return [
        {
            "nodes_per_token": float(row.nodes_per_token_L.mean()),
            "imbalance_mean": float(row.imbalance_L.mean()),
            "fresh_imbalance_mean": float(row.fresh_imbalance_L.mean()),
        }
        for row in layouts
    ]


def token_table(rows: list[dict[str, Any]]) -> str:
    """Choices of tokens in a table."""
    cells = [
        [f"{row['nodes_per_token']:.3f}", f"{row['imbalance_mean']:.4f}", f"{row['fresh_imbalance_mean']:.4f}"]
        for row in rows
    ]
    return table(("nodes a token", "imbalance", "on fresh tokens"), cells)
