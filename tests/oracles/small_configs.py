"""What the config.json of small models says, by the folder that holds it."""

from typing import Any

_COMMON = {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "intermediate_size": 3072,
}
_ROUTED = {"num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "decoder_sparse_step": 1}
_DENSE = {f"dense-{n}": {"model_type": "qwen3", "num_hidden_layers": n, **_COMMON} for n in (8, 12)}
_SPARSE = {
    f"experts-{width}": {"model_type": "qwen3_moe", "moe_intermediate_size": width, **_ROUTED, **_COMMON}
    for width in (512, 768)
}
SMALL_CONFIGS: dict[str, dict[str, Any]] = _DENSE | _SPARSE
