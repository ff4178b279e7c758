"""Element counts against what publishers state: exactly, or at the rounding of the published figure."""

import pytest
from checkpoint_tensors import model_tensors

from planner.errors import PlannerError
from planner.models.architecture import UnsupportedMixer
from planner.models.library import find_model, list_models
from planner.models.modules import module_parameters
from planner.models.parameters import parameter_counts, tensor_bytes, weight_bytes

_FILES = "parameter count of the checkpoint's safetensors files, as Hugging Face reports it"
_GGUF = "`general.parameter_count` of the converted file"

# name: (elements, which count, source)
EXACT = {
    "meta-llama/Meta-Llama-3.1-8B": (8_030_261_248, "total", _FILES),
    "meta-llama/Meta-Llama-3.1-70B": (70_553_706_496, "total", _FILES),
    "meta-llama/Meta-Llama-3.1-405B": (405_853_388_800, "total", _FILES),
    "meta-llama/Llama-3.2-1B": (1_235_814_400, "total", _FILES),
    "meta-llama/Llama-3.2-3B": (3_212_749_824, "total", _FILES),
    # The files of Llama 2 also hold rotary frequencies, 64 a layer: 13,015,866,880 and 68,976,653,312 elements.
    "meta-llama/Llama-2-13b-hf": (13_015_866_880 - 40 * 64, "total", _FILES),
    "meta-llama/Llama-2-70b-hf": (68_976_653_312 - 80 * 64, "total", _FILES),
    # These two files store the tied output matrix a second time.
    "Qwen/Qwen3-0.6B": (751_632_384 - 151_936 * 1024, "total", _FILES),
    "Qwen/Qwen3-1.7B": (2_031_739_904 - 151_936 * 2048, "total", _FILES),
    "Qwen/Qwen3-4B": (4_022_468_096, "total", _FILES),
    "Qwen/Qwen3-8B": (8_190_735_360, "total", _FILES),
    "Qwen/Qwen3-32B": (32_762_123_264, "total", _FILES),
    "Qwen/Qwen3-30B-A3B": (30_532_122_624, "total", _FILES),
    "Qwen/Qwen3-235B-A22B": (235_093_634_560, "total", _FILES),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": (480_154_875_392, "total", _FILES),
    "Qwen/Qwen3-VL-2B-Instruct": (2_127_532_032, "stored", _FILES),
    "Qwen/Qwen3.5-27B": (27_781_427_952, "stored", _FILES),
    "Qwen/Qwen3.5-35B-A3B": (35_951_822_704, "stored", _FILES),
    "Qwen/Qwen2.5-0.5B": (494_032_768, "total", _FILES),
    "Qwen/Qwen2.5-1.5B": (1_543_714_304, "total", _FILES),
    "Qwen/Qwen2.5-3B": (3_085_938_688, "total", _FILES),
    "Qwen/Qwen2.5-14B": (14_770_033_664, "total", _FILES),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": (1_777_088_000, "total", _FILES),
    "google/gemma-3-1b-it": (999_885_952, "total", _FILES),
    "google/gemma-3-4b-it": (4_300_079_472, "stored", _FILES),
    "google/gemma-3-12b-it": (12_187_325_040, "stored", _FILES),
    "google/gemma-3-27b-it": (27_432_406_640, "stored", _FILES),
    "codellama/CodeLlama-34b-hf": (33_743_970_304, "total", _FILES),
    "mosaicml/mpt-7b": (6_649_286_656, "total", "elements of the loaded model"),
    "stepfun-ai/Step-Audio-Chat": (263_893_180_416 // 2, "total", "total_size of its safetensors index, in bf16"),
    "Wan-AI/Wan2.1-T2V-14B": (14_288_491_584 + 5_680_910_336 + 127_000_000, "modules", _FILES + "; VAE rounded"),
    "Wan-AI/Wan2.1-T2V-1.3B": (1_418_996_800 + 5_680_910_336 + 127_000_000, "modules", _FILES + "; VAE rounded"),
    "deepseek-ai/DeepSeek-V2": (235_741_434_880, "total", _FILES),
    "deepseek-ai/DeepSeek-V2-Lite": (15_706_484_224, "total", _FILES),
    "Qwen/Qwen2.5-7B": (7_615_616_512, "total", _FILES),
    "Qwen/Qwen2.5-72B": (72_706_203_648, "total", _FILES),
    "mistralai/Mistral-7B-v0.1": (7_241_732_096, "total", _FILES),
    "mistralai/Mixtral-8x7B-v0.1": (46_702_792_704, "total", _FILES),
    "mistralai/Mixtral-8x22B-v0.1": (140_620_634_112, "total", _FILES),
    "deepseek-ai/DeepSeek-V3": (671_026_419_200, "total", "headers of the checkpoint's files, scales left out"),
    "deepseek-ai/DeepSeek-R1": (684_489_845_504, "stored", _FILES + ", scales left out"),
    "moonshotai/Kimi-K2-Instruct": (1_026_408_232_448, "total", _FILES + ", scales left out"),
    "zai-org/GLM-5": (753_864_139_008, "stored", _FILES),
    "MiniMaxAI/MiniMax-M2": (228_689_764_864, "stored", _FILES + ", scales left out"),
    "openai/gpt-oss-120b": (116_829_156_672, "total", _GGUF),
    "openai/gpt-oss-20b": (20_914_757_184, "total", _GGUF),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (31_577_940_288, "total", _GGUF),
    "facebook/opt-125m": (125_239_296, "total", "elements of the loaded model"),
    "facebook/opt-350m": (331_196_416, "total", "elements of the loaded model"),
    "facebook/opt-13b": (12_853_473_280, "total", "elements of the loaded model"),
}

_CARD = "the model's card on Hugging Face"
_OPT = "arXiv:2205.01068, table 1"

# name: (figure as published, which count, source)
ROUNDED = [
    ("facebook/opt-1.3b", "1.3B", "total", _OPT),
    ("facebook/opt-2.7b", "2.7B", "total", _OPT),
    ("facebook/opt-6.7b", "6.7B", "total", _OPT),
    ("facebook/opt-30b", "30B", "total", _OPT),
    ("facebook/opt-66b", "66B", "total", _OPT),
    ("facebook/opt-175b", "175B", "total", _OPT),
    ("Qwen/Qwen3-14B", "14.8B", "total", _CARD),
    ("Qwen/Qwen3-235B-A22B", "22B", "active", _CARD),
    ("Qwen/Qwen3-Coder-480B-A35B-Instruct", "35B", "active", _CARD),
    ("Qwen/Qwen3.5-122B-A10B", "122B", "total", _CARD),
    ("Qwen/Qwen3.5-122B-A10B", "10B", "active", _CARD),
    ("Qwen/Qwen3.5-397B-A17B", "17B", "active", _CARD),
    ("openai/gpt-oss-120b", "5.13B", "active_without_embedding", "arXiv:2508.10925, table 1"),
    ("openai/gpt-oss-20b", "3.61B", "active_without_embedding", "arXiv:2508.10925, table 1"),
    ("openai/gpt-oss-120b", "0.96B", "attention", "arXiv:2508.10925, table 1"),
    ("mistralai/Mixtral-8x7B-v0.1", "12.9B", "active", "mistral.ai/news/mixtral-of-experts"),
    ("mistralai/Mixtral-8x22B-v0.1", "39B", "active", "mistral.ai/news/mixtral-8x22b"),
    ("deepseek-ai/DeepSeek-V3", "37B", "active_without_embedding", "arXiv:2412.19437, abstract"),
    ("moonshotai/Kimi-K2-Instruct", "32B", "active_without_embedding", _CARD),
    ("zai-org/GLM-5", "744B", "total", "GLM-5 report, table of architectures"),
    ("MiniMaxAI/MiniMax-M2", "10B", "active_without_embedding", _CARD),
    ("XiaomiMiMo/MiMo-V2-Flash", "309B", "total", _CARD),
    ("XiaomiMiMo/MiMo-V2-Flash", "15B", "active", _CARD),
    ("google/gemma-4-26B-A4B", "25.2B", "total", _CARD),
    ("google/gemma-4-26B-A4B", "3.8B", "active", _CARD),
    ("nvidia/Gemma-4-31B-IT-NVFP4", "30.7B", "total", "the card of google/gemma-4-31B-it"),
    ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", "17B", "active", _CARD),
    ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "17B", "active", _CARD),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "3.6B", "active", _CARD),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "3.2B", "active_without_embedding", _CARD),
    ("nvidia/Nemotron-H-56B-Base-8K", "56B", "total", _CARD),
    ("stepfun-ai/step3", "316B", "total", "the table of github.com/stepfun-ai/Step3"),
    ("stepfun-ai/step3", "38B", "active_without_embedding", "the table of github.com/stepfun-ai/Step3"),
    ("stepfun-ai/step3", "321B", "stored", "the table of github.com/stepfun-ai/Step3, with its vision tower"),
    ("stepfun-ai/Step-Audio-TTS-3B", "4B", "total", "the file list of the model on Hugging Face"),
    ("stepfun-ai/stepvideo-t2v", "30B", "modules", "arXiv:2502.10248, abstract"),
    ("openai/gpt-3-175b", "175B", "total", "arXiv:2005.14165, table 2.1"),
    ("mosaicml/mpt-30b", "30B", "total", _CARD),
    ("MiniMaxAI/MiniMax-M1-80k", "456B", "total", "arXiv:2506.13585, abstract"),
    ("baidu/ERNIE-4.5-300B-A47B-PT", "47B", "active_without_embedding", _CARD),
    ("IntervitensInc/pangu-pro-moe-model", "72B", "total", "arXiv:2505.21411, abstract"),
    ("IntervitensInc/pangu-pro-moe-model", "16B", "active_without_embedding", "arXiv:2505.21411, abstract"),
    ("deepseek-ai/DeepSeek-V2", "21B", "active", "arXiv:2405.04434, abstract"),
    ("nvidia/Nemotron-4-340B-Base", "341B", "total", "arXiv:2406.11704, table 1: 9.4B and 331.6B"),
    ("huggyllama/llama-30b", "32.5B", "total", "arXiv:2302.13971, table 2"),
    ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "49.9B", "total", "the file list of the model on Hugging Face"),
]


@pytest.mark.parametrize("name", EXACT)
def test_counts_equal_the_published_exact_figure(name: str) -> None:
    elements, which, _source = EXACT[name]
    assert getattr(parameter_counts(find_model(name)), which) == elements


@pytest.mark.parametrize(("name", "figure", "which", "source"), ROUNDED)
def test_counts_agree_with_rounded_figures_at_their_own_rounding(
    name: str, figure: str, which: str, source: str
) -> None:
    decimals = len(figure.rstrip("B").partition(".")[2])
    billions = getattr(parameter_counts(find_model(name)), which) / 1e9
    assert f"{billions:.{decimals}f}B" == figure, source


@pytest.mark.parametrize("model", [model.name for model in list_models()])
def test_the_tensors_add_up_to_the_counts_and_to_the_bytes(model: str) -> None:
    arch = find_model(model)
    counts, tensors = parameter_counts(arch), model_tensors(arch)
    assert sum(tensor.elements for tensor in tensors) == counts.stored
    assert len({tensor.name for tensor in tensors}) == len(tensors)
    assert 0 < counts.active <= counts.total or not arch.layers
    parts = counts.attention + counts.ffn + counts.experts + counts.shared_experts + counts.router + counts.norm
    assert parts + counts.embedding + counts.lm_head == counts.total
    if not any(isinstance(layer.mixer, UnsupportedMixer) and not layer.mixer.parameters for layer in arch.layers):
        assert weight_bytes(arch) == pytest.approx(sum(tensor_bytes(tensor, arch) for tensor in tensors), rel=1e-12)


def test_bf16_weights_take_two_bytes_an_element() -> None:
    arch = find_model("Qwen/Qwen3-235B-A22B")
    assert weight_bytes(arch) == 2 * 235_093_634_560 == 470_187_269_120  # total_size of its safetensors index


def test_mxfp4_experts_bring_gpt_oss_to_the_size_of_its_files() -> None:
    # The card: "60.8 GiB" and "12.8 GiB" checkpoints (arXiv:2508.10925, table 1).
    assert f"{weight_bytes(find_model('openai/gpt-oss-120b')) / 2**30:.1f}" == "60.8"
    assert f"{weight_bytes(find_model('openai/gpt-oss-20b')) / 2**30:.1f}" == "12.8"


def test_weights_of_unknown_mixers_have_no_size() -> None:
    with pytest.raises(PlannerError, match=r"tensors of .*compressed_sparse.* are not known"):
        weight_bytes(find_model("deepseek-ai/DeepSeek-V4-Pro"))
    assert "compressed_sparse" in parameter_counts(find_model("deepseek-ai/DeepSeek-V4-Pro")).unknown


def test_the_flow_head_of_nextstep_has_its_published_size() -> None:
    # arXiv:2508.10711, abstract: "a 157M flow matching head".
    (head,) = (module for module in find_model("NextStep-1").modules if module.kind == "flow_head")
    assert f"{module_parameters(head) / 1e6:.0f}M" == "157M"


def test_networks_of_unknown_size_are_named_and_count_as_nothing() -> None:
    counts = parameter_counts(find_model("Step-Audio"))
    assert counts.unknown == ("audio_tokenizer", "flow_matching_decoder", "vocoder")
    assert counts.stored == counts.total
