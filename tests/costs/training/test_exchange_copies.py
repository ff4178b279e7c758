"""What tells the ways to shard weights apart: Megatron's distributed optimizer, Megatron-FSDP, FSDP2, FSDP."""

from dataclasses import replace

import pytest

from planner.costs.training.config import FRAMEWORKS, TrainingConfig, machine_of
from planner.costs.training.parameters import Parameters
from planner.costs.training.rates import default_rates
from planner.costs.training.step import data_parallel, step_time
from planner.costs.training.volumes import data_parallel_volume
from planner.hardware.library import find_node
from planner.models.library import find_model

MACHINE, HELD = machine_of(find_node("h100_sxm")), Parameters(1e9, 0.0)
LLAMA = find_model("meta-llama/Llama-3.1-8B")


def config(code: str, stage: int = 3) -> TrainingConfig:
    return TrainingConfig(LLAMA, MACHINE, 4096, 32, 1, dp=8, zero_stage=stage, framework=FRAMEWORKS[code])


def test_fsdp2_copies_what_it_gathers_and_reduces_and_others_do_not() -> None:
    volume = data_parallel_volume(config("torchtitan"), HELD)
    rate = MACHINE.memory_bandwidth_bytes_per_s
    assert volume.gather_copy_s == pytest.approx(1e9 * 4.0 / rate)  # 2 bytes read and 2 written
    assert volume.reduce_copy_s == pytest.approx(1e9 * 6.0 / rate)  # 2 read and 4 written, in fp32
    for code, stage in (("megatron", 3), ("fsdp", 3), ("torchtitan", 0)):
        other = data_parallel_volume(config(code, stage), HELD)
        assert (other.gather_copy_s, other.reduce_copy_s) == (0.0, 0.0)


def test_copies_are_part_of_their_exchange_and_of_the_step() -> None:
    copied = config("torchtitan")
    in_place = replace(copied, framework=replace(copied.framework, exchange_copies=False))
    rates = default_rates()
    more, less = (data_parallel(each, HELD, rates) for each in (copied, in_place))
    assert more.gather_s - less.gather_s == pytest.approx(
        data_parallel_volume(copied, HELD).gather_copy_s / rates.get("move.elementwise", "hopper")
    )
    assert step_time(copied).step_s > step_time(in_place).step_s


def test_a_distributed_optimizer_exchanges_once_a_step_and_fsdp_for_every_micro_batch() -> None:
    once, each = (
        [step_time(replace(config("megatron", stage), global_batch=batch)).step_s for batch in (32, 64)]
        for stage in (1, 3)
    )
    assert once[1] - once[0] < each[1] - each[0]
