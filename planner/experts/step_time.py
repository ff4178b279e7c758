"""Seconds lost to expert imbalance, and seconds that moving experts takes, by the MoE step's cost model.

The busiest rank sets the pace of dispatch, experts and combine; everything else does not depend on the layout.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from planner.arrays import Floats
from planner.costs.operators.forward import forward
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.roofline import Roofline
from planner.costs.rates.step import price_operators
from planner.errors import PlannerError
from planner.models.architecture import Architecture, MoeFfn

if TYPE_CHECKING:
    from planner.hardware.cluster import Pool

PACED = ("dispatch", "experts", "expert_combine", "combine")
RATIOS = np.concatenate([np.linspace(1.0, 2.0, 41), np.linspace(2.1, 8.0, 60)])


@dataclass(frozen=True, eq=False)
class MoeCosts:
    """One step of `tokens_per_rank` tokens on every rank of an expert-parallel group, forward only."""

    model: Architecture
    pool: "Pool"
    ranks: int
    tokens_per_rank: float

    def __post_init__(self) -> None:
        if self.num_layers == 0:
            raise PlannerError(
                f"`{self.model.name}` has no experts", where="model", hint="name a mixture-of-experts model"
            )

    @property
    def num_layers(self) -> int:
        """Layers with experts."""
        return sum(isinstance(layer.ffn, MoeFfn) for layer in self.model.layers)

    @property
    def expert_bytes(self) -> float:
        """Weights of one expert of one layer."""
        return expert_bytes(self.model)

    @cached_property
    def _seconds(self) -> tuple[Floats, float]:
        """(seconds of the paced part of one layer at each of RATIOS, seconds of all else in a step)."""
        shards = Shards.of(np.ones(len(RATIOS)), dp=self.ranks, ep=self.ranks)
        work = Work.prefill(RATIOS * self.tokens_per_rank)
        efficiencies = replace(load_calibration().efficiencies, routing_concentration=math.inf)  # RATIOS are the loads
        pricer = Roofline(self.pool.node.accelerator, self.pool.topology(), efficiencies)
        time = price_operators(forward(self.model, shards, work), pricer, len(RATIOS))
        paced = np.sum([seconds for name, seconds in time.by_operator.items() if name in PACED], axis=0)
        return paced / self.num_layers, float(time.device_s[0] - paced[0])

    def step_s(self, imbalance_L: npt.ArrayLike) -> float:
        """Seconds of a step whose layers have these imbalances; fewer layers stand for all in turn."""
        paced, rest = self._seconds
        layers = np.interp(np.asarray(imbalance_L, np.float64), RATIOS, paced)
        return float(layers.mean()) * self.num_layers + rest

    def move_s(self, moved_bytes: float) -> float:
        """Seconds to send weights between nodes, every rank sending and receiving its share."""
        efficiency = load_calibration().efficiencies.fabric_bandwidth
        slowest = min(self.pool.node.nic_bandwidth_bytes_per_s, self.pool.topology().levels[-1].bandwidth_bytes_per_s)
        return moved_bytes / self.ranks / (slowest * efficiency)


def expert_bytes(model: Architecture) -> float:
    """Weights of one expert of one layer of a mixture-of-experts model, in the precision it is stored in."""
    from planner.costs.operators.kernels import bytes_per

    ffn = next(layer.ffn for layer in model.layers if isinstance(layer.ffn, MoeFfn))
    matrices = 3 if ffn.gated else 2
    return (
        matrices * (ffn.latent_size or model.hidden_size) * ffn.intermediate_size * bytes_per(model.precisions.experts)
    )


def experts_per_token(model: Architecture) -> float:
    """Routed experts that a token goes to on average."""
    return next(layer.ffn.experts_per_token for layer in model.layers if isinstance(layer.ffn, MoeFfn))
