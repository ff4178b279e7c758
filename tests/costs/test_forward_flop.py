"""The forward pass against parameter counts: every weight that multiplies does so once a token."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from planner.costs.operators.forward import forward
from planner.costs.operators.kernels import (
    BatchedGemm,
    Collective,
    DecodeAttention,
    Experts,
    Gemm,
    Operator,
    PrefillAttention,
    Scores,
    demand,
)
from planner.costs.operators.work import Shards, Work
from planner.errors import PlannerError
from planner.models.architecture import Architecture, DenseFfn, Layer, MoeFfn, UnsupportedMixer
from planner.models.library import find_model
from planner.models.parameters import parameter_counts

TOKENS = 64.0
DENSE = ("meta-llama/Meta-Llama-3.1-8B", "Qwen/Qwen3-32B", "facebook/opt-13b", "Qwen/Qwen2.5-7B")
MOE = ("mistralai/Mixtral-8x7B-v0.1", "Qwen/Qwen3-235B-A22B", "openai/gpt-oss-120b", "MiniMaxAI/MiniMax-M2")
LATENT = ("deepseek-ai/DeepSeek-V3", "moonshotai/Kimi-K2-Instruct")
SPARSE = ("deepseek-ai/DeepSeek-V3.2", "zai-org/GLM-5")
OTHERS = ("Qwen/Qwen3.5-397B-A17B", "google/gemma-4-26B-A4B", "meta-llama/Llama-4-Scout-17B-16E-Instruct")


def products_flop(operators: Sequence[Operator]) -> float:
    """Operations of all products with weights."""
    products = [op for op in operators if isinstance(op, (Gemm, BatchedGemm, Experts))]
    return sum(float((demand(op).flop * op.count)[0]) for op in products)


def multiplying_parameters(arch: Architecture) -> float:
    """Active parameters without an embedding that is looked up and without learned positions."""
    counts = parameter_counts(arch)
    looked_up = arch.position_embeddings * arch.hidden_size
    return float(counts.active_without_embedding - looked_up)


@pytest.mark.parametrize("name", [*DENSE, *MOE, *LATENT, *SPARSE, *OTHERS])
def test_decoding_does_two_operations_a_token_with_every_active_parameter(name: str) -> None:
    arch = find_model(name)
    operators = forward(arch, Shards.of(1), Work.decode(TOKENS, 100.0))
    assert products_flop(operators) == pytest.approx(2 * multiplying_parameters(arch) * TOKENS, rel=0.005)


@pytest.mark.parametrize("name", [*DENSE, *MOE, *LATENT, *SPARSE, *OTHERS])
def test_prefill_of_one_token_sequences_does_the_same_operations(name: str) -> None:
    arch = find_model(name)
    operators = forward(arch, Shards.of(1), Work.prefill(TOKENS, 0.0, TOKENS))
    assert products_flop(operators) == pytest.approx(2 * multiplying_parameters(arch) * TOKENS, rel=0.005)


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("name", DENSE[:3])
def test_tensor_parallel_ranks_share_the_operations_of_a_dense_model(name: str, tp: int) -> None:
    work = Work.decode(TOKENS, 100.0)
    arch = find_model(name)
    whole = products_flop(forward(arch, Shards.of(1), work))
    assert tp * products_flop(forward(arch, Shards.of(tp), work)) == pytest.approx(whole, rel=1e-9)


def test_ranks_beyond_the_kv_heads_repeat_them() -> None:
    arch, work = find_model("meta-llama/Meta-Llama-3.1-8B"), Work.decode(TOKENS, 100.0)
    whole = products_flop(forward(arch, Shards.of(1), work))
    repeated = 2 * TOKENS * 32 * (16 - 8) * 2 * 128 * 4096  # layers, ranks with a copy, keys and values
    assert 16 * products_flop(forward(arch, Shards.of(16), work)) == pytest.approx(whole + repeated, rel=1e-9)


@pytest.mark.parametrize(("tp", "dp", "moe_tp", "ep"), [(8, 1, 1, 8), (1, 8, 1, 8), (2, 4, 2, 4), (1, 8, 8, 1)])
def test_all_ranks_together_run_every_routed_token_once(tp: int, dp: int, moe_tp: int, ep: int) -> None:
    arch, per_rank = find_model("Qwen/Qwen3-235B-A22B"), 16.0
    operators = forward(arch, Shards.of(tp, 1, dp, moe_tp, ep), Work.decode(per_rank, 100.0))
    routed = sum(float((demand(op).flop * op.count)[0]) for op in operators if isinstance(op, Experts))
    assert routed * tp * dp == pytest.approx(94 * per_rank * dp * 8 * 3 * 2 * 4096 * 1536)


def test_only_sampled_tokens_have_logits() -> None:
    arch = find_model("meta-llama/Meta-Llama-3.1-8B")
    operators = forward(arch, Shards.of(1), Work.of(500.0, 2.0, 0.0, 30.0, 100.0))
    logits = next(op for op in operators if op.name == "logits")
    assert isinstance(logits, Gemm)
    assert logits.m.tolist() == [32.0]


def _attention(arch: Architecture, work: Work, kind: type[Operator]) -> list[Operator]:
    return [op for op in forward(arch, Shards.of(1), work) if isinstance(op, kind)]


def test_a_mixed_step_runs_both_attentions_over_the_layers_of_the_model() -> None:
    arch, work = find_model("meta-llama/Meta-Llama-3.1-8B"), Work.of(512.0, 2.0, 100.0, 30.0, 1000.0)
    (prefill,), (decode,) = _attention(arch, work, PrefillAttention), _attention(arch, work, DecodeAttention)
    assert isinstance(prefill, PrefillAttention)
    assert isinstance(decode, DecodeAttention)
    assert (prefill.count, decode.count) == (32.0, 32.0)
    assert (prefill.sequences[0], prefill.new_tokens[0], prefill.context[0]) == (2.0, 256.0, 100.0)
    assert (decode.sequences[0], decode.context[0], decode.heads[0], decode.kv_heads[0]) == (30.0, 1000.0, 32.0, 8.0)


def test_windowed_layers_are_apart_from_full_ones() -> None:
    arch = find_model("openai/gpt-oss-120b")
    operators = _attention(arch, Work.decode(8.0, 4096.0), DecodeAttention)
    windows = {op.window: op.count for op in operators if isinstance(op, DecodeAttention)}
    assert windows == {0: 18.0, 128: 18.0}


def test_sparse_attention_reads_the_selected_tokens_and_scores_all() -> None:
    arch = find_model("deepseek-ai/DeepSeek-V3.2")
    operators = forward(arch, Shards.of(1), Work.decode(8.0, 50_000.0))
    attention = next(op for op in operators if isinstance(op, DecodeAttention))
    scores = next(op for op in operators if isinstance(op, Scores))
    assert attention.context.tolist() == [2048.0]
    assert scores.pairs.tolist() == [8 * 50_000.0]


def test_sparse_prefill_attends_to_the_mean_of_what_its_tokens_may_select() -> None:
    arch = find_model("deepseek-ai/DeepSeek-V3.2")
    operators = _attention(arch, Work.prefill(4096.0), DecodeAttention)
    counted = np.mean([min(position + 1, 2048) for position in range(4096)])
    assert {float(op.context[0]) for op in operators if isinstance(op, DecodeAttention)} == {float(counted)}


@pytest.mark.parametrize(("num_experts", "top_k", "ep"), [(8, 2, 8), (256, 8, 8), (128, 8, 32), (256, 8, 256)])
def test_a_token_is_sent_to_as_many_ranks_as_drawing_its_experts_gives(num_experts: int, top_k: int, ep: int) -> None:
    arch = find_model("Qwen/Qwen3-235B-A22B")
    layer = arch.layers[0]
    assert isinstance(layer.ffn, MoeFfn)
    ffn = replace(layer.ffn, num_experts=num_experts, top_k=top_k)
    operators = forward(
        replace(arch, layers=(replace(layer, ffn=ffn),)), Shards.of(1, 1, ep, 1, ep), Work.decode(10.0, 100.0)
    )
    combine = next(op for op in operators if op.name == "combine")
    assert isinstance(combine, Collective)
    rng = np.random.default_rng(0)
    ranks = rng.random((20_000, num_experts)).argsort(axis=-1)[:, :top_k] // (num_experts // ep)
    drawn = np.mean([len(np.unique(row)) for row in ranks])
    assert combine.size_bytes[0] / (10 * 4096 * 2) == pytest.approx(drawn, rel=0.01)


def test_experts_under_tensor_parallel_attention_end_in_one_all_reduce() -> None:
    operators = forward(find_model("Qwen/Qwen3-235B-A22B"), Shards.of(8, 1, 1, 2, 4), Work.decode(10.0, 100.0))
    names = {op.name: op for op in operators if isinstance(op, Collective)}
    assert {"attention_all_reduce", "moe_all_reduce"} <= set(names)
    assert not {"dispatch", "combine", "moe_all_gather_tokens"} & set(names)
    assert names["moe_all_reduce"].size_bytes.tolist() == [10 * 4096 * 2]


def test_tensor_parallel_experts_under_data_parallel_attention_gather_and_scatter() -> None:
    operators = forward(find_model("Qwen/Qwen3-235B-A22B"), Shards.of(2, 1, 4, 8, 1), Work.decode(10.0, 100.0))
    exchanges = {op.kind: op for op in operators if isinstance(op, Collective) and op.name.startswith("moe_")}
    assert set(exchanges) == {"all_gather", "reduce_scatter"}
    assert exchanges["all_gather"].size_bytes.tolist() == [4 * 10 * 4096 * 2]
    assert (exchanges["all_gather"].group.tolist(), exchanges["all_gather"].stride.tolist()) == ([4.0], [2.0])


def test_stages_hand_over_once_at_each_boundary() -> None:
    operators = forward(find_model("meta-llama/Meta-Llama-3.1-8B"), Shards.of(2, 4), Work.prefill(100.0))
    handover = next(op for op in operators if op.name == "stage_handover")
    assert isinstance(handover, Collective)
    assert (np.ravel(handover.count).tolist(), handover.size_bytes.tolist()) == ([3.0], [100 * 4096 * 2])


def test_an_architecture_without_a_cost_model_is_refused_by_name() -> None:
    arch = find_model("meta-llama/Meta-Llama-3.1-8B")
    strange = replace(arch, layers=(Layer(UnsupportedMixer("retention", "it has no model"), DenseFfn(8)),))
    with pytest.raises(PlannerError, match="unsupported retention: it has no model"):
        forward(strange, Shards.of(1), Work.decode(1.0, 1.0))
