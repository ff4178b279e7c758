"""Prediction for one training step of one rank by the costs that chose the plan: seconds by operator.

The step's seconds are those of `planner.costs.training`, for the code that runs here, which is eager PyTorch. They are
told by operator where the executor times them: kernels of a kind and pass share their seconds out as kernel times of
the operators of that kind have them (`planner.execute.judge.predict`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.costs.operators import kernels
from planner.costs.operators.recompute import SUFFIX, held
from planner.costs.rates.pricer import Pricer
from planner.costs.training.config import FRAMEWORKS, Precision, TrainingConfig, machine_of
from planner.costs.training.kernels import FORWARD
from planner.costs.training.layer_costs import EXCHANGES, kernel_seconds
from planner.costs.training.rates import Rates
from planner.costs.training.stages import StagePart
from planner.costs.training.step import message_seconds, part_shard
from planner.execute.judge.predict import BACKWARD, OperatorTime, context_tokens, row_name
from planner.execute.shards.cases import StepCase
from planner.execute.shards.spec import RankSpec, StageSpec
from planner.hardware.cluster import Pool
from planner.models.architecture import Architecture, Layer
from planner.plan.records import PlanDocument

EAGER = FRAMEWORKS["torchtitan_eager"]  # what `planner.execute.model` is: kernels of PyTorch, nothing fused
EXCHANGE, REST = "exchange", "passes"
_KIND_OF: dict[type[kernels.Operator], str] = {
    kernels.Gemm: "gemm",
    kernels.BatchedGemm: "bmm",
    kernels.Experts: "experts",
    kernels.PrefillAttention: "attention",
    kernels.DecodeAttention: "attention",
    kernels.AttentionBackward: "attention",
    kernels.Recurrence: "scan",
    kernels.Scores: "scores",
    kernels.MemoryPass: REST,
    kernels.Collective: EXCHANGE,
}
_KIND_OF_KERNEL = {"unaligned": "gemm", "attention_backward": "attention"}
Key = tuple[str, str]
"""What is executed together: "", BACKWARD or SUFFIX, and the kind of kernel."""


@dataclass(frozen=True, slots=True)
class TrainedShards:
    """What prices the training steps of a role: its model on its pool, at the rates that chose the plan."""

    arch: Architecture
    pool: Pool
    rates: Rates
    precision: Precision
    overlap: frozenset[str]
    sequence_parallel: bool

    @classmethod
    def of(cls, plan: PlanDocument, arch: Architecture, pool: Pool, rates: Rates) -> "TrainedShards":
        """Of a role of this plan; kinds that decide nothing about it train in bf16 with Megatron-LM's overlaps."""
        known = plan.extra
        overlap = known.get("overlap", ("grad_reduce", "param_gather", "p2p"))
        precision: Precision = known.get("precision", "bf16")
        return cls(arch, pool, rates, precision, frozenset(overlap), bool(known.get("sequence_parallel", True)))

    def config(self, rank: RankSpec, case: StepCase, plain: Sequence[str]) -> TrainingConfig:
        """What a layer's costs hang on; formats `plain` ran in bf16."""
        shape, node = rank.parallelism, self.pool.node
        network = node.nic_bandwidth_bytes_per_s / self.pool.oversubscription
        return TrainingConfig(
            arch=self.arch,
            machine=machine_of(replace(node, nic_bandwidth_bytes_per_s=network)),
            sequence_tokens=context_tokens(case, rank),
            global_batch=case.prefill_sequences * shape.dp,
            micro_batch=case.prefill_sequences,
            tp=shape.tp,
            pp=shape.pp,
            cp=shape.cp,
            ep=shape.ep,
            etp=shape.moe_tp,
            dp=shape.dp,
            precision="bf16" if self.precision in plain else self.precision,
            overlap=self.overlap,
            framework=replace(EAGER, sequence_parallel=self.sequence_parallel),
        )

    def message_s(self, rank: RankSpec, case: StepCase, plain: Sequence[str]) -> float:
        """One hand-over between neighbouring stages."""
        return message_seconds(self.config(rank, case, plain), self.rates)

    def seconds(self, rank: RankSpec, case: StepCase, plain: Sequence[str] = ()) -> dict[Key, float]:
        """Seconds of one micro-batch on this rank."""
        config, total = self.config(rank, case, plain), dict[Key, float]()
        for stage in rank.stages:
            for part, again in _parts(self.arch, stage):
                for key, seconds in self._of_part(config, part, again):
                    total[key] = total.get(key, 0.0) + seconds
        return total

    def _of_part(self, config: TrainingConfig, part: StagePart, modules: Sequence[str]) -> Iterator[tuple[Key, float]]:
        """Seconds of equal layers, or of an end of the model, by pass and kind of kernel."""
        shard = part_shard(config, part.part, part.layer)
        priced = (part.part, config.machine, shard, config.arch.vocab_size, self.rates, part.layer)
        table, second_K = kernel_seconds(*priced)
        again = held(modules)
        for kind, passed, module, seconds in zip(
            table.kinds, table.part_K, table.modules, second_K.tolist(), strict=True
        ):
            first = kind.split(".")[0]
            name = EXCHANGE if kind in EXCHANGES else _KIND_OF_KERNEL.get(first, first)
            name = name if name in _KIND_OF.values() else REST
            yield ("" if passed == FORWARD else BACKWARD, name), part.count * seconds
            if passed == FORWARD and (part.full or module in again):
                yield (SUFFIX, name), (part.full or part.count) * seconds


def _parts(arch: Architecture, stage: StageSpec) -> Iterator[tuple[StagePart, tuple[str, ...]]]:
    """What a stage holds, and which modules of it are computed again."""
    layers, whole = [arch.layers[layer] for layer in stage.layers], stage.recompute.num_layers
    counts: dict[Layer, tuple[int, int]] = {}
    for place, layer in enumerate(layers):
        count, full = counts.get(layer, (0, 0))
        counts[layer] = count + 1, full + (place < whole)
    for layer, (count, full) in counts.items():
        yield StagePart("layer", layer, count, full), stage.recompute.modules
    if stage.embeds:
        yield StagePart("embedding", None), ()
    if stage.yields_logits:
        yield StagePart("loss", None), ()


def predict_training(
    operators: Sequence[kernels.Operator], pricer: Pricer, seconds: Mapping[Key, float]
) -> dict[str, OperatorTime]:
    """Seconds and runs by name, which add up to `seconds`.

    Exchanges of a pass without a collective stand under a name of their own; other kernels of a kind that no operator
    is of are shared out over all operators of the pass.
    """
    kernel_s: dict[str, OperatorTime] = {}
    key_of: dict[str, Key] = {}
    for op in operators:
        name, count = row_name(op.name), float(np.asarray(op.count).reshape(-1)[0])
        before = kernel_s.get(name, OperatorTime(0.0, 0.0))
        runs = before.count + count if name == op.name else max(before.count, count)
        kernel_s[name] = OperatorTime(before.seconds + float(pricer.price(op).seconds[0]) * count, runs)
        key_of.setdefault(name, (_pass_of(name), _KIND_OF.get(type(op), REST)))
    priced = {name: time for name, time in kernel_s.items() if time.count > 0}
    shares = dict.fromkeys(priced, 0.0)
    for key, whole_s in seconds.items():
        alike = [name for name in priced if key_of[name] == key and priced[name].seconds > 0]
        if not alike and key[1] != EXCHANGE:
            alike = [n for n in priced if key_of[n][0] == key[0] and key_of[n][1] != EXCHANGE and priced[n].seconds > 0]
        if not alike:
            shares[f"{key[1]}{key[0]}"] = shares.get(f"{key[1]}{key[0]}", 0.0) + whole_s
            continue
        total_s = sum(priced[name].seconds for name in alike)
        for name in alike:
            shares[name] += whole_s * priced[name].seconds / total_s
    ones = OperatorTime(0.0, 1.0)
    return {name: OperatorTime(share, priced.get(name, ones).count) for name, share in shares.items()}


def _pass_of(name: str) -> str:
    return next((ending for ending in (BACKWARD, SUFFIX) if name.endswith(ending)), "")
