"""Generated tables of training: runs priced by the formulas of `planner.costs.training`, and their peaks of memory."""

from collections.abc import Iterable, Iterator
from itertools import product

from samples.tables import Noise, csv_text

Row = dict[str, str]
COLUMNS = (
    *("id", "source", "source_ref", "split_group", "model", "arch", "hidden", "layers", "heads", "kv_heads"),
    *("head_dim", "ffn", "gated", "vocab", "experts", "topk", "moe_ffn", "shared_experts", "dense_layers", "seq"),
    *("gpu", "num_gpus", "gpus_per_node", "interconnect", "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero"),
    *("schedule", "recompute", "mbs", "gbs", "precision", "task", "framework", "step_time_s", "tokens_per_s_per_gpu"),
    *("tflops_per_gpu", "mfu", "flop_convention", "step_time_origin", "peak_mem_gib", "note"),
)
PEAK_COLUMNS = (
    *("id", "source", "source_ref", "model", "hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "seq", "gpu"),
    *("num_gpus", "tp", "pp", "vpp", "cp", "ep", "dp", "zero", "recompute", "mbs", "gbs", "precision", "quantity"),
    *("value_gib", "unit", "note"),
)
DENSE = {  # hidden, layers, heads, key-value heads, feed-forward width, vocabulary
    "sample-2b": (2048, 24, 16, 8, 8192, 32000),
    "sample-8b": (4096, 32, 32, 8, 14336, 128256),
    "sample-13b": (5120, 40, 40, 8, 13824, 32000),
}
SPARSE = (2048, 24, 16, 8, 8192, 32000)
GPUS = ("H100-SXM5-80GB", "A100-SXM4-80GB")
LAYOUTS = ((1, 1), (2, 1), (4, 1), (2, 2), (1, 4))  # tensor and pipeline degrees
GIB = 2.0**30
BETWEEN = 0.05  # deviation of groups; with more, fits to so few models may end at rates below 0


def measured() -> str:
    """measured.csv: dense models on several nodes of two GPUs by two codes, one with experts, and LoRA."""
    return csv_text(COLUMNS, _timed(_many(), stream=11))


def measured_more() -> str:
    """measured_more.csv: a dense model on a newer GPU."""
    layouts = [(tp, pp) for tp, pp in LAYOUTS if pp < 4]
    rows = (_row("more", "sample-8b", "B200-SXM-180GB", 16, tp, pp, source="generated, newer") for tp, pp in layouts)
    return csv_text(COLUMNS, _timed(rows, stream=12))


def single_node() -> str:
    """measured_single_node.csv: the smallest dense model on parts of a node of two GPUs, by layout and micro-batch."""
    plans = product(GPUS, (2, 4), ((1, 1), (2, 1), (1, 2)), (1, 2))
    rows = (
        _row("node", "sample-2b", gpu, gpus, tp, pp, source="generated, one node", mbs=mbs) | {"gpus_per_node": "8"}
        for gpu, gpus, (tp, pp), mbs in plans
    )
    return csv_text([name for name in COLUMNS if name != "schedule"], _without(_timed(rows, stream=13), "schedule"))


def peaks() -> str:
    """memory.csv: what the memory model allocates for the single nodes, by noise of each row."""
    from planner.costs.training.memory import allocated_bytes
    from planner.estimate.training_rows import completed, config_of_row

    noise = Noise(14)
    rows = []
    for tp, pp in LAYOUTS:
        row = _row("mem", "sample-8b", GPUS[0], 8, tp, pp, source="generated")
        held_gib = allocated_bytes(completed(config_of_row(row))) / GIB
        peak = {"quantity": "peak reported", "value_gib": held_gib * noise.factor("peaks"), "unit": "GiB"}
        rows.append({**{name: row.get(name, "") for name in PEAK_COLUMNS}, **peak})
    return csv_text(PEAK_COLUMNS, rows)


def _many() -> Iterator[Row]:
    for (model, gpu), (tp, pp) in product(product(DENSE, GPUS), LAYOUTS):
        code = "Megatron-Bridge 26.06" if gpu == GPUS[0] else "Megatron-DeepSpeed 1F1B"
        yield _row("many", model, gpu, 16, tp, pp, source=f"generated, {code}", framework=code)
    for ep in (2, 4, 8):
        row = _row("experts", "sample-moe", GPUS[0], 16, 1, 1, source="generated, experts")
        yield {**row, "ep": str(ep)}
    for tp in (1, 2):
        row = _row("lora", "sample-8b", GPUS[0], 8, tp, 1, source="generated, LoRA")
        yield {**row, "task": "lora"}


def _row(
    name: str, model: str, gpu: str, num_gpus: int, tp: int, pp: int, *, source: str, mbs: int = 1, framework: str = ""
) -> Row:
    """A run without its time."""
    hidden, layers, heads, kv_heads, ffn, vocab = DENSE.get(model, SPARSE)
    dp = num_gpus // (tp * pp)
    experts = {"experts": 16, "topk": 2, "moe_ffn": 1024, "shared_experts": 0, "dense_layers": 0}
    values: dict[str, object] = {
        "id": f"{name}_{model}_{gpu}_{num_gpus}_tp{tp}_pp{pp}_mbs{mbs}",
        **{"source": source, "source_ref": "benchmarks/samples/training.py", "split_group": f"{model}|{gpu}|{source}"},
        **{"model": model, "arch": "moe" if model == "sample-moe" else "dense", "hidden": hidden, "layers": layers},
        **{"heads": heads, "kv_heads": kv_heads, "head_dim": hidden // heads, "ffn": ffn, "gated": 1, "vocab": vocab},
        **(experts if model == "sample-moe" else {}),
        **{"seq": 2048, "gpu": gpu, "num_gpus": num_gpus, "gpus_per_node": min(num_gpus, 8), "tp": tp, "pp": pp},
        **{"cp": 1, "ep": 1, "dp": dp, "zero": "distopt(ZeRO-1)", "schedule": "1f1b", "recompute": "full"},
        **{"mbs": mbs, "gbs": 8 * mbs * dp, "precision": "bf16", "task": "pretrain"},
        **{"framework": framework or "Megatron-Bridge 26.06", "note": "generated"},
    }
    return {column: str(values.get(column, "")) for column in COLUMNS}


def _timed(rows: Iterable[Row], stream: int) -> Iterator[Row]:
    """The rows with step times: the price by a drawn factor of the group and noise of the row."""
    from planner.costs.training.step import step_time
    from planner.estimate.training_rows import completed, config_of_row

    noise = Noise(stream, between=BETWEEN)
    for number, row in enumerate(rows):
        step_s = step_time(completed(config_of_row(row))).step_s * noise.factor(row["split_group"])
        rate = int(row["gbs"]) * int(row["seq"]) / step_s / int(row["num_gpus"])
        name = f"{row['id']}_{number}"
        yield {**row, "id": name, "step_time_s": f"{step_s:.6g}", "tokens_per_s_per_gpu": f"{rate:.6g}"}


def _without(rows: Iterable[Row], column: str) -> Iterator[Row]:
    for row in rows:
        yield {name: value for name, value in row.items() if name != column}
