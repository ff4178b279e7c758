"""What a reader of one model family returns: decoder layers, and model-level facts that differ from the default."""

from collections.abc import Callable
from dataclasses import dataclass, field

from planner.models.architecture import Layer
from planner.models.importers.fields import ConfigFields


@dataclass(frozen=True, slots=True)
class Decoder:
    """The fields of `Architecture` that depend on the family, under the same names."""

    layers: tuple[Layer, ...]
    mtp_layers: tuple[Layer, ...] = ()
    mtp_embeddings: bool = False
    mtp_heads: int = 0
    position_embeddings: int = 0
    embedding_size: int = 0
    norm_bias: bool = False
    final_norm: bool = True
    layer_inputs: int = 1
    tied_by_default: bool = False  # what a missing tie_word_embeddings means
    unsupported: tuple[str, ...] = ()
    metadata: dict[str, str] = field(default_factory=dict)


Reader = Callable[[ConfigFields], Decoder]
