"""Runs of Megatron-LM (`megatron/training/arguments.py`) and Megatron-Bridge (`ConfigContainer`)."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.documents.read import parse_document
from planner.importing.formats.megatron import LISTS, dropout_of, megatron_decisions, precision_of, unpriced_of
from planner.importing.formats.runs import data_parallel, launcher_gpus, on_gpus, training_findings, training_reading
from planner.importing.launches import Launch
from planner.importing.options import Options, read_options, words_of
from planner.importing.records import UNPRICED, Reading
from planner.importing.values import Values, mapping_of


def read_megatron(launch: Launch, given: tuple[int | None, int | None] = (None, None)) -> Reading:
    """Arguments of Megatron-LM (`megatron/training/arguments.py`), under the launcher's nodes and GPUs a node."""
    values = Values()
    options = read_options(launch.words, LISTS)
    nodes, a_node = launcher_gpus(launch.before, values)
    nodes, a_node = nodes or given[0], a_node or given[1]
    gpus = nodes * a_node if nodes and a_node else None
    degrees = megatron_degrees(options, values)
    fields: dict[str, Any] = {
        "engine": "megatron-lm",
        "model": {
            "layers": values.integer(options.get("num_layers")),
            "hidden": values.integer(options.get("hidden_size")),
            "heads": values.integer(options.get("num_attention_heads")),
        },
        "gpus": gpus,
        **degrees,
        "dp": data_parallel(gpus, degrees),
        "vpp": _virtual_stages(options, degrees["pp"], values),
        "micro_batch": values.integer(options.get("micro_batch_size")),
        "global_batch": values.integer(options.get("global_batch_size")),
        "sequence": values.integer(options.get("seq_length")),
        "precision": precision_of(options),
    }
    findings = training_findings(fields, nodes, a_node, options)
    return training_reading(
        fields, values, findings, megatron_decisions(options, fields) | {UNPRICED: unpriced_of(options)}
    )


def read_model_args(document: Mapping[str, Any]) -> Reading:
    """Megatron-LM's own test recipes: flags as keys of `MODEL_ARGS` (`tests/functional_tests`)."""
    words: list[str] = []
    for key, value in mapping_of(document.get("MODEL_ARGS")).items():
        if value is not None and value is not False:
            words += [str(key)] if value is True else [str(key), *(words_of(value) or [str(value)])]
    return read_megatron(Launch("megatron-lm", tuple(words)))


def megatron_degrees(options: Options, values: Values) -> dict[str, int | None]:
    """Degrees by Megatron-LM's names; 1 where nothing sets them."""
    return {
        "tp": values.integer(options.get("tensor_model_parallel_size"), 1),
        "pp": values.integer(options.get("pipeline_model_parallel_size"), 1),
        "cp": values.integer(options.get("context_parallel_size"), 1),
        "ep": values.integer(options.get("expert_model_parallel_size"), 1),
    }


def _virtual_stages(options: Options, pp: int | None, values: Values) -> int | None:
    """Model chunks a stage: by layers a virtual stage, or by their number."""
    chunks = values.integer(options.get("num_virtual_stages_per_pipeline_rank"))
    a_stage, layers = (
        values.integer(options.get("num_layers_per_virtual_pipeline_stage")),
        values.integer(options.get("num_layers")),
    )
    if chunks is None and a_stage and layers and pp:
        return layers // pp // a_stage
    return chunks


def read_megatron_bridge(document: Mapping[str, Any]) -> Reading:
    """Overrides of Megatron-Bridge (`ConfigContainer`): degrees and length of `model`, batches of `train`."""
    values = Values()
    train, options = mapping_of(document.get("train")), _bridge_options(document)
    degrees = megatron_degrees(options, values)
    fields: dict[str, Any] = {
        "engine": "megatron-bridge", "model": None, "gpus": None, **degrees, "dp": None,
        "vpp": values.integer(options.get("virtual_pipeline_model_parallel_size")),
        "micro_batch": values.integer(train.get("micro_batch_size")),
        "global_batch": values.integer(train.get("global_batch_size")),
        "sequence": values.integer(options.get("seq_length", mapping_of(document.get("dataset")).get("seq_length"))),
        "precision": None,
    }  # fmt: skip
    beside = megatron_decisions(options, fields) | {UNPRICED: unpriced_of(options)}
    beside |= {"dropout": dropout_of(options, 0.0), "sizes": {}, "moe_tp": options.get("expert_tensor_parallel_size")}
    beside |= {} if "mtp_num_layers" in options else {"mtp": None}
    reading = training_reading(fields, values, training_findings(fields, None, None, options), beside)
    return _in_precision(reading, str(document.get("mixed_precision", "")))


_USUAL = (
    "use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather", "cross_entropy_loss_fusion",
)  # fmt: skip
"""What the recipes of Megatron-Bridge and its models switch on (`GPTModelProvider`)."""


def _bridge_options(document: Mapping[str, Any]) -> Options:
    """The overrides by the names of Megatron-LM's flags, with what the recipes that they override have.

    Those share out optimizer states and overlap both exchanges of data parallelism (megatron/bridge/recipes/common.py:
    `_pretrain_common`).
    """
    sections = {key: mapping_of(document.get(key)) for key in ("model", "ddp", "optimizer", "dist", "comm_overlap")}
    usual = dict.fromkeys(_USUAL, True)
    options: Options = usual | {
        str(key): value for section in sections.values() for key, value in section.items() if value is not None
    }
    options["no_overlap_p2p_communication"] = sections["model"].get("overlap_p2p_comm") is False
    options["grad_reduce_in_bf16"] = sections["ddp"].get("grad_reduce_in_fp32") is False
    if "moe_token_dispatcher_type" in options:
        options.setdefault("num_experts", options.get("num_moe_experts", "of the model"))
    return options


def read_bridge_launch(launch: Launch, given: tuple[int | None, int | None] = (None, None)) -> Reading:
    """A program of Megatron-Bridge that stands beside its launcher, with the file of overrides that it names."""
    nodes, a_node = launcher_gpus(launch.before, Values())
    nodes, a_node = nodes or given[0], a_node or given[1]
    program = launch.file(launch.program) or ""
    named = re.findall(r"[\"']([\w./-]+\.ya?ml)[\"']", program)
    text = next((text for name in named if (text := launch.file(name))), "")
    document = parse_document(text, launch.program).data if text.strip() else {}
    reading = read_megatron_bridge(document if isinstance(document, dict) else {})
    precision = re.search(r"(?m)(?:PRECISION|mixed_precision)\s*=\s*[\"'](\w+)[\"']", program)
    model = re.search(r"from_hf_pretrained\(\s*[\"']([^\"']+)|(?m:^MODEL\s*=\s*[\"']([^\"']+))", program)
    if reading.fields["precision"] is None and precision:
        reading = _in_precision(reading, precision[1])
    fields = dict(reading.fields)
    fields["model"] = fields["model"] or (model[1] or model[2] if model else None)
    return on_gpus(replace(reading, fields=fields), nodes * a_node if nodes and a_node else None)


_FORMATS = {"subchannel": "fp8_block", "mxfp8": "mxfp8", "nvfp4": "nvfp4", "fp8": "fp8"}
"""Formats of a problem by parts of the names of recipes of mixed precision, `bf16_with_fp8_current_scaling_mixed`."""


def _in_precision(reading: Reading, recipe: str) -> Reading:
    """The reading in the formats of a recipe of mixed precision."""
    name = recipe.replace("mxfp8", "fp8")
    kind = next((each for each in ("fp4", "fp8", "bf16", "fp16") if each in name), None)
    told = next((each for part, each in _FORMATS.items() if part in recipe), kind)
    return replace(reading, fields={**reading.fields, "precision": kind}, beside={**reading.beside, "format": told})
