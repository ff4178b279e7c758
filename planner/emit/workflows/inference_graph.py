"""Emits workflow plans as an InferenceGraph of KServe (serving.kserve.io/v1alpha1) over the Services of its stages.

Its routers know sequences and ensembles: a node answers with all it has asked. So stages are laid in levels, each of
which waits for all of the level before; graphs in which a stage waits for some of it alone are refused.
"""

from collections.abc import Sequence

from planner.emit.clusters.pods import Json
from planner.emit.documents import manifest
from planner.emit.names import label_of
from planner.emit.options import ClusterOptions
from planner.emit.workflows.stages import Stage, header, service_objects, workflow_target
from planner.errors import PlannerError
from planner.plan.schema import Envelope

TARGET = "kserve-graph"


def levels_of(stages: Sequence[Stage]) -> list[list[int]]:
    """Stages by level; raises PlannerError where a stage waits for other stages than those of the level before it."""
    level: list[int] = []
    for stage in stages:
        level.append(1 + max((level[before] for before in stage.after), default=-1))
    rows = [[s for s, own in enumerate(level) if own == depth] for depth in range(max(level) + 1)]
    for s, stage in enumerate(stages):
        wanted = rows[level[s] - 1] if level[s] else []
        if sorted(stage.after) != wanted:
            names = ", ".join(f"`{stages[before].spec.name}`" for before in wanted)
            raise PlannerError(
                f"an InferenceGraph runs level after level, and `{stage.spec.name}` waits for others than {names}",
                where=f"inputs.options.stages.{stage.spec.name}.after",
                hint="emit for `argo`, or let every stage wait for the whole level before it",
            )
    return rows


def _graph(envelope: Envelope, stages: Sequence[Stage], options: ClusterOptions) -> Json:
    nodes: dict[str, Json] = {"root": {"routerType": "Sequence", "steps": []}}
    steps: list[Json] = []
    for depth, row in enumerate(levels_of(stages)):
        own = [{"serviceUrl": stages[s].url(options, TARGET), "name": stages[s].name} for s in row]
        answers: Json = {"data": "$response"} if depth else {}
        if len(row) == 1:
            steps.append({**own[0], **answers})
        else:
            nodes[f"level-{depth}"] = {"routerType": "Ensemble", "steps": own}
            steps.append({"nodeName": f"level-{depth}", "name": f"level-{depth}", **answers})
    nodes["root"]["steps"] = steps
    space = {"namespace": options.namespace} if options.namespace is not None else {}
    return {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "InferenceGraph",
        "metadata": {"name": label_of(envelope.name, 40), **space},
        "spec": {"nodes": nodes},
    }


def _files(envelope: Envelope, stages: list[Stage], options: ClusterOptions) -> dict[str, str]:
    graph = _graph(envelope, stages, options)
    told = header(envelope, stages, "Start it with `kubectl apply -f plan.yaml`.")
    return {"plan.yaml": manifest(told, [*service_objects(stages, options), graph])}


TARGETS = (workflow_target(TARGET, "an InferenceGraph of KServe, with the services of its stages", _files),)
