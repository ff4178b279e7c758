"""LoRA adapters: sizes that others print, laws, and refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.models.adapters import (
    ATTENTION,
    DENSE_FFN,
    LoraAdapter,
    adapter_parameters,
    adapter_tensors,
    targets_of,
)
from planner.models.library import find_model

ALL_LINEAR = (*ATTENTION, *DENSE_FFN)

# (model, rank, targets, elements as printed, source)
PUBLISHED = [
    ("Llama-2-7b-hf", 8, ("q_proj", "v_proj"), 4_194_304, "print_trainable_parameters of peft for Llama-7B"),
    ("Llama-2-7b-hf", 64, ALL_LINEAR, 159_907_840, "print_trainable_parameters of peft with QLoRA's default rank"),
    ("Llama-2-7b-hf", 16, ALL_LINEAR, 39_976_960, "print_trainable_parameters of peft"),
    ("Llama-3.1-8B", 16, ALL_LINEAR, 41_943_040, "trainable parameters printed by unsloth for Llama-3.1-8B"),
    ("Mistral-7B-v0.1", 16, ALL_LINEAR, 41_943_040, "trainable parameters printed by unsloth for Mistral-7B"),
]


@pytest.mark.parametrize(("model", "rank", "targets", "elements", "source"), PUBLISHED)
def test_adapters_have_the_elements_that_tools_print(
    model: str, rank: int, targets: tuple[str, ...], elements: int, source: str
) -> None:
    assert adapter_parameters(LoraAdapter("a", rank, targets), find_model(model)) == elements, source


def test_gpt_3_adapters_have_the_sizes_of_the_lora_paper() -> None:
    # arXiv:2106.09685, table 4: 4.7M and 37.7M trainable parameters.
    sizes = {"4.7M": 1, "37.7M": 8}
    for figure, rank in sizes.items():
        elements = adapter_parameters(LoraAdapter("a", rank, ("q_proj", "v_proj")), find_model("gpt-3-175b"))
        assert f"{elements / 1e6:.1f}M" == figure


def test_every_expert_has_a_pair_of_its_own() -> None:
    arch, adapter = find_model("Qwen3-30B-A3B"), LoraAdapter("a", 4, ("up_proj",))
    assert adapter_parameters(adapter, arch) == 48 * 128 * 4 * (2048 + 768)
    assert {tensor.split for tensor in adapter_tensors(adapter, arch)} == {"experts"}


def test_the_factor_at_the_sharded_side_of_a_matrix_is_sharded() -> None:
    splits = {
        tensor.name.partition(".")[2].partition(".")[2]: tensor.split
        for tensor in adapter_tensors(LoraAdapter("a", 4, ALL_LINEAR), find_model("Llama-3.1-8B"))
    }
    assert (splits["q_proj.lora_a"], splits["q_proj.lora_b"]) == ("replicated", "heads")
    assert (splits["k_proj.lora_a"], splits["k_proj.lora_b"]) == ("replicated", "kv_heads")
    assert (splits["o_proj.lora_a"], splits["o_proj.lora_b"]) == ("heads", "replicated")
    assert (splits["mlp.down_proj.lora_a"], splits["mlp.down_proj.lora_b"]) == ("ffn", "replicated")


@given(rank=st.integers(1, 256), more=st.integers(1, 8), tp=st.sampled_from([1, 2, 4, 8]))
def test_parameters_are_linear_in_rank_and_shards_hold_no_less_than_their_share(rank: int, more: int, tp: int) -> None:
    arch = find_model("Llama-3.2-1B")
    divisors = {"replicated": 1.0, "heads": float(tp), "kv_heads": float(tp), "ffn": float(tp)}
    whole = adapter_parameters(LoraAdapter("a", rank, ATTENTION), arch)
    assert adapter_parameters(LoraAdapter("a", rank * more, ATTENTION), arch) == whole * more
    assert whole / tp <= adapter_parameters(LoraAdapter("a", rank, ATTENTION), arch, divisors) <= whole


def test_latent_attention_is_changed_by_its_own_names() -> None:
    assert {"q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj", "o_proj"} <= set(targets_of(find_model("DeepSeek-V3")))


def test_what_cannot_be_an_adapter_is_refused_with_the_way_out() -> None:
    with pytest.raises(PlannerError, match="no matrix `q_prj`") as caught:
        adapter_parameters(LoraAdapter("a", 8, ("q_prj",)), find_model("Llama-3.1-8B"))
    assert "`q_proj`" in caught.value.hint
    with pytest.raises(PlannerError, match="rank of adapter `a` must be above zero"):
        LoraAdapter("a", 0, ATTENTION)
