"""Small random models of each family, and the plans under which they are executed; no torch here."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from planner.execute.shards.expert_layout import ExpertLayout, read_layouts
from planner.models.architecture import (
    Architecture,
    DenseFfn,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    MoeFfn,
    Precisions,
)
from planner.plan.records import Axis, Block, Digests, Parallelism, PlanDocument, Role, Software

HIDDEN, VOCABULARY = 32, 50  # 50 rows go unevenly over 4 ranks


def _model(name: str, *layers: Layer, tied: bool = False, norm_bias: bool = False) -> Architecture:
    learned = 64 if norm_bias else 0
    return Architecture(
        name, HIDDEN, VOCABULARY, layers, tied, 64, Precisions(), norm_bias=norm_bias, position_embeddings=learned
    )


_GQA = GroupedQueryAttention(num_heads=4, num_kv_heads=2, head_dim=8, v_head_dim=8)
_FULL = GroupedQueryAttention(4, 4, 8, 8, qkv_bias=True, output_bias=True)
_MQA = GroupedQueryAttention(4, 1, 8, 8, qk_norm=True, output_gate=True)
_NORMED = GroupedQueryAttention(4, 2, 8, 8, qk_norm_full=True)
_WINDOW = GroupedQueryAttention(4, 2, 8, 8, window_tokens=3, qk_norm=True, sinks=True)
_CHUNKED = GroupedQueryAttention(4, 2, 8, 8, window_tokens=4, chunked=True)
_LATENT = LatentAttention(4, 16, 12, 8, 4, 6)
_PLAIN_LATENT = LatentAttention(4, 0, 12, 8, 4, 6, output_gate=True)
_DENSE = DenseFfn(48)
_EXPERTS = MoeFfn(8, 2, 16)
_DEEPSEEK = MoeFfn(8, 3, 16, shared_intermediate_size=24, router_bias=True)
_QWEN = MoeFfn(4, 2, 16, shared_intermediate_size=16, shared_gate=True)
_NARROW = MoeFfn(4, 2, 16, gated=False, latent_size=16, latent_norm=True)

MODELS: dict[str, Architecture] = {
    model.name: model
    for model in (
        _model("dense", Layer(_GQA, _DENSE), Layer(_GQA, _DENSE), Layer(_GQA, _DENSE)),
        _model("tied", Layer(_GQA, _DENSE), Layer(_NORMED, _DENSE, num_norms=4), tied=True),
        _model("opt", *[Layer(_FULL, DenseFfn(48, gated=False, bias=True))] * 2, norm_bias=True, tied=True),
        _model("mqa", Layer(_MQA, _DENSE), Layer(_MQA, None, 1), Layer(None, _DENSE, 1), Layer(_NORMED, _DENSE)),
        _model("window", Layer(_WINDOW, _DENSE), Layer(_GQA, _DENSE), Layer(_CHUNKED, _DENSE), Layer(_WINDOW, _DENSE)),
        _model("mla", Layer(_LATENT, _DENSE), Layer(_PLAIN_LATENT, _DENSE), Layer(_LATENT, _DENSE)),
        _model("moe", Layer(_GQA, _EXPERTS), Layer(_GQA, _EXPERTS)),
        _model("deepseek", Layer(_LATENT, _DENSE), Layer(_LATENT, _DEEPSEEK), Layer(_LATENT, _DEEPSEEK)),
        _model("qwen", Layer(_MQA, _QWEN), Layer(_GQA, _NARROW)),
    )
}


@dataclass(frozen=True)
class Case:
    """A model under a plan; `fault` plants an error that the comparison has to find."""

    name: str
    model: str
    degrees: Mapping[str, int]
    axes: tuple[tuple[str, int], ...] = ()  # of the placement, from the outermost in; empty = pp, dp, cp, tp
    layers: tuple[int, ...] = ()  # of each stage; empty = as even as they go
    schedule: str = "1f1b"
    micro_batches: int = 1
    fault: str = ""
    recompute: Mapping[str, object] = field(default_factory=dict)  # of every stage
    options: Mapping[str, int] = field(default_factory=dict)
    slots: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # of the experts, by layer
    quota: tuple[float, ...] | None = None
    slots_per_rank: tuple[int, ...] = (0,)

    @property
    def arch(self) -> Architecture:
        return MODELS[self.model]

    @property
    def parallelism(self) -> Parallelism:
        return Parallelism(**self.degrees)

    def layouts(self, rank: int) -> tuple[ExpertLayout, ...]:
        """The layout of every layer, or a wrong one on rank 1 where the case says so: two slots change places."""
        slots = {layer: list(experts) for layer, experts in self.slots.items()}
        if self.fault == "layout" and rank == 1:
            last = slots[max(slots)]
            last[2], last[-2] = last[-2], last[2]
        laid = [{"expert_of_slot": experts, "quota": self.quota} for experts in slots.values()]
        plan = replace(self.plan(), extra={"layouts": laid, "slots_per_rank": self.slots_per_rank})
        return read_layouts(plan, self.parallelism.ep, 8) if laid else ()

    def plan(self) -> PlanDocument:
        """A plan of one role that lays the model out so."""
        shape = self.parallelism
        axes = self.axes or (("pp", shape.pp), ("dp", shape.dp), ("cp", shape.cp), ("tp", shape.tp))
        placed: list[Axis] = []
        stride = 1
        for name, size in reversed(axes):
            placed.insert(0, Axis(name, size, stride))
            stride *= size
        extra: dict[str, object] = {"schedule": self.schedule}
        stages = shape.pp * shape.vpp
        layers = self.layers or ((self.arch.num_layers // stages,) * stages if self.recompute else ())
        if layers:
            again = {"recompute": dict(self.recompute)} if self.recompute else {}
            extra["stage_runs"] = [{"stages": 1, "num_layers": count, **again} for count in layers]
        role = Role("job", "train", pool="pool", replicas=1, parallelism=shape)
        blocks = (Block("job", "pool", 0, tuple(placed)),)
        return PlanDocument(
            kind="train", name=self.name, software=Software("test"), digests=Digests(""), inputs={}, roles=(role,),
            placement=blocks, certificate={}, extra=extra, source="test",
        )  # fmt: skip


def _case(model: str, fault: str = "", **degrees: int) -> Case:
    name = "-".join([model, *(f"{axis}{size}" for axis, size in degrees.items()), *([fault] if fault else [])])
    return Case(name, model, degrees, fault=fault)


# Eight experts and copies of some; a layer with copies within a rank, and one with an expert that only copies hold.
_TEN = {0: (0, 1, 2, 3, 7, 4, 5, 6, 0, 3), 1: (5, 7, 6, 5, 4, 0, 1, 2, 3, 5)}
_TWELVE = {0: (0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 0, 1), 1: (7, 6, 5, 4, 3, 2, 1, 0, 7, 7, 6, 0)}
_HALVES = (0.25, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5)


def _layout(name: str, slots: Mapping[int, tuple[int, ...]], per_rank: tuple[int, ...], **degrees: int) -> Case:
    fault = "layout" if name.endswith("swapped") else ""
    return Case(f"layout-{name}", "moe", degrees, slots=slots, slots_per_rank=per_rank, fault=fault)


CASES: dict[int, tuple[Case, ...]] = {
    2: (
        _case("dense", tp=2), _case("dense", pp=2), _case("dense", dp=2), _case("dense", cp=2),
        _case("tied", tp=2), _case("tied", pp=2), _case("opt", tp=2), _case("opt", pp=2), _case("mqa", tp=2),
        _case("window", tp=2), _case("window", cp=2), _case("window", pp=2), _case("mla", tp=2), _case("mla", cp=2),
        _case("moe", tp=2, ep=2), _case("moe", tp=2, moe_tp=2), _case("moe", dp=2, ep=2), _case("moe", dp=2, moe_tp=2),
        _case("moe", dp=2), _case("moe", cp=2, ep=2), _case("deepseek", tp=2, ep=2), _case("qwen", dp=2, ep=2),
        _case("qwen", tp=2),
        Case("dense-one-two-layers", "dense", {"pp": 2}, layers=(1, 2), micro_batches=3),
        Case("dense-interleaved", "dense", {"pp": 2, "vpp": 2}, layers=(0, 2, 1, 0), micro_batches=2),
        *(Case(f"{model}-recomputed-{'-'.join(modules)}", model, {"tp": 2}, recompute={"modules": modules})
          for model, modules in (("tied", ("core_attention", "mlp", "layernorm")), ("mla", ("mla_up_projection",)))),
        Case("window-recomputed-context", "window", {"cp": 2}, recompute={"modules": ("core_attention",)}),
        Case("qwen-recomputed-moe", "qwen", {"dp": 2, "ep": 2}, recompute={"modules": ("moe", "layernorm")}),
        Case("moe-recomputed-activation", "moe", {"dp": 2, "ep": 2}, recompute={"modules": ("moe_activation",)}),
        Case("deepseek-recomputed-layers", "deepseek", {"tp": 2, "ep": 2}, recompute={"num_layers": 2}),
        Case("mqa-v-shaped", "mqa", {"pp": 2, "vpp": 2}, schedule="zb_v", micro_batches=2),
        Case("dense-layer-shifted", "dense", {"pp": 2}, fault="layer"),
        Case("dense-stages-swapped", "mqa", {"pp": 2}, fault="stages"),
        Case("moe-experts-shifted", "moe", {"dp": 2, "ep": 2}, fault="experts"),
        Case("dense-context-shifted", "dense", {"cp": 2}, fault="context"),
        Case("dense-gradients-unsummed", "dense", {"dp": 2}, fault="data"),
        Case("tied-gradients-unsummed", "tied", {"pp": 2}, fault="ends"),
        Case("mqa-kv-gradients-unsummed", "mqa", {"tp": 2}, fault="kv_replicas"),
        _layout("exchanged", _TEN, (5,), dp=2, ep=2), _layout("summed", _TEN, (5,), tp=2, ep=2),
        _layout("uneven-ranks", _TEN, (7, 3), dp=2, ep=2), _layout("entry-swapped", _TEN, (5,), dp=2, ep=2),
        _layout("entry-of-a-tp-rank-swapped", _TEN, (5,), tp=2, ep=2),
        Case("layout-quotas", "moe", {"dp": 2, "ep": 2}, slots={0: _TEN[0], 1: _TEN[0]}, quota=_HALVES,
             slots_per_rank=(5,)),
    ),
    4: (
        _case("dense", tp=2, dp=2), _case("dense", tp=2, cp=2), _case("dense", pp=2, cp=2), _case("dense", tp=4),
        _case("tied", tp=2, pp=2), _case("tied", tp=4), _case("mqa", tp=4), _case("mqa", pp=4), _case("mla", tp=4),
        _case("window", tp=2, cp=2), _case("window", dp=2, cp=2), _case("moe", tp=4, ep=2, moe_tp=2),
        _case("moe", tp=4, ep=2), _case("moe", tp=2, dp=2, ep=4), _case("moe", tp=2, dp=2, ep=2, moe_tp=2),
        _case("moe", tp=2, dp=2, moe_tp=4), _case("moe", tp=2, dp=2, ep=2), _case("moe", dp=4, ep=2),
        _case("moe", dp=4, ep=2, moe_tp=2), _case("deepseek", dp=4, ep=4), _case("deepseek", tp=2, dp=2, ep=4),
        _case("qwen", tp=2, dp=2, ep=4), _case("qwen", cp=2, dp=2, ep=4), _case("opt", tp=2, pp=2),
        Case("dense-tp-outermost", "dense", {"tp": 2, "dp": 2}, axes=(("tp", 2), ("dp", 2))),
        Case("dense-axis-in-two", "dense", {"tp": 4}, axes=(("tp", 2), ("tp", 2))),
        Case("moe-dp-over-pp", "moe", {"dp": 2, "pp": 2, "ep": 2}, axes=(("dp", 2), ("pp", 2))),
        Case("dense-ranks-swapped", "dense", {"tp": 2, "dp": 2}, fault="groups"),
        Case("moe-ranks-swapped", "moe", {"tp": 2, "dp": 2, "ep": 4}, fault="expert_groups"),
        Case("mla-ranks-swapped", "mla", {"tp": 2, "cp": 2}, fault="groups"),
        Case("moe-expert-gradients-unsummed", "moe", {"dp": 4, "ep": 2}, fault="expert_data"),
        _layout("exchanged", _TWELVE, (3,), dp=4, ep=4), _layout("over-tp-and-dp", _TWELVE, (3,), tp=2, dp=2, ep=4),
        _layout("sliced", _TWELVE, (6,), dp=4, ep=2, moe_tp=2), _layout("entry-swapped", _TWELVE, (3,), dp=4, ep=4),
    ),
    8: (
        _case("dense", tp=2, pp=2, dp=2), _case("tied", tp=2, pp=2, cp=2), _case("mla", tp=2, pp=2, cp=2),
        _case("deepseek", tp=2, pp=2, dp=2, ep=4), _case("deepseek", dp=8, ep=8),
        _case("moe", tp=2, cp=2, dp=2, ep=8), _case("moe", tp=2, cp=2, dp=2, ep=4, moe_tp=2),
        _case("moe", tp=2, dp=4, ep=2, moe_tp=2), _case("qwen", tp=4, dp=2, ep=4, moe_tp=2),
        _case("window", tp=2, pp=2, dp=2), _case("mqa", tp=4, pp=2),
        Case("moe-all", "moe", {"tp": 2, "pp": 2, "dp": 2, "ep": 2, "moe_tp": 2}, micro_batches=2,
             axes=(("dp", 2), ("pp", 2), ("tp", 2))),
        Case("dense-ranks-swapped-within-stages", "dense", {"tp": 2, "pp": 2, "dp": 2}, fault="stage_groups"),
        Case("deepseek-experts-shifted", "deepseek", {"tp": 2, "pp": 2, "dp": 2, "ep": 4}, fault="experts"),
    ),
}  # fmt: skip
