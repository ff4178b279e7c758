"""Reads `quantization_config`: the storage format (fp8, int4, nvfp4 ...) of each class of tensors.

Formats are stated for the whole checkpoint and taken back by lists of modules, so each class of tensors is represented
by the module names it has in the families we read, in every layer; a class takes the format of most of its layers.
"""

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from planner.errors import PlannerError
from planner.models.architecture import Architecture, Precisions, holds
from planner.models.importers.fields import ConfigFields

_MODULES = {
    "attention": (
        *("self_attn.q_proj", "self_attn.q_a_proj", "linear_attn.in_proj_qkv", "linear_attn.out_proj"),
        *("attn.wq_a", "mixer.in_proj", "mixer.q_proj"),
    ),
    "ffn": ("mlp.gate_proj", "mlp.up_proj", "ffn.w1", "mixer.up_proj"),
    "experts": (
        *("mlp.experts", "mlp.experts.0.gate_proj", "block_sparse_moe.experts.0.w1"),
        *("ffn.experts", "ffn.experts.0.w1", "mixer.experts.0.up_proj"),
    ),
    "shared_experts": (
        *("mlp.shared_experts.up_proj", "mlp.shared_expert.up_proj", "ffn.shared_experts.w1"),
        "mixer.shared_experts.up_proj",
    ),
}
_PARALLEL_MODULES = {**_MODULES, "experts": ("experts.0.gate_proj",), "shared_experts": ("mlp.gate_proj",)}
"""Gemma 4 calls the dense FFN beside its experts `mlp`; we hold it as a shared expert."""

_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "")
_ALGORITHMS = {
    "FP8": ("fp8", "fp8"),
    "FP8_PB_WO": ("fp8_block", "fp8"),
    "FP8_PER_CHANNEL_PER_TOKEN": ("fp8", "fp8"),
    "NVFP4": ("nvfp4", "nvfp4"),
    "W4A16_NVFP4": ("nvfp4", "bf16"),
    "W4A16_AWQ": ("int4", "bf16"),
    "INT4": ("int4", "bf16"),
    "MXFP4": ("mxfp4", "bf16"),
}
"""Names of NVIDIA Model Optimizer: (weights, what enters the GEMM)."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a GEMM's weights are stored and what enters it."""

    weights: str
    activation: str


@dataclass(frozen=True, slots=True)
class Quantisation:
    """The default format, the modules it leaves alone, and formats stated module by module."""

    base: Format | None
    ignored: tuple[str, ...]
    stated: Mapping[str, Format]
    experts_only: bool = False


def quantise(arch: Architecture, config: ConfigFields, *, plain: str) -> Architecture:
    """`arch` with the precisions that `config` (a quantization_config) states; unquantised parts are `plain`.

    Raises PlannerError for a method or format that is not known.
    """
    scheme = _read(config, plain)
    ignores = _matcher(scheme.ignored)
    modules = _PARALLEL_MODULES if any(layer.num_norms > 4 for layer in arch.layers) else _MODULES
    formats: dict[str, Format] = {}
    notes: dict[str, str] = {}
    for part, names in modules.items():
        base = Format(plain, plain) if scheme.experts_only and part != "experts" else scheme.base
        counts = Counter(
            _format(scheme, base, _names(names, index), ignores, plain)
            for index, layer in enumerate(arch.layers)
            if holds(layer, part)
        )
        formats[part] = counts.most_common(1)[0][0] if counts else Format(plain, plain)
        if len(counts) > 1:
            notes[f"precision.{part}"] = ", ".join(f"{fmt.weights} in {count} layers" for fmt, count in counts.items())
    precisions = Precisions(
        **{part: form.weights for part, form in formats.items()},
        embedding=plain,
        lm_head=scheme.stated.get("lm_head", Format(plain, plain)).weights,
        mtp=_mtp(scheme, arch, ignores, plain),
        encoder=plain,
        kv_cache=_kv_cache(config, plain),
        activation=_activation(formats, plain),
        expert_activation=formats["experts"].activation,
    )
    return replace(arch, precisions=precisions, metadata={**arch.metadata, **notes})


def _activation(formats: Mapping[str, Format], plain: str) -> str:
    """What enters the first quantised class outside the experts."""
    for part in ("attention", "ffn", "shared_experts"):
        if formats[part].weights != plain:
            return formats[part].activation
    return plain


def _format(
    scheme: Quantisation, base: Format | None, names: list[str], ignores: Callable[[Iterable[str]], bool], plain: str
) -> Format:
    """The format of one class in one layer: stated by name, else the base unless ignored."""
    for name in names:
        if name in scheme.stated:
            return scheme.stated[name]
    return Format(plain, plain) if base is None or ignores(names) else base


def _names(modules: Iterable[str], layer: int) -> list[str]:
    return [f"{prefix}layers.{layer}.{module}" for prefix in _PREFIXES for module in modules]


def _mtp(scheme: Quantisation, arch: Architecture, ignores: Callable[[Iterable[str]], bool], plain: str) -> str:
    """MTP heads are the layers after the last one (DeepSeek, GLM) or live under `mtp` (Qwen, DeepSeek-V4)."""
    if scheme.base is None or scheme.experts_only or not arch.mtp_layers:
        return plain
    names = [*_names(("mlp.experts.0.gate_proj",), arch.num_layers), "mtp.layers.0.mlp.gate_proj", "mtp.0.ffn.w1"]
    return plain if ignores(names) else scheme.base.weights


def _matcher(patterns: tuple[str, ...]) -> Callable[[Iterable[str]], bool]:
    """Whether any of some names is covered: `re:` patterns, globs, or a run of whole path components."""
    globs = [pattern for pattern in patterns if "*" in pattern and not pattern.startswith("re:")]
    starts = tuple(pattern[:-1] for pattern in globs if pattern.find("*") == len(pattern) - 1)
    regexes = [re.compile(pattern[3:]) for pattern in patterns if pattern.startswith("re:")]
    regexes += [re.compile(fnmatch.translate(_as_glob(pattern))) for pattern in globs if pattern[:-1] not in starts]
    plain = {pattern for pattern in patterns if "*" not in pattern and not pattern.startswith("re:")}
    short = {pattern for pattern in plain if "." not in pattern}

    def covered(names: Iterable[str]) -> bool:
        return any(
            name.startswith(starts) or _listed(name, plain, short) or any(regex.match(name) for regex in regexes)
            for name in names
        )

    return covered


def _as_glob(pattern: str) -> str:
    """A module pattern also covers what lies below the module it names."""
    return pattern if pattern.endswith("*") else f"{pattern}*"


def _listed(name: str, patterns: set[str], short: set[str]) -> bool:
    components = name.split(".")
    heads = {".".join(components[:end]) for end in range(1, len(components) + 1)}
    return not patterns.isdisjoint(heads) or not short.isdisjoint(components)


def _read(config: ConfigFields, plain: str) -> Quantisation:
    method = config.text("quant_method", default="modelopt" if config.has("quant_algo") else "")
    ignored = tuple(str(name) for name in [*config.sequence("ignore"), *config.sequence("modules_to_not_convert")])
    if method == "fp8":
        stated = _stated(config)
        base = Format("fp8_block" if config.sequence("weight_block_size") else "fp8", "fp8")
        # The list of a mixed checkpoint takes modules out of its 4-bit group; they stay in the fp8 of the whole.
        return Quantisation(base, () if stated else ignored, stated)
    if method == "mxfp4":
        return Quantisation(Format("mxfp4", "bf16"), ignored, {}, experts_only=True)
    if method == "modelopt":
        algorithm = config.text("quant_algo")
        base_format = None if algorithm == "MIXED_PRECISION" else _algorithm(config, algorithm)
        return Quantisation(base_format, ignored, _stated(config))
    if method in ("compressed-tensors", "compressed_tensors"):
        return Quantisation(_compressed(config, plain), ignored, {})
    if method in ("awq", "gptq") and config.count("bits", "w_bit", default=4) == 4:
        return Quantisation(Format("int4", plain), ignored, {})
    raise PlannerError(
        f"quantisation method `{method}` is not known",
        where=config.where,
        hint="use a checkpoint in fp8, modelopt, compressed-tensors or mxfp4 form, or state the precision yourself",
    )


def _algorithm(config: ConfigFields, name: str) -> Format:
    if name not in _ALGORITHMS:
        raise config.wrong("quant_algo", f"one of {', '.join(_ALGORITHMS)}, MIXED_PRECISION", name)
    return Format(*_ALGORITHMS[name])


def _stated(config: ConfigFields) -> dict[str, Format]:
    layers = config.child("quantized_layers")
    return {name: _algorithm(config, layers.child(name).text("quant_algo")) for name in layers.data}


def _compressed(config: ConfigFields, plain: str) -> Format:
    """The first group of a compressed-tensors config; further groups for other classes are not in use."""
    groups = config.child("config_groups")
    if len(groups.data) != 1:
        raise config.wrong("config_groups", "one group", len(groups.data))
    group = groups.child(next(iter(groups.data)))
    weights, inputs = group.child("weights"), group.child("input_activations")
    kind, bits = weights.text("type"), weights.count("num_bits")
    size = weights.optional_count("group_size")
    formats = {
        ("int", 4): "int4",
        ("int", 8): "int8",
        ("float", 8): "fp8_block" if weights.sequence("block_structure") else "fp8",
        ("float", 4): "nvfp4" if size == 16 else "mxfp4",
    }
    if (kind, bits) not in formats:
        raise weights.wrong("num_bits", "int or float of 4 or 8 bits", f"{kind} {bits}")
    stored = formats[kind, bits]
    if not inputs.data:
        return Format(stored, plain)
    entering = {("int", 8): "int8", ("float", 8): "fp8", ("float", 4): "nvfp4" if size == 16 else "mxfp4"}
    return Format(stored, entering.get((inputs.text("type"), inputs.count("num_bits")), plain))


def _kv_cache(config: ConfigFields, plain: str) -> str:
    """fp8 when the checkpoint carries scales for it; else what the unquantised parts have."""
    scheme = config.data.get("kv_cache_scheme") or config.data.get("kv_cache_quant_algo")
    if scheme is None:
        return plain
    stated = (scheme.get("type"), scheme.get("num_bits")) if isinstance(scheme, Mapping) else scheme
    for form, spellings in (("fp8", ("FP8", ("float", 8))), ("nvfp4", ("NVFP4", ("float", 4)))):
        if stated in spellings:
            return form
    raise config.wrong("kv_cache_scheme", "8-bit or 4-bit floats", scheme)
