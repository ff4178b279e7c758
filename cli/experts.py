"""`planner experts`: where the copies of experts live, how many slots they need, what each policy would have done."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import INPUT, OUTPUT, SOLVER, Json, Output
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.experts.instance import Instance, Placement
    from planner.experts.readers import Loads
    from planner.experts.step_time import MoeCosts

HELP = "Expert layouts: solve instances and recorded loads, size redundancy, replay traces."

LoadsPath = Annotated[
    str, typer.Argument(metavar="LOADS", help="An instance (.npz), or recorded loads of SGLang, vLLM or Megatron.")
]
Array = Annotated[
    str | None, typer.Option("--array", metavar="NAME", help="Of several in an .npz.", rich_help_panel=INPUT)
]
RanksOption = Annotated[
    int | None,
    typer.Option("--ranks", min=1, help="That share the experts; an instance says so.", rich_help_panel=INPUT),
]
Slots = Annotated[
    int | None, typer.Option("--slots-per-rank", min=1, help="Experts that fit on one.", rich_help_panel=INPUT)
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


def solve(
    loads: LoadsPath,
    output: Output = None,
    form: Annotated[
        str,
        typer.Option(
            "--form", metavar="NAME", help="npz, sglang, vllm, vllm-ascend or tensorrt-llm.", rich_help_panel=OUTPUT
        ),
    ] = "npz",
    array: Array = None,
    ranks: RanksOption = None,
    slots_per_rank: Slots = None,
    ranks_per_node: PerNode = None,
    groups: Groups = 1,
    dense_layers: Annotated[
        int, typer.Option("--dense-layers", min=0, help="In front of an instance's layers.", rich_help_panel=INPUT)
    ] = 0,
    resident: Annotated[
        str | None,
        typer.Option("--resident", metavar="FILE", help="The layout that runs now (.npz).", rich_help_panel=INPUT),
    ] = None,
    shares: Annotated[
        str,
        typer.Option("--shares", metavar="HOW", help="Copies share tokens `equal` or `free`.", rich_help_panel=SOLVER),
    ] = "equal",
    ahead: Annotated[
        bool, typer.Option("--ahead", help="For the window after each, hedged.", rich_help_panel=SOLVER)
    ] = False,
    tolerance: Annotated[
        str | None,
        typer.Option("--tolerance", metavar="PERCENT", help="Stop this near the bound.", rich_help_panel=SOLVER),
    ] = None,
    most_moved: Bytes = None,
    nodes_per_group: Annotated[
        int | None,
        typer.Option("--nodes-per-group", min=1, help="Nodes that hold a routing group.", rich_help_panel=SOLVER),
    ] = None,
    peak_tokens: Annotated[
        int | None,
        typer.Option("--peak-tokens", min=1, help="Most that a rank may get in one layer.", rich_help_panel=SOLVER),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, rich_help_panel=SOLVER, help="Of the search.")] = 0,
    as_json: Json = False,
) -> int:
    """Lay out experts for recorded loads, each layer with its proven bound.

    Instances say all that is needed; other loads need --ranks and --slots-per-rank. Windows are laid out one after
    the other with few moves, micro-batches around fixed homes, token choices so that a token visits few nodes.

    Examples:

      planner experts solve instance.npz --output placement.npz

      planner experts solve recorded.pt --ranks 32 --slots-per-rank 9 --form sglang -o location.json
    """
    from planner.cli.output import say, write_data, write_json
    from planner.experts.instance import solve_instance, write_placement

    instance, layer_ids = _instance(loads, array, ranks, slots_per_rank, ranks_per_node, groups)
    layer_ids = tuple(layer + dense_layers for layer in layer_ids)
    placement = solve_instance(instance, _wishes(shares, ahead, tolerance, most_moved, nodes_per_group, resident, seed))
    if peak_tokens is not None and not _below_peak(instance, placement, peak_tokens):
        return 1
    if output is not None and form == "npz":
        write_placement(placement, output)
        say(f"wrote {output}")
    elif form != "npz":
        write_data(_launchable(placement, instance, layer_ids, form), output)
    if as_json and output != "-" and (form == "npz" or output is not None):
        write_json(_document(instance, placement))
    elif output != "-" and (form == "npz" or output is not None):
        write_data(_summary(instance, placement))
    return 0


def _instance(
    path: str, array: str | None, ranks: int | None, slots: int | None, ranks_per_node: int | None, groups: int
) -> "tuple[Instance, tuple[int, ...]]":
    """The instance in a file, or one made of loads and flags; and the numbers of its layers."""
    from planner.experts.instance import Instance, has_meta, read_instance
    from planner.experts.ranks import make_ranks

    if has_meta(path):
        given = {"--array": array, "--ranks": ranks, "--slots-per-rank": slots, "--ranks-per-node": ranks_per_node}
        extra = [flag for flag, value in given.items() if value is not None]
        if extra:
            raise PlannerError("an instance says so itself", where=extra[0], hint=f"leave {extra[0]} out")
        instance = read_instance(path)
        return instance, tuple(range(instance.array.shape[1 if instance.kind != "static" else 0]))
    found = _read(path, array)
    for flag, value in (("--ranks", ranks), ("--slots-per-rank", slots)):
        if value is None:
            raise PlannerError("is needed: the loads do not say", where=flag, hint=f"write for example `{flag} 8`")
    assert ranks is not None
    assert slots is not None
    windows = len(found.load_WLE)
    return (
        Instance(
            name=path,
            kind="drift" if windows > 1 else "static",
            array=found.load_WLE if windows > 1 else found.load_WLE[0],
            ranks=make_ranks(ranks, slots, ranks_per_node=min(ranks_per_node or 8, ranks)),
            num_experts=found.load_WLE.shape[2],
            groups=groups,
            expert_bytes=0.0,
        ),
        found.layer_ids,
    )


def _read(path: str, array: str | None) -> "Loads":
    from planner.experts.readers import read_loads

    return read_loads(path, array=array)


def _wishes(
    shares: str,
    ahead: bool,
    tolerance: str | None,
    most_moved: str | None,
    nodes_per_group: int | None,
    resident: str | None,
    seed: int,
) -> Any:  # noqa: ANN401 - planner.experts.instance.Wishes, imported late
    from planner.cli.options import fraction
    from planner.experts.instance import Wishes, read_resident
    from planner.units import BYTES, parse_quantity

    if shares not in ("equal", "free"):
        raise PlannerError(f"must be `equal` or `free`, found `{shares}`", where="--shares", hint="use `equal`")
    if ahead and (shares == "free" or most_moved is not None):
        what = "layouts made ahead have equal shares, and moves as --tolerance allows"
        raise PlannerError(what, where="--ahead", hint="leave out --shares and --most-moved")
    return Wishes(
        shares="free" if shares == "free" else "equal",
        ahead=ahead,
        tolerance=None if tolerance is None else fraction(tolerance, "--tolerance"),
        most_moved_bytes=None if most_moved is None else parse_quantity(most_moved, BYTES, where="--most-moved"),
        nodes_per_group=nodes_per_group,
        resident_LP=None if resident is None else read_resident(resident),
        seed=seed,
    )


def _below_peak(instance: "Instance", placement: "Placement", peak_tokens: int) -> bool:
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


def _launchable(placement: "Placement", instance: "Instance", layer_ids: tuple[int, ...], form: str) -> str:
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
    free = placement.quota_P is not None
    launchers.require_launchable(rows, instance.ranks.num_ranks, instance.num_experts, free_shares=free)
    return forms[form]()


def _document(instance: "Instance", placement: "Placement") -> dict[str, Any]:
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


def _summary(instance: "Instance", placement: "Placement") -> str:
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

      planner experts size recorded.npz --array prefill --ranks 32

      planner experts size windows.npz --ranks 32 --model deepseek-ai/DeepSeek-V3 --gpu h200 --json
    """
    from dataclasses import asdict

    from planner.cli.output import write_data, write_json
    from planner.experts.sizing import size as sizes

    found, chosen = _loads_of(loads, array, ranks)
    costs = _costs(model, gpu, chosen, ranks_per_node, tokens_per_rank)
    rows = list(sizes(found, chosen, ranks_per_node=ranks_per_node or 8, most_extra=most_extra, costs=costs))
    verdict = None if costs is None else _verdict(found, chosen, ranks_per_node, rows, costs, steps)
    if as_json:
        document: dict[str, Any] = {"schema": "planner.experts-size/1", "sizes": [asdict(row) for row in rows]}
        if verdict is not None:
            document["rebalance"] = verdict
        write_json(document, output)
    else:
        write_data(_size_table(rows, verdict), output)
    return 0


def _loads_of(path: str, array: str | None, ranks: int | None) -> tuple[Any, int]:
    """[W, L, E] loads and the number of ranks, from an instance or from recorded loads."""
    import numpy as np

    from planner.experts.instance import has_meta, read_instance

    if has_meta(path):
        instance = read_instance(path)
        if instance.kind == "affinity":
            raise PlannerError("holds choices of tokens, not loads", where=path, hint="name loads by window")
        load = np.asarray(instance.array, np.float64)
        load = load.sum(axis=2) if instance.kind == "realtime" else load
        return (load if load.ndim == 3 else load[None]), ranks or instance.ranks.num_ranks
    if ranks is None:
        raise PlannerError("is needed: the loads do not say", where="--ranks", hint="write for example `--ranks 32`")
    return _read(path, array).load_WLE, ranks


def _costs(
    model: str | None, gpu: str | None, ranks: int, ranks_per_node: int | None, tokens_per_rank: int
) -> "MoeCosts | None":
    """The cost model of `--model` on `--gpu`; None without both."""
    from planner.experts.step_time import MoeCosts
    from planner.hardware.cluster import Pool
    from planner.hardware.library import find_node
    from planner.models.library import find_model

    if model is None and gpu is None:
        return None
    if model is None or gpu is None:
        missing = "--model" if model is None else "--gpu"
        raise PlannerError("is needed for step times", where=missing, hint="give both --model and --gpu")
    node = find_node(gpu).of_size(ranks_per_node or 8)
    pool = Pool(name=gpu, node=node, num_nodes=-(-ranks // node.num_gpus))
    return MoeCosts(find_model(model), pool, ranks, float(tokens_per_rank))


def _verdict(
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


def _size_table(rows: list[Any], verdict: dict[str, Any] | None) -> str:
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


def replay(
    loads: LoadsPath,
    policies: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME", help="Repeatable; all that fit unless given.", rich_help_panel=SOLVER),
    ] = None,
    array: Array = None,
    ranks: RanksOption = None,
    slots_per_rank: Slots = None,
    ranks_per_node: PerNode = None,
    groups: Groups = 1,
    model: Model = None,
    gpu: Gpu = None,
    tokens_per_rank: Tokens = 4096,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Served in a window, with --model.", rich_help_panel=INPUT)
    ] = 1,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="FILE", help="Imbalance by window, as SVG.", rich_help_panel=OUTPUT)
    ] = None,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Replay windows or micro-batches of loads under policies, from never moving to knowing what comes.

    Examples:

      planner experts replay windows.npz --plot imbalance.svg

      planner experts replay trace/ --ranks 32 --slots-per-rank 10 --model deepseek-ai/DeepSeek-V3 --gpu h200 --json
    """
    from planner.cli.output import write_data, write_json
    from planner.experts.chart import draw
    from planner.experts.replay import POLICIES
    from planner.experts.replay import replay as replay_policy

    instance, _ = _instance(loads, array, ranks, slots_per_rank, ranks_per_node, groups)
    load, _ = _loads_of(loads, array, instance.ranks.num_ranks)
    costs = _costs(model, gpu, instance.ranks.num_ranks, ranks_per_node, tokens_per_rank)
    homes, uneven = divmod(instance.num_experts, instance.ranks.num_ranks)
    fits = not uneven and int(instance.ranks.slots_R.min()) >= homes
    chosen = policies or [policy for policy in POLICIES if fits or policy != "realtime"]
    found = [
        replay_policy(
            load, instance.ranks, policy, groups=instance.groups, expert_bytes=instance.expert_bytes, costs=costs,
            steps_per_window=steps,
        )
        for policy in chosen
    ]  # fmt: skip
    if plot is not None:
        write_data(draw(found), plot)
    if as_json:
        write_json({"schema": "planner.experts-replay/1", "policies": [_replayed(row) for row in found]}, output)
    else:
        write_data(_replay_table(found, instance.expert_bytes or (costs.expert_bytes if costs else 0.0)), output)
    return 0


def _replayed(row: Any) -> dict[str, Any]:  # noqa: ANN401 - planner.experts.replay.Replayed, imported late
    return {
        "policy": row.policy,
        "imbalance_mean": float(row.imbalance_WL.mean()),
        "imbalance_worst": float(row.imbalance_WL.max()),
        "imbalance_by_window": row.imbalance_WL.mean(axis=1).tolist(),
        "moved_experts": int(row.moved_experts_W.sum()),
        "step_s": row.mean_step_s,
    }


def _replay_table(found: list[Any], expert_bytes: float) -> str:
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


COMMANDS = {"solve": solve, "size": size, "replay": replay}
