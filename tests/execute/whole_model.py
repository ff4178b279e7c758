"""The whole model on one device, written for reading: what every sharding must equal.

It shares the drawn tensors with the shards, and nothing else: no cache, no groups, dense masks,
and every expert for every token.
"""

import torch
from shared_weights import full_tensor
from torch import Tensor
from torch.nn import functional as F

from planner.models.architecture import Architecture, DenseFfn, GroupedQueryAttention, LatentAttention, Layer, MoeFfn

EPSILON = 1e-6  # of norms
ROTARY_BASE = 10000.0


class WholeModel:
    """An unsharded model; `tensors` are its leaves by name, each [outputs, inputs]."""

    def __init__(self, arch: Architecture) -> None:
        self.arch = arch
        self.tensors: dict[str, Tensor] = {}

    def __call__(self, tokens: Tensor) -> Tensor:
        """Logits [sequences, tokens, vocabulary] of tokens [sequences, tokens]."""
        arch = self.arch
        x = self.weight("embedding", arch.vocab_size, arch.hidden_size)[tokens]
        if arch.position_embeddings:
            x = x + self.weight("positions", arch.position_embeddings, arch.hidden_size)[: tokens.shape[1]]
        for index, layer in enumerate(arch.layers):
            x = self._layer(x, layer, f"layers.{index}.")
        if arch.final_norm:
            x = self._norm(x, "final_norm")
        name = "embedding" if arch.tied_embeddings else "lm_head"
        return x @ self.weight(name, arch.vocab_size, arch.hidden_size).t()

    def weight(self, name: str, outputs: int, inputs: int) -> Tensor:
        """The leaf called `name`, drawn on first use."""
        if name not in self.tensors:
            self.tensors[name] = full_tensor(self.arch.name, name, outputs, inputs).clone().requires_grad_()
        return self.tensors[name]

    def _linear(self, x: Tensor, name: str, outputs: int, *, bias: str = "") -> Tensor:
        out = x @ self.weight(name, outputs, x.shape[-1]).t()
        return out + self.weight(bias, 1, outputs)[0] if bias else out

    def _norm(self, x: Tensor, name: str) -> Tensor:
        width = x.shape[-1]
        weight = self.weight(name, 2 if self.arch.norm_bias else 1, width)
        if self.arch.norm_bias:
            centred = x - x.mean(-1, keepdim=True)
            scaled = centred / (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt()
            return scaled * weight[0] + weight[1]
        return _rms(x, weight[0])

    def _layer(self, x: Tensor, layer: Layer, prefix: str) -> Tensor:
        parts = [part for part in (layer.mixer, layer.ffn) if part is not None]
        each = layer.num_norms // len(parts)
        for index, part in enumerate(parts):
            out = self._part(self._norm(x, f"{prefix}norm_{each * index}"), part, prefix)
            x = x + (self._norm(out, f"{prefix}norm_{each * index + 1}") if each == 2 else out)
        return x

    def _part(self, x: Tensor, part: object, prefix: str) -> Tensor:
        match part:
            case GroupedQueryAttention():
                return self._grouped(x, part, prefix)
            case LatentAttention():
                return self._latent(x, part, prefix)
            case DenseFfn():
                return self._dense(x, f"{prefix}mlp", part.intermediate_size, gated=part.gated, bias=part.bias)
            case MoeFfn():
                return self._experts(x, part, prefix)
        raise TypeError(f"no reference of {type(part).__name__}")

    def _grouped(self, x: Tensor, mixer: GroupedQueryAttention, prefix: str) -> Tensor:
        heads, kv_heads, width, v_width = mixer.num_heads, mixer.num_kv_heads, mixer.head_dim, mixer.v_head_dim

        def projected(name: str, count: int, each: int) -> Tensor:
            bias = f"{prefix}{name}_bias" if mixer.qkv_bias else ""
            return self._linear(x, f"{prefix}{name}_proj", count * each, bias=bias).unflatten(-1, (count, each))

        query = projected("q", heads, width + (v_width if mixer.output_gate else 0))
        query, gate = query[..., :width], query[..., width:]
        key = projected("k", kv_heads, width)
        value = key if mixer.values_are_keys else projected("v", kv_heads, v_width)
        query, key = self._head_norm(query, mixer, f"{prefix}q_norm"), self._head_norm(key, mixer, f"{prefix}k_norm")
        query, key = _turned(query), _turned(key)
        key, value = (t.repeat_interleave(heads // kv_heads, dim=2) for t in (key, value))
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) * width**-0.5
        scores = scores.masked_fill(_hidden(x.shape[1], mixer.window_tokens, chunked=mixer.chunked), float("-inf"))
        if mixer.sinks:
            sink = self.weight(f"{prefix}sinks", 1, heads)[0][None, :, None, None]
            scores = torch.cat([scores, sink.expand(*scores.shape[:3], 1)], dim=-1)
        shares = scores.softmax(-1)[..., : x.shape[1]]
        out = torch.einsum("bhqk,bkhd->bqhd", shares, value)
        if mixer.output_gate:
            out = out * gate.sigmoid()
        bias = f"{prefix}o_bias" if mixer.output_bias else ""
        return self._linear(out.flatten(2), f"{prefix}o_proj", self.arch.hidden_size, bias=bias)

    def _head_norm(self, heads: Tensor, mixer: GroupedQueryAttention, name: str) -> Tensor:
        if mixer.qk_norm_full:
            flat = heads.flatten(-2)
            return _rms(flat, self.weight(name, 1, flat.shape[-1])[0]).view_as(heads)
        return _rms(heads, self.weight(name, 1, mixer.head_dim)[0]) if mixer.qk_norm else heads

    def _latent(self, x: Tensor, mixer: LatentAttention, prefix: str) -> Tensor:
        heads, plain, turning = mixer.num_heads, mixer.qk_nope_head_dim, mixer.qk_rope_head_dim
        narrow = x
        if mixer.q_lora_rank:
            narrow = self._linear(x, f"{prefix}q_a_proj", mixer.q_lora_rank)
            narrow = _rms(narrow, self.weight(f"{prefix}q_a_norm", 1, mixer.q_lora_rank)[0])
        name = "q_b_proj" if mixer.q_lora_rank else "q_proj"
        query = self._linear(narrow, f"{prefix}{name}", heads * (plain + turning)).unflatten(-1, (heads, -1))
        down = self._linear(x, f"{prefix}kv_a_proj", mixer.kv_lora_rank + turning)
        latent = _rms(down[..., : mixer.kv_lora_rank], self.weight(f"{prefix}kv_a_norm", 1, mixer.kv_lora_rank)[0])
        shared = _turned(down[..., None, mixer.kv_lora_rank :])
        up = self._linear(latent, f"{prefix}kv_b_proj", heads * (plain + mixer.v_head_dim)).unflatten(-1, (heads, -1))
        query = torch.cat([query[..., :plain], _turned(query[..., plain:])], dim=-1)
        key = torch.cat([up[..., :plain], shared.expand(-1, -1, heads, -1)], dim=-1)
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) * (plain + turning) ** -0.5
        shares = scores.masked_fill(_hidden(x.shape[1], 0, chunked=False), float("-inf")).softmax(-1)
        out = torch.einsum("bhqk,bkhd->bqhd", shares, up[..., plain:]).flatten(2)
        if mixer.output_gate:
            out = out * self._linear(x, f"{prefix}gate_proj", out.shape[-1]).sigmoid()
        return self._linear(out, f"{prefix}o_proj", self.arch.hidden_size)

    def _dense(self, x: Tensor, name: str, size: int, *, gated: bool, bias: bool = False) -> Tensor:
        def up(part: str) -> Tensor:
            return self._linear(x, f"{name}.{part}_proj", size, bias=f"{name}.{part}_bias" if bias else "")

        inner = F.silu(up("gate")) * up("up") if gated else F.gelu(up("up"))
        return self._linear(inner, f"{name}.down_proj", x.shape[-1], bias=f"{name}.down_bias" if bias else "")

    def _experts(self, x: Tensor, ffn: MoeFfn, prefix: str) -> Tensor:
        shares = self._routed(x, ffn, prefix)
        narrow = self._linear(x, f"{prefix}latent_down_proj", ffn.latent_size) if ffn.latent_size else x
        if ffn.latent_norm:
            narrow = self._norm(narrow, f"{prefix}latent_norm")
        out = torch.zeros_like(narrow)
        for expert in range(ffn.num_experts):
            done = self._expert(narrow, ffn, f"{prefix}experts", expert)
            out = out + shares[..., expert, None] * done
        if ffn.latent_size:
            out = self._linear(out, f"{prefix}latent_up_proj", x.shape[-1])
        if ffn.shared_intermediate_size:
            shared = self._dense(x, f"{prefix}shared_experts", ffn.shared_intermediate_size, gated=ffn.gated)
            out = out + (shared * self._linear(x, f"{prefix}shared_gate", 1).sigmoid() if ffn.shared_gate else shared)
        return out

    def _routed(self, x: Tensor, ffn: MoeFfn, prefix: str) -> Tensor:
        """The share of every expert in every token, zero for those not chosen."""
        logits = self._linear(x, f"{prefix}router", ffn.num_experts)
        if ffn.router_bias:
            scores = logits.sigmoid()
            biased = scores + self.weight(f"{prefix}router_bias", 1, ffn.num_experts)[0].detach()
        else:
            scores, biased = logits.softmax(-1), logits
        least = biased.topk(ffn.top_k, dim=-1).values[..., -1:]
        chosen = torch.where(biased >= least, scores, torch.zeros_like(scores))
        return chosen / chosen.sum(-1, keepdim=True)

    def _expert(self, x: Tensor, ffn: MoeFfn, name: str, expert: int) -> Tensor:
        def matrix(part: str, outputs: int, inputs: int) -> Tensor:
            return self.weight(f"{name}.{part}_proj.{expert}", outputs, inputs)

        width, size = x.shape[-1], ffn.intermediate_size
        inner = x @ matrix("up", size, width).t()
        inner = F.silu(x @ matrix("gate", size, width).t()) * inner if ffn.gated else F.gelu(inner)
        return inner @ matrix("down", width, size).t()


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * weight


def _turned(x: Tensor) -> Tensor:
    """Rotary embedding of [sequences, tokens, heads, width] in positions 0, 1, ..., as complex numbers."""
    half = x.shape[-1] // 2
    speed = ROTARY_BASE ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[1])[:, None] * speed
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    turned = torch.complex(x[..., :half].float(), x[..., half:].float()) * turn
    return torch.cat([turned.real, turned.imag], dim=-1).to(x.dtype)


def _hidden(tokens: int, window: int, *, chunked: bool) -> Tensor:
    """True where a query [row] may not see a key [column]."""
    row, column = torch.arange(tokens)[:, None], torch.arange(tokens)[None, :]
    hidden = column > row
    if window and chunked:
        return hidden | (column // window != row // window)
    return hidden | (row - column >= window) if window else hidden
