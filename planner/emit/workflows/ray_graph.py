"""Emits workflow plans for Ray Serve: one application a model stage, and one that runs the graph and its functions.

`graph.py` imports `functions.py`, which is the application's own: for a function stage what it does, for a model stage
the body of the request that it makes of the answers before it.
"""

from collections.abc import Sequence
from typing import Any

from planner.emit.clusters.pods import Json
from planner.emit.documents import commented, manifest
from planner.emit.names import label_of
from planner.emit.options import ClusterOptions
from planner.emit.registry import targets
from planner.emit.workflows.stages import COMPLETIONS, Stage, header, workflow_target
from planner.plan.schema import Envelope

TARGET = "ray-serve-graph"
_UNLIMITED = 100  # calls at a time of a function that never waits, as Ray must be told a number
_GRAPH = '''"""The graph of the plan: every stage begins when those it waits for have answered."""

import asyncio
import importlib

import aiohttp
from ray import serve

OWN = importlib.import_module("functions")
AFTER = {after}
MODELS = {models}


{functions}@serve.deployment
class Graph:
    def __init__(self, **stages):
        self.stages = stages

    async def __call__(self, http_request):
        request, done = await http_request.json(), {{}}

        async def run(stage):
            await asyncio.gather(*(done[name] for name in AFTER[stage]))
            inputs = {{name: done[name].result() for name in AFTER[stage]}}
            if stage not in MODELS:
                return await self.stages[stage].remote(request, inputs)
            async with aiohttp.ClientSession() as session:
                body = getattr(OWN, stage)(request, inputs)
                async with session.post("http://127.0.0.1:8000" + MODELS[stage], json=body) as answer:
                    return await answer.json()

        for stage in AFTER:  # in an order in which each comes behind those it waits for
            done[stage] = asyncio.ensure_future(run(stage))
        await asyncio.gather(*done.values())
        return {{stage: done[stage].result() for stage in AFTER if stage in {last}}}


app = Graph.bind({bound})
'''
_FUNCTION = """@serve.deployment(name="{deployment}")
class {cls}:
    async def __call__(self, request, inputs):
        return await asyncio.to_thread(OWN.{key}, request, inputs)


"""


def _key(stage: Stage) -> str:
    """The stage as Python names it."""
    return stage.name.replace("-", "_")


def _class(stage: Stage) -> str:
    return "".join(part.capitalize() for part in stage.name.split("-"))


def _code(envelope: Envelope, stages: Sequence[Stage]) -> str:
    waited = {before for stage in stages for before in stage.after}
    functions = [stage for stage in stages if stage.function is not None]
    text = _GRAPH.format(
        after=repr({_key(stage): [_key(stages[s]) for s in stage.after] for stage in stages}),
        models=repr({_key(stage): f"/{stage.name}{COMPLETIONS}" for stage in stages if stage.function is None}),
        functions="".join(
            _FUNCTION.format(deployment=stage.name, cls=_class(stage), key=_key(stage)) for stage in functions
        ),
        last=repr([_key(stage) for s, stage in enumerate(stages) if s not in waited]),
        bound=", ".join(f"{_key(stage)}={_class(stage)}.bind()" for stage in functions),
    )
    return commented(header(envelope, ())) + text


def _application(stages: Sequence[Stage]) -> Json:
    deployments: list[Json] = []
    for stage in stages:
        if stage.function is not None:
            limit = stage.function.slots if stage.choice.servers else _UNLIMITED
            deployments.append({"name": stage.name, "num_replicas": stage.replicas, "max_ongoing_requests": limit})
    return {
        "name": "graph",
        "route_prefix": "/",
        "import_path": "graph:app",
        "deployments": [{"name": "Graph", "num_replicas": 1}, *deployments],
    }


def _files(envelope: Envelope, stages: list[Stage], options: ClusterOptions) -> dict[str, str]:
    import yaml

    target = targets()["ray-serve"].emit_on
    assert target is not None
    applications, workers, others = [_application(stages)], [], []
    service: Any = None
    for stage in stages:
        if stage.function is None:
            files = target(*stage.nested(), (), options)
            (application,) = yaml.safe_load(files["serve.yaml"])["applications"]
            applications.append({**application, "name": stage.name, "route_prefix": f"/{stage.name}"})
            for document in yaml.safe_load_all(files["plan.yaml"]):
                if document["kind"] == "RayService":
                    service = service or document
                    workers += document["spec"]["rayClusterConfig"]["workerGroupSpecs"]
                else:
                    others.append(document)
    config: Json = {"applications": applications}
    told = header(envelope, [stage for stage in stages if stage.function is None])
    files = {
        "graph.py": _code(envelope, stages),
        "serve.yaml": manifest((*told, "On a Ray cluster of one's own: `serve deploy serve.yaml`."), [config]),
    }
    if service is not None:
        service["metadata"]["name"] = label_of(envelope.name, 40)
        service["spec"]["serveConfigV2"] = manifest((), [config])
        service["spec"]["rayClusterConfig"]["workerGroupSpecs"] = workers
        start = "The image holds graph.py and functions.py; start it with `kubectl apply -f plan.yaml`."
        files["plan.yaml"] = manifest((*told, start), [*others, service])
    return files


TARGETS = (
    workflow_target(
        TARGET,
        "a RayService whose applications are the model stages and the graph",
        _files,
        ("image", "namespace", "model_cache", "token_secret", "gpus"),
    ),
)
