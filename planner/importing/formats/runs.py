"""Training runs of any code: their summary, what launchers in front of them start, and what contradicts itself."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.importing.formats.megatron import UNEVEN
from planner.importing.options import Options, read_options
from planner.importing.records import Reading
from planner.importing.values import Values


def training_reading(
    fields: Mapping[str, Any],
    values: Values,
    findings: Sequence[str] = (),
    beside: Mapping[str, Any] | None = None,
) -> Reading:
    """A training run in the order of summaries; degrees that nothing sets must be in `fields` already."""
    order = ("engine", "model", "gpus", "tp", "pp", "cp", "ep", "dp", "vpp", "micro_batch", "global_batch", "sequence",
             "precision")  # fmt: skip
    ordered = {"kind": "train"} | {key: fields.get(key) for key in order}
    ordered |= {key: value for key, value in fields.items() if key not in ordered}
    return Reading(ordered, tuple(dict.fromkeys(values.unresolved)), tuple(findings), beside=dict(beside or {}))


def launcher_gpus(before: Sequence[str], values: Values) -> tuple[int | None, int | None]:
    """Nodes, and GPUs a node, that `torchrun`, `srun` or `deepspeed` in front of a program starts."""
    options = read_options(before)
    nodes = values.integer(options.get("nnodes", options.get("nodes", options.get("num_nodes"))))
    a_node = values.integer(options.get("nproc_per_node", options.get("ntasks_per_node", options.get("num_gpus"))))
    if options.get("nnodes") is None and nodes is None and a_node is not None:
        nodes = 1
    return nodes, a_node


def data_parallel(gpus: int | None, degrees: Mapping[str, int | None]) -> int | None:
    """Ranks of data parallelism that the GPUs leave; None where something is open, or they do not divide."""
    ranks = 1
    for key in ("tp", "pp", "cp"):
        degree = degrees[key]
        if degree is None:
            return None
        ranks *= degree
    return gpus // ranks if gpus and gpus % ranks == 0 else None


def on_gpus(reading: Reading, gpus: int | None) -> Reading:
    """The reading with the GPUs that a launcher starts, and the data parallelism that they leave."""
    fields = dict(reading.fields)
    degrees = {name: fields[name] for name in ("tp", "pp", "cp")}
    fields |= {"gpus": gpus or fields["gpus"], "dp": fields["dp"] or data_parallel(gpus, degrees)}
    if fields["global_batch"] is None and fields["micro_batch"] and fields["dp"] and fields.get("accumulation"):
        fields["global_batch"] = fields["micro_batch"] * fields["dp"] * fields["accumulation"]
    findings = (*reading.findings, *training_findings(fields, None, None, None))
    return replace(reading, fields=fields, findings=tuple(dict.fromkeys(findings)))


def training_findings(
    fields: Mapping[str, Any], nodes: int | None, a_node: int | None, options: Options | None
) -> list[str]:
    """Contradictions of degrees, GPUs and batches in a training run.

    Without `options` nothing is said of ranks of experts, whose tensor parallelism they state.
    """
    findings = []
    parts = [(key, fields.get(key)) for key in ("tp", "pp", "cp")]
    used = [(key, degree) for key, degree in parts if isinstance(degree, int) and degree > 1]
    ranks = 1
    for _, degree in used:
        ranks *= degree
    gpus, asked = fields.get("gpus"), " x ".join(f"{key} {degree}" for key, degree in used)
    if gpus and ranks > gpus:
        started = f"{nodes} node{'s' if nodes != 1 else ''} of {a_node}" if nodes and a_node else f"{gpus} GPUs"
        findings.append(f"{asked} needs {ranks} GPUs, the script starts {started}")
    elif gpus and gpus % ranks:
        findings.append(f"{asked} does not divide {gpus} GPUs")
    elif options is not None:
        findings += _expert_findings(fields, options)
    findings += _batch_findings(fields)
    model = fields.get("model")
    heads, tp = (model.get("heads"), fields.get("tp")) if isinstance(model, dict) else (None, None)
    if heads and tp and heads % tp:
        findings.append(f"{heads} attention heads do not divide by tp {tp}")
    options = options or {}
    findings += _division_findings(fields, options)
    if options.get("bf16") is True and options.get("fp16") is True:
        findings.append("--bf16 and --fp16 contradict each other")
    if options.get("sequence_parallel") is True and fields.get("tp") == 1:
        findings.append("--sequence-parallel is ignored with tp 1")
    return findings


def _expert_findings(fields: Mapping[str, Any], options: Options) -> list[str]:
    """Experts over ranks of one stage: ep times the tensor parallelism of experts, by default that of all else."""
    gpus, ep, pp, tp = (fields.get(name) for name in ("gpus", "ep", "pp", "tp"))
    if not (gpus and ep and ep > 1 and pp and tp):
        return []
    experts_tp = Values().integer(options.get("expert_tensor_parallel_size")) or tp
    degrees = [("ep", ep), ("tp", experts_tp), ("pp", pp)]
    asked = " x ".join(f"{name} {degree}" for name, degree in degrees if degree > 1)
    ranks = ep * experts_tp * pp
    if ranks > gpus:
        return [f"{asked} needs {ranks} GPUs, the script starts {gpus}"]
    return [f"{asked} does not divide {gpus} GPUs"] if gpus % ranks else []


def _division_findings(fields: Mapping[str, Any], options: Options) -> list[str]:
    """Experts over expert-parallel ranks, and layers over pipeline stages, where the flags state both."""
    findings = []
    experts, ep, pp = options.get("num_experts"), fields.get("ep"), fields.get("pp")
    if ep and str(experts).isdigit() and int(str(experts)) % ep:
        findings.append(f"{experts} experts do not divide by ep {ep}")
    model = fields.get("model")
    layers = model.get("layers") if isinstance(model, dict) else None
    stages = (pp or 1) * (fields.get("vpp") or 1)
    if layers and stages > 1 and layers % stages and not any(name in options for name in UNEVEN):
        findings.append(f"{layers} layers do not divide by {stages} pipeline stages")
    return findings


def _batch_findings(fields: Mapping[str, Any]) -> list[str]:
    batch, micro, dp = fields.get("global_batch"), fields.get("micro_batch"), fields.get("dp")
    if batch and micro and dp and batch % (micro * dp):
        return [f"global batch {batch} does not divide by micro batch {micro} x dp {dp}"]
    return []
