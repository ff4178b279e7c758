"""The shard of every rank of a role, read off a plan: coordinates, layers, and process groups.

Ranks count as `planner.plan.placement` counts them: the first axis of a block is the outermost.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from planner.costs.operators.recompute import BY_OPERATOR
from planner.errors import PlannerError
from planner.execute.shards.expert_layout import ExpertLayout, read_layouts
from planner.execute.shards.supported import require_supported
from planner.models.architecture import Architecture, Layer, MoeFfn
from planner.plan.records import Block, Parallelism, PlanDocument, Role

AXES = ("pp", "dp", "cp", "tp")
_V_SHAPED = ("zb_v", "dualpipev")


@dataclass(frozen=True, slots=True)
class StageRecompute:
    """What a stage computes again in the backward pass: its first layers whole, or modules of every layer."""

    num_layers: int = 0
    modules: tuple[str, ...] = ()  # named in `planner.costs.operators.recompute`


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One chunk of the model: consecutive layers, and the ends that it holds."""

    index: int  # in the order in which a micro-batch passes
    first_layer: int
    num_layers: int
    embeds: bool
    yields_logits: bool
    recompute: StageRecompute = StageRecompute()

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.first_layer + self.num_layers)


@dataclass(frozen=True, slots=True)
class RankSpec:
    """One rank of one replica of a role."""

    role: str
    function: str
    parallelism: Parallelism
    rank: int  # within its replica
    coords: Mapping[str, int]  # pp, dp, cp, tp
    stages: tuple[StageSpec, ...]  # vpp of them
    zero_stage: int = 0

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers of the model in its stages."""
        return tuple(layer for stage in self.stages for layer in stage.layers)

    @property
    def embeds(self) -> bool:
        return any(stage.embeds for stage in self.stages)

    @property
    def yields_logits(self) -> bool:
        return any(stage.yields_logits for stage in self.stages)

    @property
    def stage_rank(self) -> int:
        """Place among the ranks of its pipeline stage: dp outermost, tp innermost."""
        shape, coords = self.parallelism, self.coords
        return (coords["dp"] * shape.cp + coords["cp"]) * shape.tp + coords["tp"]

    @property
    def expert_slice(self) -> int:
        """Which of the moe_tp slices of its experts the rank holds; these are neighbours."""
        return self.stage_rank % self.parallelism.moe_tp

    @property
    def expert_part(self) -> int:
        """Which of the ep parts of the experts the rank holds."""
        return self.stage_rank // self.parallelism.moe_tp % self.parallelism.ep


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """A role of a plan with its model; `order`: axes of a replica from the outermost in, names may repeat.

    layouts: of the experts, by layer of `arch`; empty where expert e of E is on rank e x ep / E.
    """

    name: str
    function: str
    arch: Architecture
    parallelism: Parallelism
    order: tuple[tuple[str, int], ...]
    stages: tuple[StageSpec, ...]  # pp x vpp of them
    stages_of_pipeline_rank: tuple[tuple[int, ...], ...]
    layouts: tuple[ExpertLayout, ...] = ()
    schedule: str = "1f1b"
    zero_stage: int = 0

    @property
    def num_ranks(self) -> int:
        return prod(size for _, size in self.order)

    def rank(self, rank: int) -> RankSpec:
        """The rank of that number; IndexError beyond the ranks."""
        if not 0 <= rank < self.num_ranks:
            raise IndexError(f"rank {rank} of {self.num_ranks}")
        coords = dict.fromkeys(AXES, 0)
        scale = dict.fromkeys(AXES, 1)
        rest = rank
        for name, size in reversed(self.order):
            rest, index = divmod(rest, size)
            coords[name] += index * scale[name]
            scale[name] *= size
        stages = tuple(self.stages[index] for index in self.stages_of_pipeline_rank[coords["pp"]])
        return RankSpec(self.name, self.function, self.parallelism, rank, coords, stages, self.zero_stage)

    def ranks(self) -> Iterator[RankSpec]:
        return (self.rank(rank) for rank in range(self.num_ranks))

    def layouts_of(self, rank: RankSpec) -> list[ExpertLayout]:
        """The layouts of the experts in the rank's layers; empty without layouts."""
        return [self.layouts[layer] for layer in rank.layers] if self.layouts else []

    def work_of(self, stage: StageSpec) -> object:
        """What the stage computes; equal for stages with the same kinds of layers, ends and recomputation."""
        layers = tuple(self.arch.layers[layer] for layer in stage.layers)
        return layers, stage.embeds, stage.yields_logits, stage.recompute


def role_spec(plan: PlanDocument, role_name: str, *, arch: Architecture | None = None) -> RoleSpec:
    """The role called `role_name`, its model looked up in the plan's inputs unless `arch` is given.

    Raises PlannerError for a role without a model, a model without an executor, a placement that does not hold a
    replica, or layers left out.
    """
    role = plan.role(role_name)
    arch = arch or plan_model(plan, role)
    where = f"{plan.source}: decision.roles.{role.name}"
    order = _order(role, plan.placement, where)
    if role.function in SPECS:
        return SPECS[role.function](plan, role, arch, order, where)
    require_supported(arch, where)
    stages = _stages(plan, role, arch, where)
    schedule, zero_stage = str(plan.extra.get("schedule", "1f1b")), int(plan.extra.get("zero_stage", 0))
    stages_of_rank = _stages_of_pipeline_rank(role.parallelism, schedule, where)
    _require_divisible(arch, role.parallelism, where)
    return RoleSpec(
        role.name, role.function, arch, role.parallelism, order, stages, stages_of_rank, (), schedule, zero_stage
    )


def _layout_role(
    plan: PlanDocument, role: Role, arch: Architecture, order: tuple[tuple[str, int], ...], where: str
) -> RoleSpec:
    """One expert layer under each of the plan's layouts that differ, without attention and the ends of the model."""
    shape = role.parallelism
    ffn = next((layer.ffn for layer in arch.layers if isinstance(layer.ffn, MoeFfn)), None)
    if ffn is None:
        raise PlannerError(f"{arch.name} has no experts", where=where, hint="lay out a mixture-of-experts model")
    if shape.pp * shape.vpp > 1:
        raise PlannerError(
            f"a layout over pp {shape.pp} x vpp {shape.vpp} stages cannot be executed",
            where=where,
            hint="give the expert-parallel ranks of one stage",
        )
    layouts = tuple(dict.fromkeys(read_layouts(plan, shape.ep, ffn.num_experts)))
    alone = replace(arch, layers=(Layer(None, ffn, 1),) * len(layouts), mtp_layers=(), encoders=(), modules=())
    require_supported(alone, where)
    _require_tiled(shape, where)
    stage = StageSpec(0, 0, len(layouts), embeds=False, yields_logits=False)
    return RoleSpec(role.name, role.function, alone, shape, order, (stage,), ((0,),), layouts)


Build = Callable[[PlanDocument, Role, Architecture, tuple[tuple[str, int], ...], str], RoleSpec]

SPECS: Mapping[str, Build] = {"experts": _layout_role}
"""Functions of roles whose ranks hold something other than the stages of a whole model; a new kind adds its own here,
and the steps of its functions to `planner.execute.shards.cases.STEPS`."""


def distinct_ranks(role: RoleSpec) -> list[RankSpec]:
    """One rank of each job that differs; ranks with the same kinds of layers and the same ends do the same.

    Of ranks under layouts of experts those with the largest loads, on which the others wait.
    """
    if role.layouts:
        parts = range(role.parallelism.ep)
        fullest = {max(parts, key=layout.load_of_rank): None for layout in role.layouts}
        return [next(rank for rank in role.ranks() if rank.expert_part == part) for part in fullest]
    rank_of_work: dict[object, RankSpec] = {}
    for pipeline_rank in range(role.parallelism.pp):
        rank = next(spec for spec in role.ranks() if spec.coords["pp"] == pipeline_rank)
        rank_of_work.setdefault(tuple(role.work_of(stage) for stage in rank.stages), rank)
    return list(rank_of_work.values())


def even_stages(num_layers: int, num_stages: int) -> tuple[StageSpec, ...]:
    """Layers over stages as evenly as they go; the first stages take what is left over, as the last yields logits."""
    each, more = divmod(num_layers, num_stages)
    return stages_of([each + (index < more) for index in range(num_stages)])


def stages_of(layers: list[int]) -> tuple[StageSpec, ...]:
    """Stages with that many layers each; the first embeds, the last yields logits."""
    last = len(layers) - 1
    return tuple(
        StageSpec(index, sum(layers[:index]), count, index == 0, index == last) for index, count in enumerate(layers)
    )


def plan_model(plan: PlanDocument, role: Role) -> Architecture:
    """The model of a role, in the precision that the plan's inputs ask for."""
    from planner.models.library import find_model, load_model, model_of_config, with_precision

    models = plan.inputs.get("models", {})
    key = role.model if role.model is not None else next(iter(models), None)
    if key not in models:
        raise PlannerError(
            f"role `{role.name}` has no model in the plan's inputs",
            where=plan.source,
            hint="give a plan written by `planner solve`",
        )
    wanted = models[key]
    if wanted.get("name") is not None:
        arch = find_model(wanted["name"])
    elif wanted.get("contents") is not None:
        arch = model_of_config(str(wanted.get("config")), wanted["contents"])
    else:
        arch = load_model(Path(plan.source).parent / str(wanted.get("config")))
    weights, kv_cache = wanted.get("weights"), wanted.get("kv_cache")
    return with_precision(arch, weights, kv_cache) if weights is not None or kv_cache is not None else arch


def _order(role: Role, placement: tuple[Block, ...], where: str) -> tuple[tuple[str, int], ...]:
    """Axes of one replica; without a placement pp is outermost and tp innermost."""
    sizes = {name: getattr(role.parallelism, name) for name in AXES}
    blocks = [block for block in placement if block.role == role.name]
    if not blocks:
        return tuple(sizes.items())
    order = tuple((axis.name, axis.size) for axis in blocks[0].axes if axis.name != "replica")
    placed = {name: prod(size for axis, size in order if axis == name) for name in AXES}
    strange = sorted({name for name, _ in order} - set(AXES))
    if strange or placed != sizes:
        raise PlannerError(
            f"unknown axis `{strange[0]}`" if strange else f"the placement has {placed}, the parallelism {sizes}",
            where=where,
            hint="lay a replica along pp, dp, cp and tp as its parallelism says",
        )
    return order


def _stages(plan: PlanDocument, role: Role, arch: Architecture, where: str) -> tuple[StageSpec, ...]:
    """Of the role's own ranks, where other roles hold the rest of its pipeline."""
    if plan.extra.get("layer_runs"):
        raise PlannerError(
            "layers with strategies of their own cannot be executed",
            where=where,
            hint="execute the plan that `solve` finds without `search.layerwise`",
        )
    runs = plan.extra.get("stage_runs")
    across = plan.roles if plan.extra.get("pools") == "stages" else (role,)
    pp = sum(member.parallelism.pp for member in across)
    count = pp * role.parallelism.vpp
    if runs is None:
        return even_stages(arch.num_layers, count)
    layers = [int(run["num_layers"]) for run in runs for _ in range(int(run.get("stages", 1)))]
    if len(layers) != count or sum(layers) != arch.num_layers:
        raise PlannerError(
            f"{len(layers)} stages with {sum(layers)} layers; the model has {arch.num_layers}, pp x vpp is {count}",
            where=where,
            hint="lay every layer out once, in pp x vpp stages",
        )
    recompute = [_recompute(run, where) for run in runs for _ in range(int(run.get("stages", 1)))]
    stages = [replace(stage, recompute=each) for stage, each in zip(stages_of(layers), recompute, strict=True)]
    first = sum(member.parallelism.pp for member in across[: across.index(role)])
    whole = replace(role.parallelism, pp=pp)
    stages_of_rank = _stages_of_pipeline_rank(whole, str(plan.extra.get("schedule", "1f1b")), where)
    own_ranks = stages_of_rank[first : first + role.parallelism.pp]
    return tuple(stages[index] for index in sorted(index for indices in own_ranks for index in indices))


def _recompute(run: Mapping[str, Any], where: str) -> StageRecompute:
    told = run.get("recompute") or {}
    if BY_OPERATOR in told.get("modules", ()):
        raise PlannerError(
            "stages compute again by operator, as torchtitan and NeMo AutoModel do, and shards here do not",
            where=where,
            hint="solve with `search: {recompute: [none, full]}`",
        )
    return StageRecompute(int(told.get("num_layers", 0)), tuple(told.get("modules", ())))


def _stages_of_pipeline_rank(shape: Parallelism, schedule: str, where: str) -> tuple[tuple[int, ...], ...]:
    """Stages by pipeline rank: round and round, or there and back for the V-shaped schedules (arXiv:2405.15362)."""
    if schedule == "dualpipe":
        raise PlannerError("`dualpipe` cannot be executed", where=where, hint="plan with `dualpipev` or `zb_v`")
    pp = shape.pp
    if schedule in _V_SHAPED and shape.vpp == 2:
        return tuple((rank, 2 * pp - 1 - rank) for rank in range(pp))
    return tuple(tuple(range(rank, pp * shape.vpp, pp)) for rank in range(pp))


def _require_divisible(arch: Architecture, shape: Parallelism, where: str) -> None:
    _require_tiled(shape, where)
    for layer in arch.layers:
        heads = getattr(layer.mixer, "num_heads", 0)
        kv_heads = getattr(layer.mixer, "num_kv_heads", shape.tp)
        experts = getattr(layer.ffn, "num_experts", 0)
        if heads % shape.tp or (kv_heads % shape.tp and shape.tp % kv_heads) or experts % shape.ep:
            raise PlannerError(
                f"{heads} heads and {kv_heads} KV heads over tp {shape.tp}, {experts} experts over ep {shape.ep}",
                where=where,
                hint="use degrees that divide heads and experts",
            )


def _require_tiled(shape: Parallelism, where: str) -> None:
    ranks, group = shape.tp * shape.cp * shape.dp, shape.moe_tp * shape.ep
    if ranks % group or (group % shape.tp and shape.tp % group):
        raise PlannerError(
            f"moe_tp {shape.moe_tp} x ep {shape.ep} does not tile tp {shape.tp} x cp {shape.cp} x dp {shape.dp}",
            where=where,
            hint="let moe_tp x ep divide the ranks of a stage, and be a multiple or a divisor of tp",
        )
