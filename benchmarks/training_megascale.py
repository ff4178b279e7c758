"""MegaScale's ablation on 256 GPUs and its run on 12,288, step by step, each step a switch of the cost model.

Published figures: Jiang et al., "MegaScale", NSDI 2024, tables 1 to 3 and section 6.1 (175B parameters, 96 layers of
width 12,288 with 128 heads, TP 8, PP 8, six chunks a rank, 2,048 tokens, vocabulary 64,000, ZeRO 2, A100s with one
200 Gb/s adapter each). A pipeline adds gradients up whole and scatters them once a step, which is ZeRO 1 here. Its MFU
counts causal attention by half and the logits, 6 P + 6 L h s + 6 h V flop a token, which table 2 confirms to 0.1 %. Not
published are the width of the sliding window (taken as a quarter of the sequence) and what a read of a sample takes
(`host_idle.py`). No rate was fitted to these figures.

Run with: make bench-training, or .venv/bin/python benchmarks/training_megascale.py
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from host_idle import HostHabits, idle_s

from planner.costs.training.config import FRAMEWORKS, MEGATRON, TrainingConfig, machine_of
from planner.costs.training.rates import default_rates
from planner.costs.training.step import step_time
from planner.hardware.library import find_node
from planner.models.architecture import Architecture, GroupedQueryAttention
from planner.models.library import find_model

LAYERS, HIDDEN, HEADS, VOCABULARY, TOKENS = 96, 12288, 128, 64000, 2048
WINDOW_TOKENS = TOKENS // 4
PEAK_FLOP_PER_S = 312e12
FLOP_PER_TOKEN = 6.0 * (12.0 * LAYERS * HIDDEN**2 + LAYERS * HIDDEN * TOKENS + HIDDEN * VOCABULARY)
END_POINTS, STEP_POINTS = 3.0, 2.0  # how far ends and steps may be off


@dataclass(frozen=True)
class Step:
    """One row of the ladder."""

    name: str
    published: float  # MFU in percent
    config: TrainingConfig
    habits: HostHabits

    @property
    def mfu(self) -> float:
        """Predicted, in percent."""
        rates = default_rates()
        seconds = step_time(self.config, rates).step_s + idle_s(self.config, self.habits, rates)
        flop = FLOP_PER_TOKEN * self.config.global_batch * TOKENS
        return 100.0 * flop / (seconds * self.config.num_gpus * PEAK_FLOP_PER_S)


def model(window_tokens: int = 0) -> Architecture:
    """GPT-3's shape with MegaScale's heads and vocabulary."""
    gpt = find_model("openai/gpt-3-175b")
    mixer = gpt.layers[0].mixer
    assert isinstance(mixer, GroupedQueryAttention)
    head = HIDDEN // HEADS
    mixer = replace(
        mixer, num_heads=HEADS, num_kv_heads=HEADS, head_dim=head, v_head_dim=head, window_tokens=window_tokens
    )
    return replace(gpt, vocab_size=VOCABULARY, layers=tuple(replace(layer, mixer=mixer) for layer in gpt.layers))


def ladder() -> Iterator[Step]:
    """From Megatron-LM as MegaScale found it to its largest run.

    The baseline is the code of 2021 with what Megatron-LM had added by then: sequence parallelism and a fused attention
    kernel of FlashAttention's first generation.
    """
    baseline = replace(
        FRAMEWORKS["megatron_2021"],
        name="megatron_2022",
        attention="triton",
        sequence_parallel=True,
        fused=False,
        logit_bytes=MEGATRON.logit_bytes,
    )
    config = TrainingConfig(
        model(), machine_of(find_node("a100_sxm")), TOKENS, 256, 1, tp=8, pp=8, vpp=6, dp=4,
        zero_stage=1, schedule="interleaved", overlap=frozenset(), framework=baseline,
    )  # fmt: skip
    habits = HostHabits(loaders_per_node=8, blocking_hand_overs=True)
    yield Step("Megatron-LM", 47.7, config, habits)
    config = replace(config, framework=replace(config.framework, parallel_block=True))
    yield Step("parallel transformer block", 52.3, config, habits)
    config = replace(config, arch=model(WINDOW_TOKENS))
    yield Step("sliding-window attention", 53.3, config, habits)
    config = replace(config, overlap=frozenset({"tp_comm"}))
    yield Step("overlap of tensor parallelism", 55.5, config, habits)
    config, habits = replace(config, overlap=config.overlap | {"p2p"}), replace(habits, blocking_hand_overs=False)
    yield Step("overlap of the pipeline", 58.0, config, habits)
    config = replace(config, overlap=config.overlap | {"grad_reduce", "param_gather"})
    yield Step("overlap of data parallelism", 59.5, config, habits)
    operators = replace(config.framework, attention="flash", fused=True, host="eager")
    config = replace(config, framework=operators)
    yield Step("efficient operators", 61.2, config, habits)
    habits = HostHabits()
    yield Step("data pipeline", 62.3, config, habits)
    config = replace(config, global_batch=768)
    yield Step("LAMB with three times the batch", 65.3, config, habits)
    yield Step("12,288 GPUs, batch 6,144", 55.2, replace(config, dp=192, global_batch=6144), habits)


def main() -> int:
    """Prints the ladder; 1 where a target is missed."""
    steps = list(ladder())
    print(f"{'step':34}{'published':>10}{'predicted':>10}{'off by':>8}{'gain published':>16}{'gain predicted':>16}")
    missed = []
    for index, step in enumerate(steps):
        off = step.mfu - step.published
        first, last = index == 0, index == len(steps) - 1
        gains = "" if first or last else _gains(steps[index - 1], step)
        print(f"{step.name:34}{step.published:>9.1f}%{step.mfu:>9.1f}%{off:>+8.1f}{gains}")
        if abs(off) > (END_POINTS if first or index >= len(steps) - 2 else STEP_POINTS):
            missed.append(f"`{step.name}` is {abs(off):.1f} points off")
    rungs = [step.mfu for step in steps[:-1]]
    if rungs != sorted(rungs):
        missed.append("a step lowers the MFU")
    _trivial(steps)
    print("missed: " + "; ".join(missed) if missed else "all targets met")
    return 1 if missed else 0


def _gains(before: Step, step: Step) -> str:
    return f"{step.published - before.published:>+16.1f}{step.mfu - before.mfu:>+16.1f}"


def _trivial(steps: list[Step]) -> None:
    """The best that one MFU for every row does: their median."""
    published = sorted(step.published for step in steps)
    middle = published[len(published) // 2]
    ours = sum(abs(step.mfu - step.published) for step in steps) / len(steps)
    theirs = sum(abs(middle - value) for value in published) / len(published)
    print(f"mean error {ours:.2f} points; one MFU for all ({middle:.1f} %): {theirs:.2f} points")


if __name__ == "__main__":
    sys.exit(main())
