"""Every tensor of a checkpoint by name, one by one, where counts and bytes are summed by kinds of layers."""

from dataclasses import replace

from planner.models.architecture import Architecture
from planner.models.modules import module_parameters
from planner.models.parameters import Tensor, edge_tensors, layer_tensors, mtp_tensors


def model_tensors(arch: Architecture) -> tuple[Tensor, ...]:
    """Every tensor of the checkpoint by name: edges, layers, MTP heads, encoders and modules (one tensor each)."""
    tensors = list(edge_tensors(arch))
    for index, layer in enumerate(arch.layers):
        tensors += [replace(t, name=f"layers.{index}.{t.name}") for t in layer_tensors(layer, arch)]
    tensors += mtp_tensors(arch)
    tensors += [Tensor(f"encoders.{e.kind}", 1, e.parameters, "encoder") for e in arch.encoders]
    tensors += [
        Tensor(f"modules.{index}.{m.kind}", 1, module_parameters(m), "encoder") for index, m in enumerate(arch.modules)
    ]
    return tuple(tensors)
