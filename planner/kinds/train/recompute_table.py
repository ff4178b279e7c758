"""What to recompute at each input size: a table, where lengths vary, in place of one set sized for the longest input.

Source: "Exploiting Input Tensor Dynamics in Activation Checkpointing", IPDPS 2023. For every size the layers of a rank
choose what they recompute, at least time within the memory that is left (`planner.solvers.choices`, exact).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from planner.costs.training.activations import layer_activations
from planner.costs.training.config import Recompute, TrainingConfig, layer_runs, stage_layers
from planner.costs.training.layer_costs import layer_cost
from planner.costs.training.memory import chunks_in_flight, rank_memory
from planner.costs.training.rates import Rates, default_rates
from planner.costs.training.step import stage_cost
from planner.errors import PlannerError
from planner.models.architecture import Layer
from planner.solvers.choices import ChoiceProblem, Group, best_choices, total_bytes

WHOLE = "whole"  # the set of a layer that keeps its input only
MODULES = ("core_attention", "mlp", "moe", "moe_activation", "layernorm", "mla_up_projection")
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One input size: how many layers recompute each set of modules, and what that takes on the fullest rank."""

    tokens: int  # of a sequence
    layers_of_set: Mapping[Names, int]
    recompute_s: float  # of one micro-batch
    busy_s: float  # forward and backward without recomputation
    bytes: float
    capacity_bytes: float

    @property
    def total_s(self) -> float:
        return self.busy_s + self.recompute_s


@dataclass(frozen=True, slots=True)
class Table:
    """Rows by input size, sizes rising; the longest is what a plan with one set is made for."""

    rows: tuple[Row, ...]
    static_s: tuple[float, ...]  # of each row under the set of the longest input

    def mean_s(self, shares: Sequence[float]) -> float:
        """Time of a micro-batch over sizes that come with these shares."""
        return sum(share * row.total_s for share, row in zip(shares, self.rows, strict=True)) / sum(shares)

    def gain(self, shares: Sequence[float]) -> float:
        """By how much the plan for the longest input takes longer: 0.05 is 5 %."""
        static = sum(share * seconds for share, seconds in zip(shares, self.static_s, strict=True)) / sum(shares)
        return static / self.mean_s(shares) - 1.0


def recompute_table(
    config: TrainingConfig, sizes: Sequence[int], capacity_bytes: float, rank: int = 0, rates: Rates | None = None
) -> Table:
    """The table of pipeline rank `rank` for sequences of these sizes.

    Raises PlannerError where a size does not fit even with every layer recomputed whole.
    """
    known = rates or default_rates()
    ordered = sorted(set(sizes))
    rows = [_row(config, tokens, capacity_bytes, rank, known) for tokens in ordered]
    static = [_under(config, tokens, rows[-1].layers_of_set, rank, known) for tokens in ordered]
    return Table(tuple(rows), tuple(row.busy_s + seconds for row, seconds in zip(rows, static, strict=True)))


def sized(config: TrainingConfig, tokens: int) -> TrainingConfig:
    """The configuration with sequences of this length and nothing recomputed."""
    return replace(config, sequence_tokens=tokens, recompute=Recompute())


def options(config: TrainingConfig, layer: Layer, rates: Rates) -> dict[Names, tuple[float, float]]:
    """Seconds and bytes of one micro-batch in one layer by what it recomputes; experts take their activation along."""
    cost = layer_cost(config.machine, layer, config.shard, rates)
    kept = layer_activations(layer, config.shard)
    able = [name for name in MODULES if name in kept.of_module and name in cost.forward_of_module]
    found: dict[Names, tuple[float, float]] = {}
    for names in _subsets(able):
        seconds = sum(cost.forward_of_module[name] for name in names)
        found[names] = (seconds, kept.without(names))
    found[(WHOLE,)] = (cost.forward_s, kept.input_bytes)
    return found


def _subsets(names: Sequence[str]) -> Iterator[Names]:
    for size in range(len(names) + 1):
        for chosen in combinations(names, size):
            if "moe" not in chosen or "moe_activation" in chosen or "moe_activation" not in names:
                yield chosen


def _row(config: TrainingConfig, tokens: int, capacity_bytes: float, rank: int, rates: Rates) -> Row:
    """The fastest sets that fit; layers recomputed whole need room for the activations of one of them."""
    plain = sized(config, tokens)
    solved = [found for whole in (False, True) if (found := _solved(plain, capacity_bytes, rank, rates, whole))]
    if not solved:
        least = _problem(plain, capacity_bytes, rank, rates, True)[1].capacity
        what = f"sequences of {tokens} tokens leave {least / 1e9:.3g} GB for activations, with all layers recomputed"
        raise PlannerError(what, where="sizes", hint="cut the longest inputs, or shard over more ranks")
    seconds, layers_of_set, used = min(solved, key=lambda found: found[0])
    return Row(tokens, layers_of_set, seconds, stage_cost(plain, rank, rates).total_s, used, capacity_bytes)


def _solved(
    config: TrainingConfig, capacity_bytes: float, rank: int, rates: Rates, whole: bool
) -> tuple[float, dict[Names, int], float] | None:
    names, problem = _problem(config, capacity_bytes, rank, rates, whole)
    if problem.capacity < 0.0:
        return None
    found = best_choices(problem)
    if found.solution is None or found.objective is None:
        return None
    counts: dict[Names, int] = {}
    for of_group, chosen in zip(names, found.solution, strict=True):
        for name, count in zip(of_group, chosen, strict=True):
            if count:
                counts[name] = counts.get(name, 0) + count
    return found.objective, counts, capacity_bytes - problem.capacity + total_bytes(problem, found.solution)


def _problem(
    config: TrainingConfig, capacity_bytes: float, rank: int, rates: Rates, whole: bool
) -> tuple[list[list[Names]], ChoiceProblem]:
    """The names of the options of each group, and the knapsack of one rank.

    Bytes count for all micro-batches in flight at the stage of a layer.
    """
    full = replace(config, recompute=Recompute("full")) if whole else config
    memory = rank_memory(full, rank, rates)
    fixed = memory.total_bytes - memory.activations_bytes
    names, groups = [], []
    for layer, count, in_flight in _held(config, rank):
        able = {name: at for name, at in options(config, layer, rates).items() if whole or name != (WHOLE,)}
        names.append(list(able))
        groups.append(Group(count, tuple((seconds, size * in_flight) for seconds, size in able.values())))
    return names, ChoiceProblem(tuple(groups), capacity_bytes - fixed)


def _held(config: TrainingConfig, rank: int) -> Iterator[tuple[Layer, int, float]]:
    """The layers of a rank: each kind, how often, and micro-batches in flight at its stage."""
    runs = layer_runs(config.arch.layers, stage_layers(config))
    in_flight = chunks_in_flight(config, rank)
    for chunk, stage in enumerate(range(rank, len(runs), config.pp)):
        for layer, count in runs[stage]:
            yield layer, count, in_flight[chunk]


def _under(config: TrainingConfig, tokens: int, layers_of_set: Mapping[Names, int], rank: int, rates: Rates) -> float:
    """Seconds of recomputing at another size what `layers_of_set` says, layers of several kinds in proportion."""
    plain = sized(config, tokens)
    held = list(_held(plain, rank))
    layers = sum(count for _, count, _ in held)
    seconds = 0.0
    for layer, count, _ in held:
        able = options(plain, layer, rates)
        for names, chosen in layers_of_set.items():
            seconds += able[names][0] * chosen * count / layers if names in able else 0.0
    return seconds
