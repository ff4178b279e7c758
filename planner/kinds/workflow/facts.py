"""What binds a workflow plan: its longest path, its busiest engine, and what moves of clusters wait for."""

from collections.abc import Iterator

from planner.documents.units import format_si
from planner.kinds.registry import Told
from planner.kinds.workflow.decision import WorkflowDecision
from planner.kinds.workflow.graph.transfers import stated_s
from planner.kinds.workflow.options import WorkflowOptions
from planner.kinds.workflow.primitives_options import EnginesSpec
from planner.plan.schema import Envelope
from planner.problem.recorded import recorded_options, recorded_problem


def facts(envelope: Envelope, decision: WorkflowDecision) -> Iterator[Told]:
    """One for the form that the plan has, and one for each order of clusters."""
    options = recorded_options(recorded_problem(envelope.inputs), WorkflowOptions)
    if options is None:
        return
    if options.servers is not None:
        yield _longest_path(envelope, options)
    if options.engines is not None:
        yield _busiest(decision, options.engines)
    yield from _moves(decision, options)


def _longest_path(envelope: Envelope, options: WorkflowOptions) -> Told:
    """Stages that wait for each other, whose seconds are those of the whole."""
    took_s = {row.of: row.value for row in envelope.predictions if row.metric == "latency_s" and row.of}
    paths: dict[str, tuple[float, tuple[str, ...]]] = {}
    for index in options.order():
        stage = options.stages[index]
        before_s, before = max((paths[name] for name in stage.after), default=(0.0, ()))
        paths[stage.name] = (before_s + took_s.get(stage.name, 0.0), (*before, stage.name))
    seconds, path = max(paths.values())
    figures = {name: took_s.get(name, 0.0) for name in path}
    return "binding", f"the longest path, {', '.join(path)}, takes {format_si(seconds, 's')}", path, figures


def _busiest(decision: WorkflowDecision, engines: EnginesSpec) -> Told:
    busy_s, last_s = dict[str, float](), 0.0
    for batch in decision.batches:
        kind = engines.primitives[batch.primitive]
        took_s = kind.setup_s + kind.each_s * len(batch.queries)
        busy_s[batch.engine] = busy_s.get(batch.engine, 0.0) + took_s
        last_s = max(last_s, batch.start_s + took_s)
    engine, most_s = max(busy_s.items(), key=lambda row: row[1])
    span_s = last_s - min(engines.queries_s)
    what = f"engine `{engine}` is the busiest, {most_s / span_s:.0%} of the {format_si(span_s, 's')} to the last end"
    return "binding", what, (engine,), dict(busy_s)


def _moves(decision: WorkflowDecision, options: WorkflowOptions) -> Iterator[Told]:
    """What all moves take, what all computes take, and the order."""
    stages = {stage.name: stage for stage in options.stages}
    for choice in decision.stages:
        rows = stages[choice.stage].options or () if choice.stage in stages else ()
        option = next((row for row in rows if row.name == choice.option), None)
        if option is None or option.latency.transfers is None or not choice.transfer_order:
            continue
        transfers = option.latency.transfers
        moves_s = sum(cluster.transfer_s for cluster in transfers.clusters)
        computes_s = sum(cluster.compute_s for cluster in transfers.clusters)
        seconds = stated_s(transfers, choice.transfer_order)
        what = (
            f"`{choice.stage}` moves its {len(transfers.clusters)} clusters in {format_si(moves_s, 's')} and computes "
            f"in {format_si(computes_s, 's')}; in the order of the plan it takes {format_si(seconds, 's')}"
        )
        figures = {"transfer_s": moves_s, "compute_s": computes_s, "latency_s": seconds}
        yield "time", what, (choice.stage,), figures
