"""Towers and generators of a training job: which of the model's the samples reach, and what they cost on a shard."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planner.costs.operators.towers import TowerLoad
from planner.costs.training.config import Machine, Shard
from planner.costs.training.modalities.networks import (
    NetworkCost,
    Trained,
    generator_cost,
    generator_flop,
    tower_cost,
    tower_flop,
)
from planner.costs.training.rates import Rates
from planner.errors import PlannerError
from planner.kinds.train.samples import GENERATORS, decoder_tokens, generated_pixels, tower_load, trained
from planner.models.architecture import Architecture, Encoder, Module
from planner.schema.base import Where

if TYPE_CHECKING:
    from planner.kinds.train.options import TrainOptions


@dataclass(frozen=True, slots=True)
class Networks:
    """What runs beside the language model, with what it sees of the mean sequence."""

    towers: tuple[tuple[Encoder, TowerLoad], ...] = ()
    generators: tuple[tuple[Module, float, int], ...] = ()  # with pixels, and those of the largest image
    learns: Trained = field(default_factory=Trained)
    generator_learns: bool = True
    apart: bool = False  # on GPUs of their own

    @property
    def names(self) -> tuple[str, ...]:
        """Towers, then generators."""
        return tuple(f"{tower.kind} tower" for tower, _ in self.towers) + ("generator",) * len(self.generators)

    @property
    def heads(self) -> tuple[int, ...]:
        """Of the towers: tensor parallelism must divide them."""
        return tuple(tower.num_heads for tower, _ in self.towers)

    @property
    def flop_per_sequence(self) -> float:
        """Operations of a sequence, forward and backward."""
        towers = sum(tower_flop(tower, load, self.learns) for tower, load in self.towers)
        made = (generator_flop(module, pixels, learns=self.generator_learns) for module, pixels, _ in self.generators)
        return towers + sum(made)

    def tower_costs(self, machine: Machine, shard: Shard, rates: Rates) -> tuple[NetworkCost, ...]:
        """Each tower of a micro-batch on a rank of this shard."""
        return tuple(tower_cost(machine, tower, shard, load, rates, self.learns) for tower, load in self.towers)

    def generator_costs(self, machine: Machine, shard: Shard, rates: Rates) -> tuple[NetworkCost, ...]:
        """Each generator likewise."""
        return tuple(
            generator_cost(machine, module, shard, pixels, largest, rates, learns=self.generator_learns)
            for module, pixels, largest in self.generators
        )


def networks_of(options: "TrainOptions", arch: Architecture, where: Where) -> Networks:
    """What the samples reach; raises PlannerError for data without a network and sequences too short for their data."""
    if not options.samples:
        return Networks()
    _require_room(options, arch, where)
    towers = [(tower, tower_load(tower, options.samples)) for tower in arch.encoders]
    reached = tuple((tower, load) for tower, load in towers if load.tokens)
    pixels, largest = generated_pixels(options.samples)
    generators = tuple((each, pixels, largest) for each in arch.modules if pixels)
    _require_costs(arch, options, reached, generators, where)
    learns = trained(options.frozen, options.task)
    return Networks(reached, generators, learns, "generator" not in options.frozen and options.task != "lora")


def _require_costs(
    arch: Architecture, options: "TrainOptions", towers: tuple[tuple[Encoder, TowerLoad], ...],
    generators: tuple[tuple[Module, float, int], ...], where: Where,
) -> None:  # fmt: skip
    """Raises PlannerError for what the model has no network for, and for networks without a cost."""
    kinds, place = {tower.kind for tower, _ in towers}, where(("options", "samples"))
    wanted = (
        ("vision", any(sample.images for sample in options.samples), "vision tower for `images`"),
        ("audio", any(sample.audio_s for sample in options.samples), "audio tower for `audio_s`"),
    )
    for kind, given, what in wanted:
        if given and kind not in kinds:
            raise PlannerError(f"`{arch.name}` has no {what}", where=place, hint="leave it out, or name another model")
    if any(sample.generated for sample in options.samples) and not generators:
        raise PlannerError(f"`{arch.name}` has no generator", where=place, hint="leave `generated` out")
    unpriced = [f"{tower.kind} tower" for tower, _ in towers if not tower.is_priced]
    unpriced += [m.kind for m, _, _ in generators if m.kind not in GENERATORS or not m.flop_per_pixel]
    if unpriced:
        raise PlannerError(
            f"training the {unpriced[0]} of `{arch.name}` has no cost: what it takes in is not known",
            where=where(("models",)),
            hint="name a model whose towers `planner models show` gives patches and projectors of",
        )
    if not towers and not generators:
        raise PlannerError("samples without images, sounds or generated images", where=place, hint="leave them out")
    able = {"encoder": bool(towers), "projector": bool(towers), "generator": bool(generators)}
    for name in options.frozen:
        if not able[name]:
            what = f"`{arch.name}` trains no {name} on these samples"
            raise PlannerError(what, where=where(("options", "frozen")), hint="leave it out of `frozen`")


def _require_room(options: "TrainOptions", arch: Architecture, where: Where) -> None:
    """Raises PlannerError for a sample whose tokens do not fit its sequence, or the model's context."""
    for index, sample in enumerate(options.samples):
        tokens = sum(decoder_tokens(tower, sample) for tower in arch.encoders if tower.is_priced)
        if tokens > options.sequence_tokens:
            raise PlannerError(
                f"the inputs of a sample become {tokens} tokens, sequences have {options.sequence_tokens}",
                where=where(("options", "samples", index)),
                hint=f"write `sequence_tokens: {tokens}` or more, or fewer or smaller inputs",
            )
