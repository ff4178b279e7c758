"""Roles whose engine places experts by load while it runs, with copies of the busiest (EPLB)."""

from planner.emit.serving.instances import EngineInstance
from planner.emit.serving.scene import Scene, limit
from planner.models.architecture import MoeFfn
from planner.problem.recorded import recorded_model


def redundant_experts(scene: Scene, instance: EngineInstance, engine: str) -> int | None:
    """Copies of experts of a layer; None where experts lie by number, or a layout says where.

    Raises PlannerError where they would not fill all ranks alike with whole experts.
    """
    copies, shape = limit(instance, "redundant_experts", least=0), instance.role.parallelism
    if copies is None:
        return None
    experts = num_experts(scene, instance)
    if shape.ep == 1 or shape.moe_tp > 1 or shape.pp > 1 or (experts + copies) % shape.ep:
        raise instance.refuse(
            f"{engine} places whole experts by load, as many on each of the ranks of a stage that share them; this "
            f"role has {experts} and redundant_experts {copies} on ep {shape.ep}, moe_tp {shape.moe_tp} and "
            f"pp {shape.pp}",
            'plan with `redundant_experts: ["off"]`, or with as many as fill all ranks alike',
        )
    return None if instance.role.name in scene.experts else copies


def num_experts(scene: Scene, instance: EngineInstance) -> int:
    """Of a layer of the role's model; 0 where it has none."""
    model = recorded_model(scene.cluster.problem, scene.model_key(instance))
    layers = () if model is None else model.layers
    return max((layer.ffn.num_experts for layer in layers if isinstance(layer.ffn, MoeFfn)), default=0)
