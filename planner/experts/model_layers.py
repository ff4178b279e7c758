"""Layer numbers of a model's MoE layers, as recorded loads and engines' files count them."""

from dataclasses import dataclass

from planner.errors import PlannerError
from planner.models.architecture import Architecture, MoeFfn


@dataclass(frozen=True, slots=True)
class ModelLayers:
    """Numbers of a model's layers; those of multi-token prediction come after all others and have experts too."""

    name: str
    num_layers: int  # dense ones too, without multi-token prediction
    expert_ids: tuple[int, ...]
    mtp_ids: tuple[int, ...]
    num_experts: int

    @property
    def all_expert_ids(self) -> tuple[int, ...]:
        return self.expert_ids + self.mtp_ids

    def ids_of(self, count: int) -> tuple[int, ...]:
        """The numbers of `count` layers with experts: all of them, with or without those of multi-token prediction."""
        if count not in (len(self.expert_ids), len(self.all_expert_ids)):
            raise PlannerError(
                f"{count} layers are laid out, `{self.name}` has {len(self.expert_ids)} with experts",
                where="layers",
                hint="name the model whose loads were recorded",
            )
        return self.all_expert_ids[:count]


def layers_of(model: Architecture) -> ModelLayers:
    """The layers of `model`; PlannerError for one without experts, or with more in one layer than in another."""
    counts = {index: layer.ffn.num_experts for index, layer in enumerate(model.layers) if isinstance(layer.ffn, MoeFfn)}
    sizes = sorted(set(counts.values()))
    if len(sizes) != 1:
        raise PlannerError(
            f"`{model.name}` has layers of {sizes} experts" if sizes else f"`{model.name}` has no experts",
            where="model",
            hint="name a mixture-of-experts model whose layers are alike",
        )
    mtp = tuple(model.num_layers + head for head in range(model.num_mtp_heads))
    return ModelLayers(model.name, model.num_layers, tuple(counts), mtp, sizes[0])
