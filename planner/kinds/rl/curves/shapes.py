"""Shapes in which a model is trained in RL: degrees and stages that launchers can be told, at the lengths of a job."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.costs.training.config import MEGATRON, TrainingConfig, machine_of
from planner.hardware.cluster import Pool
from planner.kinds.rl.curves.generation import splits
from planner.kinds.rl.refusals.launcher import launcher_of
from planner.kinds.rl.setting import RlSetting
from planner.models.architecture import Architecture, MoeFfn
from planner.rl.trajectories import SampleBatch

PIPELINES, CONTEXTS, EXPERTS = (1, 2, 4, 8, 16), (1, 2, 4), (1, 4, 8, 16, 32)
"""Degrees pp, cp and ep that are tried where none are asked for."""
LAUNCHED = replace(MEGATRON, forwarded_experts=False, fused_dispatch=True, reduce_bytes=4.0)
"""Megatron-Core as RL launchers start it: experts by plain all-to-all (the default of verl, NeMo-RL and AReaL, and of
slime's scripts/models), permutations in one kernel, and gradients added up in fp32 without overlap (verl's
verl/utils/megatron_utils.py, AReaL's areal/api/cli_args.py, Megatron-LM's flags in slime); a launcher that the problem
names may keep them in bf16."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of whole samples: the longest that a job may get, and the one that the mean token lives in, E[n^2] / E[n]."""

    longest: int
    typical: int

    @classmethod
    def of(cls, batches: Sequence[SampleBatch], longest: int) -> "Lengths":
        total = np.concatenate([batch.tokens_N for batch in batches]).astype(float)
        return cls(longest, max(1, min(longest, round(float((total**2).sum() / total.sum())))))


def configs(
    arch: Architecture, setting: RlSetting, pool: Pool, lengths: Lengths
) -> Iterator[tuple[TrainingConfig, int]]:
    """Configurations with one data-parallel rank, and how many ranks make a replica."""
    machine, options = machine_of(pool.node), setting.options
    launcher = launcher_of(options)
    width = LAUNCHED.gradient_bytes if launcher is None else launcher.gradient_bytes
    framework = replace(LAUNCHED, gradient_bytes=width, reduce_bytes=width)
    node = max(pool.node.num_gpus, 1)
    experts = max((layer.ffn.num_experts for layer in arch.layers if isinstance(layer.ffn, MoeFfn)), default=1)
    typical = float(lengths.typical) if lengths.typical < lengths.longest else 0.0
    spread = options.training_ep or ((1,) if experts == 1 else EXPERTS)
    for tp in options.training_tp or tuple(1 << power for power in range(node.bit_length())):
        for pp in options.training_pp or PIPELINES:
            for cp in options.training_cp or CONTEXTS:
                for ep in spread:
                    inner = max(1, ep // (tp * cp))
                    fits = tp * pp * cp * inner <= pool.num_gpus and tp <= node
                    whole = ep % (tp * cp) == 0 or (tp * cp) % ep == 0
                    stages = stages_of(arch.num_layers, pp)
                    if not fits or not whole or not splits(arch, tp, 1, ep) or lengths.typical < 2 * cp or not stages:
                        continue
                    yield (
                        TrainingConfig(
                            arch, machine, lengths.longest, 1, 1, tp=tp, pp=pp, cp=cp, ep=ep,
                            framework=framework, overlap=frozenset(), document_tokens=typical,
                            layers_of_stage=stages,
                        ),
                        inner,
                    )  # fmt: skip


def stages_of(num_layers: int, pp: int) -> tuple[int, ...]:
    """Layers of each stage as launchers can be told them: as many in all, or fewer in the first and the last.

    Empty where that cannot be: Megatron-Core knows `num_layers_in_first_pipeline_stage` and its like for the last, and
    all stages between the two have equally many.
    """
    each = -(-num_layers // pp)
    if each * pp == num_layers:
        return (each,) * pp
    ends = num_layers - each * (pp - 2)
    return (ends - ends // 2, *[each] * (pp - 2), ends // 2) if ends > 1 else ()


def with_dp(config: TrainingConfig, ranks: int) -> TrainingConfig:
    """`ranks` data-parallel ranks, with as many micro-batches in flight as the pipeline takes."""
    return replace(config, dp=ranks, global_batch=config.micro_batch * ranks * max(config.pp, 1))
