"""The stages of a workflow plan as services: what starts each, and where it answers."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from planner.emit.clusters.engines import ENGINES
from planner.emit.clusters.launch import Launch, read_launch, refuse_options
from planner.emit.clusters.measure import service_url
from planner.emit.clusters.pods import Json
from planner.emit.documents import plan_title
from planner.emit.names import label_of
from planner.emit.options import ClusterOptions
from planner.emit.registry import EmitTarget, LayoutPlan, targets
from planner.errors import PlannerError
from planner.kinds.workflow.decision import StageChoice, WorkflowDecision
from planner.kinds.workflow.nested import serving_plan
from planner.kinds.workflow.options import WorkflowOptions
from planner.kinds.workflow.stage_options import FunctionOption, StageSpec
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import recorded_options, recorded_problem

FUNCTION_PORT = 8080
COMPLETIONS = "/v1/completions"
TAKES = ("image", "router_image", "namespace", "model_cache", "token_secret", "gpus")

ORDERS = "orders.json"
_NOT_LAUNCHED = {
    "servers": "no launcher at hand takes how many functions a stage has, and which stages share a server's memory",
    "engines": "batches are of queries that are known: engines batch what waits, and take no batches of a plan",
}
"""Why schedules leave in no form, by the option that asks for them."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage in topological order, the numbers of the stages it waits for, and what was chosen for it."""

    spec: StageSpec
    after: tuple[int, ...]
    choice: StageChoice
    name: str  # as a DNS label

    @property
    def function(self) -> FunctionOption | None:
        """The option that was chosen; None of a model."""
        rows = self.spec.options or ()
        return next((row for row in rows if row.name == self.choice.option), None)

    @property
    def replicas(self) -> int:
        return self.choice.servers or 1

    def nested(self) -> tuple[Envelope, Decision]:
        """The serving plan of a model stage."""
        return serving_plan(self.choice)

    def url(self, options: ClusterOptions, target: str) -> str:
        """Where it answers inside the cluster."""
        if self.function is not None:
            return f"http://{self.name}:{FUNCTION_PORT}"
        launch = self.launch(options, target)
        return f"{service_url(launch, launch.fronts[0])}{COMPLETIONS}"

    def launch(self, options: ClusterOptions, target: str) -> Launch:
        """The engines of a model stage."""
        return read_launch(*self.nested(), (), options, target, tuple(ENGINES))


def read_stages(envelope: Envelope, decision: Decision) -> list[Stage]:
    """In topological order; raises PlannerError for a plan without the graph it is of."""
    assert isinstance(decision, WorkflowDecision)
    options = recorded_options(recorded_problem(envelope.inputs), WorkflowOptions)
    if options is None:
        raise PlannerError("the plan holds no valid problem", hint="check it: `planner check PLAN`")
    if not options.stages:
        key, hint = ("speech", "`vllm-omni`") if options.speech is not None else ("images", "`vllm-epd`, `sglang-epd`")
        what = f"pools of stages for {key} are one engine's, and no graph of services"
        raise PlannerError(what, where=f"inputs.options.{key}", hint=f"emit for {hint}")
    for key, why in _NOT_LAUNCHED.items():
        if getattr(options, key) is not None:
            raise PlannerError(why, where=f"inputs.options.{key}", hint="take the schedule from `planner show --json`")
    order = options.order()
    number = {options.stages[index].name: place for place, index in enumerate(order)}
    choices = {choice.stage: choice for choice in decision.stages}
    return [
        Stage(spec, tuple(number[name] for name in spec.after), choices[spec.name], label_of(spec.name, 40))
        for spec in (options.stages[index] for index in order)
    ]


def service_objects(stages: Sequence[Stage], options: ClusterOptions) -> Iterator[Json]:
    """Kubernetes objects of engines, and of functions whose containers are known."""
    import yaml

    kubernetes = targets()["kubernetes"].emit_on
    assert kubernetes is not None
    for stage in stages:
        if stage.function is None:
            (text,) = kubernetes(*stage.nested(), (), options).values()
            yield from (document for document in yaml.safe_load_all(text) if document)
        elif stage.function.image is not None:
            yield from _function(stage, stage.function.image, options)


def _function(stage: Stage, image: str, options: ClusterOptions) -> Iterator[Json]:
    """A Deployment of as many servers as were chosen, and its Service."""
    labels = {"app": stage.name}
    space = {"namespace": options.namespace} if options.namespace is not None else {}
    container = {"name": "main", "image": image, "ports": [{"containerPort": FUNCTION_PORT}]}
    yield {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": stage.name, **space, "labels": labels},
        "spec": {
            "replicas": stage.replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": stage.name, **space, "labels": labels},
        "spec": {"selector": labels, "ports": [{"port": FUNCTION_PORT, "targetPort": FUNCTION_PORT}]},
    }


def header(envelope: Envelope, stages: Sequence[Stage], *more: str) -> tuple[str, ...]:
    """Comments above a file: the plan, functions that must be there, and that bodies are the application's."""
    own = [stage for stage in stages if stage.function is not None and stage.function.image is None]
    missing = [
        f'Service "{stage.name}" on port {FUNCTION_PORT} is not among these: option "{stage.choice.option}", '
        f"{stage.replicas if stage.choice.servers else 'any number of'} servers."
        for stage in own
    ]
    ordered = [stage.name for stage in stages if stage.choice.transfer_order]
    missing += [f"{ORDERS} has the order in which {name} moves and computes its clusters." for name in ordered]
    bodies = "What a stage makes of the answers before it is the application's own."
    return (plan_title(envelope), *missing, bodies, *more)


WorkflowFiles = Callable[[Envelope, list[Stage], ClusterOptions], dict[str, str]]


def workflow_target(name: str, purpose: str, files: WorkflowFiles, takes: Sequence[str] = TAKES) -> EmitTarget:
    """A target for workflow plans; `files` gives names and texts."""

    def emitted(
        envelope: Envelope,
        decision: Decision,
        layouts: Sequence[LayoutPlan] = (),
        options: ClusterOptions | None = None,
    ) -> dict[str, str]:
        del layouts
        options = options or ClusterOptions()
        refuse_options(name, options, takes)
        stages = read_stages(envelope, decision)
        orders = {stage.name: list(stage.choice.transfer_order) for stage in stages if stage.choice.transfer_order}
        text = {ORDERS: json.dumps(orders, indent=2) + "\n"} if orders else {}
        return {**files(envelope, stages, options), **text}

    return EmitTarget(name, purpose, ("workflow",), emitted, None, emitted)
