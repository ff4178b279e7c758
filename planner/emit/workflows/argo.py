"""Emits workflow plans as an Argo Workflow (argoproj.io/v1alpha1): a DAG of calls of the Services of its stages.

A task is a template `http`, which the workflow's agent calls when those it depends on have answered; their answers are
its arguments. No schema of Argo is at hand to hold it to: fields are those of its documentation.
"""

from planner.emit.clusters.pods import Json
from planner.emit.documents import manifest
from planner.emit.names import label_of
from planner.emit.options import ClusterOptions
from planner.emit.workflows.stages import Stage, header, service_objects, workflow_target
from planner.plan.schema import Envelope

TARGET = "argo"


def _template(stage: Stage, options: ClusterOptions) -> Json:
    """A POST to the stage of all that it waits for, as JSON text."""
    return {
        "name": stage.name,
        "inputs": {"parameters": [{"name": "body"}]},
        "http": {
            "url": stage.url(options, TARGET),
            "method": "POST",
            "headers": [{"name": "Content-Type", "value": "application/json"}],
            "body": "{{inputs.parameters.body}}",
            "successCondition": "response.statusCode == 200",
        },
    }


def _task(stage: Stage, stages: list[Stage]) -> Json:
    before = [stages[s].name for s in stage.after]
    body = "{{workflow.parameters.request}}"
    if before:
        body = "[" + ", ".join(f"{{{{tasks.{name}.outputs.result}}}}" for name in before) + "]"
    task: Json = {"name": stage.name, "template": stage.name}
    task |= {"dependencies": before} if before else {}
    return {**task, "arguments": {"parameters": [{"name": "body", "value": body}]}}


def _files(envelope: Envelope, stages: list[Stage], options: ClusterOptions) -> dict[str, str]:
    name = label_of(envelope.name, 40)
    space = {"namespace": options.namespace} if options.namespace is not None else {}
    workflow: Json = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"generateName": f"{name}-", **space},
        "spec": {
            "entrypoint": "graph",
            "arguments": {"parameters": [{"name": "request", "value": "{}"}]},
            "templates": [
                {"name": "graph", "dag": {"tasks": [_task(stage, stages) for stage in stages]}},
                *(_template(stage, options) for stage in stages),
            ],
        },
    }
    told = header(envelope, stages)
    start = "Start it with `kubectl apply -f services.yaml`."
    submit = "For every request: `argo submit workflow.yaml -p request='{...}'`."
    files = {"workflow.yaml": manifest((*told, submit), [workflow])}
    objects = list(service_objects(stages, options))
    return files | ({"services.yaml": manifest((*told, start), objects)} if objects else {})


TARGETS = (workflow_target(TARGET, "an Argo Workflow of calls, with the services of its stages", _files),)
