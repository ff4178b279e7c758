"""Engines that clusters start: whose commands a plan takes, and the images that their makers publish."""

from collections.abc import Sequence

from planner.emit.options import ClusterOptions, flag
from planner.emit.serving import sglang, trtllm, vllm
from planner.emit.serving.scene import ServingEngine
from planner.errors import PlannerError
from planner.plan.schema import Decision
from planner.problem.schema import Problem

ENGINES = {engine.key: engine for engine in (vllm.ENGINE, sglang.ENGINE, trtllm.ENGINE)}
ACROSS_NODES = (
    *("--nnodes", "--node-rank", "--master-addr", "--master-port", "--dist-init-addr"),
    *(
        "--data-parallel-size-local",
        "--data-parallel-address",
        "--data-parallel-rpc-port",
        "--data-parallel-start-rank",
    ),
)
"""Flags of both engines by which the nodes of an instance meet: some targets set them by themselves."""
LISTENS = ("--host", "--port", "--headless")


def engine_of(decision: Decision, problem: Problem, target: str, engines: Sequence[str]) -> ServingEngine:
    """The engine that the plan was made for; raises PlannerError for one that the target cannot run."""
    named = [role.engine.name for role in decision.roles if role.engine is not None]
    name = named[0] if named else problem.engine.name
    if name not in engines:
        known = " or ".join(f"`{each}`" for each in engines)
        raise PlannerError(
            f"target `{target}` starts no {name}", where="decision.roles", hint=f"solve with `engine.name` {known}"
        )
    return ENGINES[name]


def image_of(engine: ServingEngine) -> str:
    """The image of the engine's own release; raises PlannerError where its makers' is not known."""
    image = engine.description.image
    if image is None:
        raise PlannerError(
            f"no image of {engine.name} is known", where=flag("image"), hint=f"give `{flag('image')} NAME:TAG`"
        )
    return image.format(engine.release.read)


def router_image_of(engine: ServingEngine, options: ClusterOptions) -> str:
    """The image of the router; raises PlannerError where none is given, since engines' releases name none.

    Where the engine's own program stands before prefill and decode, it is the engine's.
    """
    if engine.front is not None:
        return options.router_image or options.image or image_of(engine)
    if options.router_image is None:
        raise PlannerError(
            f"the plan needs a router, and no image that holds `{engine.router[-1]}` is known",
            where=flag("router_image"),
            hint=f"give `{flag('router_image')} NAME:TAG`",
        )
    return options.router_image
