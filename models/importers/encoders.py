"""Readers of vision encoders (ViT towers), with exact parameter counts where the config fixes every tensor."""

from planner.models.architecture import Encoder
from planner.models.importers.fields import ConfigFields


def encoders(config: ConfigFields, model_type: str) -> tuple[Encoder, ...]:
    """The towers in front of the decoder; their parameters are 0 where the config does not fix them."""
    vision = config.child("vision_config")
    if not vision.data:
        return ()
    if model_type.startswith(("qwen3_vl", "qwen3_5")):
        return (_qwen(vision),)
    if model_type == "llama4":
        return (_llama4(vision, config.child("text_config").count("hidden_size")),)
    if model_type in ("kimi_k25", "kimi_k3"):
        return (_moonvit(vision, counted=model_type == "kimi_k25"),)
    return (_plain(vision),)


def _plain(vision: ConfigFields) -> Encoder:
    return Encoder(
        "vision",
        vision.count("num_hidden_layers", "depth"),
        vision.count("hidden_size"),
        vision.count("intermediate_size"),
        vision.count("num_attention_heads", "num_heads"),
        0,
    )


def _block(hidden: int, wide: int) -> int:
    """Elements of one pre-norm block: two LayerNorms, fused QKV, output and two FFN matrices, all with bias."""
    return 4 * hidden + 4 * (hidden * hidden + hidden) + 2 * hidden * wide + hidden + wide


def _qwen(vision: ConfigFields) -> Encoder:
    """The Qwen3-VL tower: 3-D patch embedding, learned positions, one merger and one more for each deepstack tap."""
    hidden, wide, depth = vision.count("hidden_size"), vision.count("intermediate_size"), vision.count("depth")
    merged = hidden * vision.count("spatial_merge_size") ** 2
    output = vision.count("out_hidden_size")
    patch = vision.count("in_channels") * vision.count("temporal_patch_size") * vision.count("patch_size") ** 2
    merger = merged * merged + merged + merged * output + output
    taps = len(vision.sequence("deepstack_visual_indexes"))
    parameters = (
        patch * hidden
        + hidden
        + vision.count("num_position_embeddings") * hidden
        + depth * _block(hidden, wide)
        + (2 * hidden + merger)
        + taps * (2 * merged + merger)
    )
    return Encoder(
        "vision",
        depth,
        hidden,
        wide,
        vision.count("num_heads"),
        parameters,
        patch_size=vision.count("patch_size"),
        merge=vision.count("spatial_merge_size") ** 2,
        patch_depths=(patch,),
        projector=(merged, merged, output),
        projectors=1 + taps,
    )


def _llama4(vision: ConfigFields, output: int) -> Encoder:
    """The Llama 4 tower: unfolded patches, class token, positions, two outer LayerNorms, pixel shuffle, projector."""
    hidden, wide, depth = (vision.count(key) for key in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    size, inner, seen = (vision.count(key) for key in ("patch_size", "projector_input_dim", "vision_output_dim"))
    patches = (vision.count("image_size") // size) ** 2 + 1
    ends = vision.count("num_channels") * size**2 * hidden + hidden + patches * hidden + 4 * hidden
    adapter = wide * inner + inner * vision.count("projector_output_dim") + seen * output
    parameters = ends + depth * _block(hidden, wide) + adapter
    return Encoder(
        "vision",
        depth,
        hidden,
        wide,
        vision.count("num_attention_heads"),
        parameters,
        patch_size=size,
        chunk_tokens=patches - 1,
        merge=wide // hidden,  # the pixel shuffle joins them to the width of the FFN
        patch_depths=(vision.count("num_channels") * size**2,),
        projector=(wide, inner, vision.count("projector_output_dim"), output),
    )


def _moonvit(vision: ConfigFields, *, counted: bool) -> Encoder:
    """The MoonViT tower of Kimi K2.5 with its patch-merging projector; that of K3 has parts the config leaves open."""
    hidden, wide = vision.count("vt_hidden_size"), vision.count("vt_intermediate_size")
    depth, heads = vision.count("vt_num_hidden_layers"), vision.count("vt_num_attention_heads")
    if not counted:
        return Encoder("vision", depth, hidden, wide, heads, 0)
    kernel = vision.sequence("merge_kernel_size")
    if kernel != [2, 2]:
        raise vision.wrong("merge_kernel_size", "[2, 2]", kernel)
    merged, output = 4 * hidden, vision.count("text_hidden_size")
    patch = 3 * vision.count("patch_size") ** 2 * hidden + hidden
    positions = vision.count("init_pos_emb_height") * vision.count("init_pos_emb_width") * hidden
    projector = 2 * hidden + merged * merged + merged + merged * output + output
    parameters = patch + positions + depth * _block(hidden, wide) + 2 * hidden + projector
    return Encoder(
        "vision",
        depth,
        hidden,
        wide,
        heads,
        parameters,
        patch_size=vision.count("patch_size"),
        merge=4,
        patch_depths=(3 * vision.count("patch_size") ** 2,),
        projector=(merged, merged, output),
    )
