"""`planner experts`: expert placement with redundant experts (EPLB), how many slots pay, and policies replayed."""

from dataclasses import asdict
from typing import Annotated

import typer

from planner.cli.options import INPUT, OUTPUT, SOLVER, Json, Output
from planner.cli.output import say, write_data, write_json
from planner.progress import MAX_SEED

HELP = "Expert layouts: solve instances and recorded loads, size redundancy, replay traces."

LoadsPath = Annotated[
    str, typer.Argument(metavar="LOADS", help="A problem, an instance (.npz), or loads of SGLang, vLLM or Megatron.")
]
Array = Annotated[
    str | None, typer.Option("--array", metavar="NAME", help="Of several in an .npz.", rich_help_panel=INPUT)
]
RanksOption = Annotated[
    int | None,
    typer.Option("--ranks", min=1, help="That share the experts; an instance says so.", rich_help_panel=INPUT),
]
Slots = Annotated[
    str | None,
    typer.Option(
        "--slots-per-rank", metavar="N", help="Experts that fit on one; 9, or 9,9,8 by rank.", rich_help_panel=INPUT
    ),
]
Speeds = Annotated[
    str | None,
    typer.Option("--rank-speeds", metavar="LIST", help="Relative, such as 1,1,0.5.", rich_help_panel=INPUT),
]
PerNode = Annotated[int | None, typer.Option("--ranks-per-node", min=1, help="8 unless given.", rich_help_panel=INPUT)]
Groups = Annotated[
    int, typer.Option("--groups", min=1, help="Routing groups of the model; 8 for DeepSeek-V3.", rich_help_panel=INPUT)
]
Model = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Adds step times of this model.", rich_help_panel=INPUT)
]
Gpu = Annotated[
    str | None, typer.Option("--gpu", metavar="NAME", help="On this hardware, with --model.", rich_help_panel=INPUT)
]
Tokens = Annotated[
    int, typer.Option("--tokens-per-rank", min=1, help="Of one step, with --model.", rich_help_panel=INPUT)
]
Bytes = Annotated[
    str | None,
    typer.Option("--most-moved", metavar="SIZE", help="Before each window, such as 50GB.", rich_help_panel=SOLVER),
]


FormOption = Annotated[
    str,
    typer.Option(
        "--form", metavar="NAME", help="npz, sglang, vllm, vllm-ascend or tensorrt-llm.", rich_help_panel=OUTPUT
    ),
]
LayersOf = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="Whose layers these are; for engines.", rich_help_panel=INPUT),
]
ResidentFile = Annotated[
    str | None,
    typer.Option("--resident", metavar="FILE", help="The layout that runs now (.npz).", rich_help_panel=INPUT),
]
SharesOption = Annotated[
    str,
    typer.Option("--shares", metavar="HOW", help="Copies share tokens `equal` or `free`.", rich_help_panel=SOLVER),
]
Ahead = Annotated[bool, typer.Option("--ahead", help="For the window after each, hedged.", rich_help_panel=SOLVER)]
Tolerance = Annotated[
    str | None,
    typer.Option("--tolerance", metavar="PERCENT", help="Stop this near the bound.", rich_help_panel=SOLVER),
]
NodesPerGroup = Annotated[
    int | None,
    typer.Option("--nodes-per-group", min=1, help="Nodes that hold a routing group.", rich_help_panel=SOLVER),
]
ImbalancePrice = Annotated[
    float | None,
    typer.Option(
        "--imbalance-price",
        min=0.0,
        metavar="NODES",
        help="Nodes a token that 1 % is worth, for choices of tokens.",
        rich_help_panel=SOLVER,
    ),
]
PeakTokens = Annotated[
    int | None,
    typer.Option("--peak-tokens", min=1, help="Most that a rank may get in one layer.", rich_help_panel=SOLVER),
]
SearchSeed = Annotated[int, typer.Option("--seed", min=0, max=MAX_SEED, rich_help_panel=SOLVER, help="Of the search.")]


def solve(
    loads: LoadsPath,
    output: Output = None,
    form: FormOption = "npz",
    array: Array = None,
    ranks: RanksOption = None,
    slots_per_rank: Slots = None,
    rank_speeds: Speeds = None,
    ranks_per_node: PerNode = None,
    groups: Groups = 1,
    model: LayersOf = None,
    resident: ResidentFile = None,
    shares: SharesOption = "equal",
    ahead: Ahead = False,
    tolerance: Tolerance = None,
    most_moved: Bytes = None,
    nodes_per_group: NodesPerGroup = None,
    imbalance_price: ImbalancePrice = None,
    peak_tokens: PeakTokens = None,
    seed: SearchSeed = 0,
    as_json: Json = False,
) -> int:
    """Lay out experts for recorded loads, each layer with its proven bound.

    Instances say all that is needed; other loads need --ranks and --slots-per-rank. Windows are laid out one after
    the other with few moves, micro-batches around fixed homes, token choices so that a token visits few nodes.

    Examples:

      planner experts solve instance.npz --output placement.npz

      planner experts solve recorded.pt --ranks 32 --slots-per-rank 9 --model deepseek-v3 --form sglang -o launch
    """
    from planner.api import solve as solve_problem
    from planner.cli.experts.experts_input import instance_of, problem_of, wishes_of
    from planner.cli.experts.experts_report import below_peak, document_of, launch_files, summary_of, write_files
    from planner.experts.ranks import require_slots
    from planner.interchange.experts_placement import placement_of_plan, write_placement

    instance = instance_of(loads, array, ranks, slots_per_rank, rank_speeds, ranks_per_node, groups, model)
    require_slots(instance.ranks.slots_R, instance.num_experts)
    wishes = wishes_of(shares, ahead, tolerance, most_moved, nodes_per_group, imbalance_price)
    envelope = solve_problem(problem_of(loads, instance, array, model, resident, seed, **wishes))
    placement = placement_of_plan(envelope, instance)
    if peak_tokens is not None and not below_peak(instance, placement, peak_tokens):
        return 1
    if output is not None and form == "npz":
        write_placement(placement, output)
        say(f"wrote {output}")
    elif form != "npz":
        write_files(launch_files(placement, instance, form, model), output)
    if as_json and output != "-" and (form == "npz" or output is not None):
        write_json(document_of(instance, placement))
    elif output != "-" and (form == "npz" or output is not None):
        write_data(summary_of(instance, placement))
    return 0


def size(
    loads: LoadsPath,
    ranks: RanksOption = None,
    ranks_per_node: PerNode = None,
    most_extra: Annotated[
        int, typer.Option("--most-extra", min=0, max=64, help="Redundant slots a rank to try.", rich_help_panel=SOLVER)
    ] = 4,
    array: Array = None,
    model: Model = None,
    gpu: Gpu = None,
    tokens_per_rank: Tokens = 4096,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Between two rebalances, with --model.", rich_help_panel=INPUT)
    ] = 3000,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Show how balanced each number of slots can be, what it takes, and whether rebalancing pays.

    With several windows, also how balanced a layout is on the window after the one it was planned on.

    Examples:

      planner experts size problem.yaml

      planner experts size recorded.npz --array prefill --ranks 32

      planner experts size windows.npz --ranks 32 --model deepseek-ai/DeepSeek-V3 --gpu h200 --json
    """

    from planner.cli.experts.experts_input import costs_of, loads_of, per_node_of
    from planner.cli.experts.experts_report import size_table, verdict_of
    from planner.experts.sizing import size as sizes

    load, chosen = loads_of(loads, array, ranks, model)
    costs = costs_of(loads, model, gpu, chosen, ranks_per_node, tokens_per_rank)
    rows = list(
        sizes(load, chosen, ranks_per_node=per_node_of(loads, ranks_per_node), most_extra=most_extra, costs=costs)
    )
    verdict = None if costs is None else verdict_of(load, chosen, ranks_per_node, rows, costs, steps)
    if as_json:
        document: dict[str, object] = {"schema": "planner.experts_size/1", "sizes": [asdict(row) for row in rows]}
        if verdict is not None:
            document["rebalance"] = verdict
        write_json(document, output)
    else:
        write_data(size_table(rows, verdict), output)
    return 0


def replay(
    loads: LoadsPath,
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME", help="Repeatable; all that fit unless given.", rich_help_panel=SOLVER),
    ] = None,
    array: Array = None,
    ranks: RanksOption = None,
    slots_per_rank: Slots = None,
    rank_speeds: Speeds = None,
    ranks_per_node: PerNode = None,
    groups: Groups = 1,
    model: Model = None,
    gpu: Gpu = None,
    tokens_per_rank: Tokens = 4096,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Served in a window, with --model.", rich_help_panel=INPUT)
    ] = 1,
    plot: Annotated[
        str | None,
        typer.Option(
            "--plot", metavar="FILE", help="Imbalance, traffic and step time, as SVG.", rich_help_panel=OUTPUT
        ),
    ] = None,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Replay windows or micro-batches of loads under policies, from never moving to knowing what comes.

    Examples:

      planner experts replay windows.npz --plot imbalance.svg

      planner experts replay trace/ --ranks 32 --slots-per-rank 10 --model deepseek-ai/DeepSeek-V3 --gpu h200 --json
    """
    from planner.cli.experts.experts_input import costs_of, instance_of, loads_of
    from planner.cli.experts.experts_report import replay_table, replayed
    from planner.experts.chart import draw
    from planner.experts.replay import POLICIES
    from planner.experts.replay import replay as replay_policy

    instance = instance_of(loads, array, ranks, slots_per_rank, rank_speeds, ranks_per_node, groups, model)
    load, _ = loads_of(loads, array, instance.ranks.num_ranks, model)
    costs = costs_of(loads, model, gpu, instance.ranks.num_ranks, ranks_per_node, tokens_per_rank)
    homes, uneven = divmod(instance.num_experts, instance.ranks.num_ranks)
    fits = not uneven and int(instance.ranks.slots_R.min()) >= homes
    able = {"realtime": fits, "worthwhile": costs is not None, "hindsight": costs is not None}
    chosen = policies or [policy for policy in POLICIES if able.get(policy, True)]
    replays = [
        replay_policy(
            load, instance.ranks, policy, groups=instance.groups, expert_bytes=instance.expert_bytes, costs=costs,
            steps_per_window=steps,
        )
        for policy in chosen
    ]  # fmt: skip
    if plot is not None:
        write_data(draw(replays, instance.expert_bytes or (costs.expert_bytes if costs else 0.0)), plot)
    if as_json:
        rows = [replayed(row, costs) for row in replays]
        write_json({"schema": "planner.experts_replay/1", "policies": rows}, output)
    else:
        each = instance.expert_bytes or (costs.expert_bytes if costs else 0.0)
        write_data(replay_table(replays, each, costs), output)
    return 0


def tradeoff(
    loads: LoadsPath,
    resident: ResidentFile = None,
    most_extra: Annotated[
        int, typer.Option("--most-extra", min=0, max=16, help="More slots a rank to try.", rich_help_panel=SOLVER)
    ] = 0,
    array: Array = None,
    ranks: RanksOption = None,
    slots_per_rank: Slots = None,
    rank_speeds: Speeds = None,
    ranks_per_node: PerNode = None,
    model: Model = None,
    gpu: Gpu = None,
    tokens_per_rank: Tokens = 4096,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Until the next change, with --gpu.", rich_help_panel=INPUT)
    ] = 3000,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Show the layouts of which none is worse than another in balance, traffic, moves and redundancy together.

    Of several windows, the last is laid out; the resident layout is that of experts in order unless given. Of choices
    of tokens: nodes that a token visits against balance.

    Examples:

      planner experts tradeoff recorded.npz --ranks 32 --slots-per-rank 9 --resident placement.npz

      planner experts tradeoff windows.npz --model deepseek-ai/DeepSeek-V3 --gpu h200 --steps 3000 --json
    """
    import numpy as np

    from planner.cli.experts.experts_input import costs_of, instance_of, loads_of
    from planner.cli.experts.experts_report import token_rows, token_table, tradeoff_rows, tradeoff_table
    from planner.experts.ranks import linear_layout
    from planner.experts.readers import read_resident
    from planner.experts.tradeoff import token_tradeoffs, tradeoffs

    instance = instance_of(loads, array, ranks, slots_per_rank, rank_speeds, ranks_per_node, 1, model)
    if instance.kind == "affinity":
        by_price = token_tradeoffs(instance.array, instance.ranks, instance.num_experts)
        rows, show = token_rows(by_price), token_table
    else:
        load, _ = loads_of(loads, array, instance.ranks.num_ranks, model)
        costs = costs_of(loads, model, gpu, instance.ranks.num_ranks, ranks_per_node, tokens_per_rank)
        start = np.tile(linear_layout(instance.ranks, instance.num_experts), (load.shape[1], 1))
        choices = tradeoffs(
            load[-1], instance.ranks, start if resident is None else read_resident(resident),
            more_slots=range(most_extra + 1), costs=costs, expert_bytes=instance.expert_bytes, steps=steps,
        )  # fmt: skip
        rows, show = tradeoff_rows(choices, costs, instance.expert_bytes), tradeoff_table
    if as_json:
        write_json({"schema": "planner.experts_tradeoff/1", "choices": rows}, output)
        return 0
    write_data(show(rows), output)
    return 0


COMMANDS = {"solve": solve, "size": size, "replay": replay, "tradeoff": tradeoff}
