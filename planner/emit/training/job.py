"""A training plan as launchers see it: its model, ranks node by node, and the rank order."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from planner.costs.operators.recompute import BY_OPERATOR
from planner.costs.training.eras import windowed
from planner.emit.documents import plan_title
from planner.emit.nodes import Cluster, NodeId, read_cluster
from planner.emit.refusals import raise_first, refuse
from planner.emit.registry import EmitTarget
from planner.engines.trained_models import trained_without, untrained
from planner.engines.training import TRAINING_ENGINES
from planner.errors import PlannerError
from planner.kinds.train.check import check
from planner.kinds.train.decision import Recompute, StageRun, TrainDecision
from planner.kinds.train.figures import stated
from planner.kinds.train.options import TrainOptions
from planner.kinds.train.proof.reprice import repriced
from planner.models.architecture import Architecture
from planner.plan.placement import devices, require_countable
from planner.plan.schema import Axis, Block, Decision, Envelope, Parallelism, Role
from planner.problem.recorded import recorded_options, required_model
from planner.reliability.lost_nodes import pools_of
from planner.reliability.rack_nodes import nodes_on_racks

PIPELINE_OUTSIDE, DATA_OUTSIDE = ("pp", "dp", "cp", "tp"), ("dp", "pp", "cp", "tp")
"""The two orders of ranks, outermost first, that Megatron-LM and torchtitan can lay out."""


@dataclass(frozen=True, slots=True)
class LaunchJob:
    """One job: equal processes on `nodes`, `gpus_per_node` each, ranks counted through them in order."""

    envelope: Envelope
    decision: TrainDecision
    options: TrainOptions
    model: Architecture
    cluster: Cluster
    nodes: tuple[NodeId, ...]
    gpus_per_node: int
    order: tuple[str, ...]  # of the dimensions, outermost first
    priced: str = ""  # what the step takes under another engine than the plan's, in words

    @property
    def role(self) -> Role:
        return self.decision.roles[0]

    @property
    def shape(self) -> Parallelism:
        """Of the whole job, all pools together."""
        return self.decision.degrees

    @property
    def stages(self) -> tuple[StageRun, ...]:
        """Each stage of the pipeline, in the order in which a micro-batch passes them."""
        return tuple(run for run in self.decision.stage_runs for _ in range(run.stages))

    @property
    def heads_for_later_tokens(self) -> int:
        """MTP heads that the plan trains."""
        return self.model.num_mtp_heads if any("mtp" in run.parts for run in self.decision.stage_runs) else 0

    @property
    def data_ranks(self) -> int:
        """Ranks that hold the same weights and see other tokens."""
        return self.shape.dp * self.shape.cp

    @property
    def zero_shards(self) -> int:
        """Ranks that share out the sharded states."""
        return self.data_ranks if self.decision.zero_shards is None else self.decision.zero_shards

    @property
    def moved_layers(self) -> int:
        """Layers whose activations are offloaded, where these are: the last one's are needed at once."""
        return self.decision.moved_layers or self.model.num_layers - 1

    @property
    def header(self) -> tuple[str, ...]:
        rows = "All inputs recompute what the longest do: the plan's rows by length have no setting here."
        without = trained_without(self.model)
        notes = [rows if self.decision.recompute_rows else "", f"{without}." if without else "", self.priced]
        return (plan_title(self.envelope), *filter(None, notes))

    def recomputes(self, granularity: str) -> bool:
        """Whether any stage recomputes so: `full` layers, or `selective` modules."""
        return any(run.recompute.granularity == granularity for run in self.decision.stage_runs)

    def common_recompute(self, launcher: str) -> str:
        """What every stage with layers recomputes: none, selective or full; PlannerError where they differ."""
        kinds = {run.recompute.granularity for run in self.stages if run.num_layers}
        if len(kinds) > 1:
            names = " and ".join(f"`{kind}`" for kind in sorted(kinds))
            raise refuse(
                f"stages recompute {names}", "stage_runs", f"{launcher} has one setting: plan the same everywhere"
            )
        return kinds.pop()


def training_target(
    name: str, purpose: str, files: Callable[[LaunchJob], dict[str, str]], engine: str = "", *, towers: bool = False
) -> EmitTarget:
    """A target for training plans; `files` gives names and texts, `engine` is what they launch, if it is one.

    towers: whether it launches models with towers; other targets refuse them.
    """

    def launched(envelope: Envelope, decision: Decision) -> dict[str, str]:
        _require_launched(name, decision)
        job = read_job(envelope, decision)
        if job.decision.modules and not towers:
            raise refuse(
                f"`{name}` launches language models alone, the plan trains a {job.decision.modules[0].name}",
                "modules",
                "emit it for `megatron-bridge`",
            )
        if job.decision.sequence_degrees is not None and engine != "megatron-lm":
            raise refuse(
                f"`{name}` has one context-parallel degree for all documents", "sequence_degrees", "use `megatron-lm`"
            )
        files(job)  # what it cannot launch is refused before it is priced
        return files(replace(job, priced=_priced_under(engine, envelope, job.decision)))

    return EmitTarget(name, purpose, ("train",), launched)


def _require_launched(name: str, decision: Decision) -> None:
    """Raises PlannerError for what no public launcher of these targets runs."""
    if not isinstance(decision, TrainDecision):
        return
    unable = (
        (
            next((module for module in decision.modules if module.name == "generator"), None),
            "modules",
            f"`{name}` trains no generator: MegatronMIMO and MindSpeed-MM lay out towers and a language model",
            "train it in a program of your own; `planner show --json` has the ranks and degrees of every module",
        ),
        (
            decision.core_attention,
            "core_attention",
            f"`{name}` computes core attention where its documents are; DistCA, which moves it, takes no plan",
            "solve without `core_attention_apart`, or with `degrees_by_document` for `megatron-lm`",
        ),
        (
            decision.sparse_heads,
            "sparse_heads",
            f"`{name}` computes every score on even parts of the heads; DSV, which does not, takes no plan",
            "solve without `sparse_heads`",
        ),
        (
            decision.modality_schedule,
            "modality_schedule",
            f"`{name}` runs its own order of passes; DIP, which schedules them, is not public",
            "solve without `schedule_by_modality`",
        ),
    )
    for decided, place, what, hint in unable:
        if decided is not None:
            raise refuse(what, place, hint)


def _priced_under(engine: str, envelope: Envelope, decision: TrainDecision) -> str:
    """What a step takes under another engine than the plan's, beside what it was planned with; empty under its own."""
    planned = decision.roles[0].engine
    if not engine or planned is None or planned.name == engine:
        return ""
    inputs = {**envelope.inputs, "engine": {"name": engine}}
    again = repriced(envelope.model_copy(update={"inputs": inputs}), _recomputed_by(engine, decision))
    if isinstance(again, str):
        return f"Planned for {planned.name}, and not priced under {engine}: {again}."
    step_s = stated(envelope)["step_time_s"]
    more = again.step_s / step_s - 1.0
    return (
        f"Planned for {planned.name}, {step_s:.4g} s a step; under {engine} it takes {again.step_s:.4g} s, {more:+.1%}."
    )


def _recomputed_by(engine: str, decision: TrainDecision) -> TrainDecision:
    """The decision with the engine's policy by operator, where it has one, in place of modules."""
    if not TRAINING_ENGINES[engine].again_by_operator:
        return decision
    policy = Recompute(granularity="selective", modules=(BY_OPERATOR,))
    runs = (
        run.model_copy(update={"recompute": policy}) if run.recompute.granularity == "selective" else run
        for run in decision.stage_runs
    )
    return decision.model_copy(update={"stage_runs": tuple(runs)})


def _require_launchable(decision: TrainDecision) -> None:
    """Raises PlannerError for what no launcher here does."""
    raise_first(
        (
            bool(decision.layer_runs),
            refuse(
                "layers have strategies of their own",
                "layer_runs",
                "no launcher here shares ranks out anew at every layer: solve without `search.layerwise`",
            ),
        ),
        (
            "tp_fused" in decision.overlap and decision.degrees.tp > 1,
            refuse(
                "no launcher here has products fused with their exchange, `tp_fused`",
                "overlap",
                "solve with `tp_comm`, or put the kernels (github.com/bytedance/flux) into the training code by hand",
            ),
        ),
        (
            decision.pools == "replicas",
            refuse(
                "no launcher gives replicas in several pools different numbers of micro-batches",
                "pools",
                "write `search: {pools: [one, stages]}` into the options",
            ),
        ),
    )


def read_job(envelope: Envelope, decision: Decision) -> LaunchJob:
    """The job of a training plan.

    Raises PlannerError for what the plan's own rules refuse, some of which launchers accept and then fail on or train
    wrongly: heads that tensor parallelism does not divide, expert groups that do not tile the ranks, a layout with
    another number of layers than the model, interleaving with micro-batches that do not fill rounds.
    """
    assert isinstance(decision, TrainDecision)
    _require_legal(envelope, decision)
    _require_launchable(decision)
    cluster = read_cluster(envelope)
    options = recorded_options(cluster.problem, TrainOptions)
    if options is None:
        raise PlannerError("the options are no training job", where="inputs.options", hint="solve the problem again")
    role = decision.roles[0]
    if options.code is not None:
        raise PlannerError(
            "no launcher here starts the training code that it is priced for",
            where="inputs.options.code",
            hint="leave `code` out of the problem and solve it again",
        )
    model = required_model(cluster.problem, role.model or next(iter(cluster.problem.models)))
    blocks = [block for member in decision.roles for block in decision.placement if block.role == member.name]
    require_countable(blocks)
    apart = [module.block for module in decision.modules if module.block is not None]
    behind = sorted(apart, key=lambda block: block.first_device)
    nodes, gpus_per_node = _nodes(role, [*blocks, *behind], cluster)
    order = _order(decision, blocks)
    nodes = _on_racks(envelope, decision, nodes, order)
    model = windowed(model, options.window_tokens)
    return LaunchJob(envelope, decision, options, model, cluster, nodes, gpus_per_node, order)


def _on_racks(
    envelope: Envelope, decision: TrainDecision, nodes: tuple[NodeId, ...], order: tuple[str, ...]
) -> tuple[NodeId, ...]:
    """The nodes in rank order: those on the decided racks, stage after stage, where the plan has decided racks."""
    if decision.racks is None:
        return nodes
    if order != PIPELINE_OUTSIDE:
        raise refuse("racks are of nodes stage after stage", "placement", "place ranks pp, dp, cp, tp")
    (index,) = {place.pool for place in nodes}
    pool = list(pools_of(envelope).values())[index]
    return tuple(NodeId(index, node) for node in nodes_on_racks(decision, pool))


def require_trained(job: LaunchJob, engine: str) -> None:
    """Raises PlannerError for a model that this engine does not train, or not in this task."""
    beyond = untrained(engine, job.model, job.options.task)
    if beyond is not None:
        raise refuse(beyond[0], "roles", beyond[1])


def _require_legal(envelope: Envelope, decision: TrainDecision) -> None:
    """Raises PlannerError where a rule is broken that hangs on no prediction."""
    for finding in check(envelope, decision):
        if not finding.ok:
            raise refuse(finding.what, finding.where, finding.hint or "check the plan with `planner check`")


def _order(decision: TrainDecision, blocks: list[Block]) -> tuple[str, ...]:
    """The dimensions of the ranks from the outermost in, those of size 1 where they disturb nothing.

    Blocks of a pipeline over several pools follow one another, so that the pipeline is the outermost dimension.
    """
    if [block.role for block in blocks] != [role.name for role in decision.roles]:
        raise refuse(f"the ranks lie in {len(blocks)} blocks", "placement", "place every role as one block")
    for role, block in zip(decision.roles, blocks, strict=True):
        _require_whole(block.axes, role.parallelism)
    names = [[axis.name for axis in block.axes if axis.size > 1] for block in blocks]
    axes = list(dict.fromkeys(name for own in names for name in own))
    if len(blocks) > 1:
        axes = ["pp", *(name for name in axes if name != "pp")]
    for order in (PIPELINE_OUTSIDE, DATA_OUTSIDE):
        if [name for name in order if name in axes] == axes:
            return order
    wanted = " or ".join(", ".join(order) for order in (PIPELINE_OUTSIDE, DATA_OUTSIDE))
    raise refuse(f"ranks count {', '.join(axes)}, outermost first", "placement", f"place them {wanted}")


def _require_whole(axes: tuple[Axis, ...], shape: Parallelism) -> None:
    sizes = dict.fromkeys(PIPELINE_OUTSIDE, 1)
    for axis in axes:
        if axis.size > 1 and axis.name not in sizes:
            raise refuse(f"ranks are laid along `{axis.name}`", "placement", "lay them along pp, dp, cp and tp")
        if axis.size > 1:
            sizes[axis.name] *= axis.size
    for name, size in sizes.items():
        if size != getattr(shape, name):
            raise refuse(
                f"the placement has {size} ranks along {name}, the role {getattr(shape, name)}",
                "placement",
                "check the plan with `planner check`",
            )


def _nodes(role: Role, blocks: list[Block], cluster: Cluster) -> tuple[tuple[NodeId, ...], int]:
    """The nodes in rank order, each filled by consecutive ranks, and how many ranks each holds."""
    pools = {name: cluster.pool(name) for name in {block.pool for block in blocks}}
    placed = [(pools[block.pool], device) for block in blocks for device in devices(block)]
    places = [cluster.place(pool, device) for pool, device in placed]
    order = list(dict.fromkeys(place for place, _ in places))
    each, left = divmod(len(places), len(order)) if order else (0, 1)
    ordinals = [ordinal for _, ordinal in places]
    astride = len({block.role for block in blocks}) > 1
    split = [place for place, _ in places] != [place for place in order for _ in range(each)]
    if left or split or ordinals != list(range(each)) * len(order):
        raise refuse(
            f"the {len(places)} ranks of role `{role.name}`{' and its modules' * astride} do not fill nodes one after"
            " the other",
            "placement",
            "place consecutive ranks on the GPUs 0, 1, ... of a node, as many on each",
        )
    return tuple(order), each
