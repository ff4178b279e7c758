"""Two plans of every option of problems of placement."""

from problem_changes import Case, apart

ONE_PASS = "workloads.0.output_tokens=1 ; options={simulated_requests: 200, batching: false"
LAYERED = (
    "objective={maximize: tokens_per_s_per_gpu} ; workloads=[{input_tokens: 512, output_tokens: 32}]"
    " ; cluster={pools: [{gpu: l4, nodes: 3, gpus_per_node: 1}, {gpu: l40s, nodes: 1, gpus_per_node: 1}]}"
    " ; options={layers: {max_stages: %s, max_batch: %s}}"
)
MIXED = (
    "objective={minimize: cost} ; workloads=[] ; cluster={pools: [{name: p, gpu: l4, gpus: 8, price: 1USD/h}, {name: q,"
    " gpu: l40s, gpus: 8, price: 1.9USD/h}]} ; options={mix: {buckets: {a: {rate: %s/s, slices: %s}}, rates: {p: {a:"
    " 1.0}, q: {a: %s}}, gpus_per_instance: {p: 1, q: %s}, least: %s, failures: %s}}"
)
PHASED = (
    "objective={minimize: cost} ; workloads=[] ; cluster={pools: [{name: p, gpu: l4, gpus: 8, price: 1USD/h}, {name: q,"
    " gpu: l40s, gpus: 8, price: 1.9USD/h}]} ; options={mix: {buckets: {a: {rate: 3/s, slices: 3}}, prefill: {q: {a:"
    " %s}}, decode: {p: {a: %s}}, at_least: {p: %s}, spot: {p: {price: %s, gpus: %s, lost: %s}}}}"
)
ADAPTED = (
    "workloads=[{input_tokens: 512, output_tokens: 32}] ; objective={%s} ; options={tp: [1], lora: {adapters:"
    " {a: {rate: %s/s}, b: {rate: 2/s}}, %s}}"
)
FLOORED = (
    "cluster={pools: [{gpu: h100_sxm, nodes: 4, gpus_per_node: 2}]} ; limits.gpus=4 ; options={simulated_requests: 200,"
    " max_batch: 8, min_replicas: 2, tp: [1], floor: {racks: %s, apart: rack}}"
)
PAIRED = (
    "models={m: {name: Qwen/Qwen3-8B}, n: {name: Qwen/Qwen3-0.6B}} ; workloads=[{name: m, model: m, input_tokens: 512,"
    " output_tokens: 1, load: {rate: 5/s}, slo: {latency: {p1: 60s}}}, {name: n, model: n, input_tokens: 512,"
    " output_tokens: 1, load: {rate: 5/s}, slo: {latency: {p1: 60s}}}] ; options={simulated_requests: 200,"
    " batching: false, tp: [1], pp: [1]%s}"
)
REPLAYED = (
    "options={simulated_requests: 200, batching: false} ; workloads=[{input_tokens: 512, output_tokens: 1,"
    " load: {rate: 20/s}, slo: {latency: {p1: 30ms}}}]"
)
TOKENS, FEW = "maximize: tokens_per_s_per_gpu", "minimize: gpus"
PLACE: dict[str, Case] = {
    "lora.adapters.*.rate_per_s": (ADAPTED % (TOKENS, 3, "slots: 1"), ADAPTED % (TOKENS, 4, "slots: 1")),
    "lora.rank": (ADAPTED % (TOKENS, 3, "rank: 16"), ADAPTED % (TOKENS, 3, "rank: 64")),
    "lora.modules": (ADAPTED % (TOKENS, 3, "rank: 16"), ADAPTED % (TOKENS, 3, "modules: [ffn]")),
    "lora.slots": (ADAPTED % (TOKENS, 3, "slots: 1"), ADAPTED % (TOKENS, 3, "slots: 2")),
    "lora.merged": (ADAPTED % (TOKENS, 3, "rank: 16"), ADAPTED % (TOKENS, 3, "merged: true")),
    "lora.slowdown": (ADAPTED % (TOKENS, 3, "rank: 16"), ADAPTED % (TOKENS, 3, "slowdown: 1.5")),
    "lora.max_busy": (ADAPTED % (FEW, 40, "max_busy: 0.9"), ADAPTED % (FEW, 40, "max_busy: 0.2")),
    "mix.buckets.*.rate_per_s": (MIXED % (3, 3, 2, 1, 1, 0), MIXED % (4.5, 3, 2, 1, 1, 0)),
    "mix.buckets.*.slices": (MIXED % (3, 3, 2, 1, 1, 0), MIXED % (3, 1, 2, 1, 1, 0)),
    "mix.rates": (MIXED % (3, 3, 2, 1, 1, 0), MIXED % (3, 3, 0.5, 1, 1, 0)),
    "mix.gpus_per_instance": (MIXED % (3, 3, 2, 1, 1, 0), MIXED % (3, 3, 2, 2, 1, 0)),
    "mix.least": (MIXED % (3, 3, 2, 1, 1, 0), MIXED % (3, 3, 2, 1, 5, 0)),
    "mix.prefill": (PHASED % (3, 1, 1, "0.5USD/h", 2, 0), PHASED % (1, 1, 1, "0.5USD/h", 2, 0)),
    "mix.decode": (PHASED % (3, 1, 1, "0.5USD/h", 2, 0), PHASED % (3, 3, 1, "0.5USD/h", 2, 0)),
    "mix.at_least": (PHASED % (3, 1, 1, "0.5USD/h", 2, 0), PHASED % (3, 1, 6, "0.5USD/h", 2, 0)),
    "mix.spot.*.usd_per_gpu_hour": (PHASED % (3, 1, 1, "0.5USD/h", 2, 0), PHASED % (3, 1, 1, "0.4USD/h", 2, 0)),
    "mix.spot.*.gpus": (PHASED % (3, 1, 1, "0.5USD/h", 2, 0), PHASED % (3, 1, 1, "0.5USD/h", 1, 0)),
    "mix.spot.*.lost": (PHASED % (3, 1, 1, "0.5USD/h", 2, 0), PHASED % (3, 1, 1, "0.5USD/h", 2, 1)),
    "mix.failures": (MIXED % (3, 3, 2, 1, 1, 0), MIXED % (3, 3, 2, 1, 1, 1)),
    "without": (MIXED % (3, 3, 2, 1, 1, 0), MIXED % (3, 3, 2, 1, 1, 0) + " ; options.without=[q]"),
    "layers.max_stages": (LAYERED % (1, 8), LAYERED % (4, 8)),
    "layers.max_batch": (LAYERED % (4, 8), LAYERED % (4, 16)),
    "arrivals": apart("options.arrivals=calm.csv", "options.arrivals=bursts.csv", REPLAYED),
    "floor.taken": ("options.floor={}", 'options.floor={taken: {"0": [0]}}'),
    "floor.racks": apart(FLOORED % "[1, 1, 2]", FLOORED % "[2, 2]", ""),
    "floor.apart": (FLOORED % "[1, 1, 2]", (FLOORED % "[1, 1, 2]").replace("rack}", "node}")),
    "floor.never_together": (PAIRED % "", PAIRED % ", floor: {never_together: [[m, n]]}"),
    "max_group_gpus": ("", "options.max_group_gpus=1"),
    "min_replicas": apart("", "options.min_replicas=2", "options.tp=[2]"),
    "tp": ("", "options.tp=[2]"),
    "pp": (ONE_PASS + ", pp: [1]}", ONE_PASS + ", pp: [2]}"),
    "batching": ("workloads.0.output_tokens=1", ONE_PASS + "}"),
    "max_batch": ("", "options.max_batch=1"),
    "chunk_tokens": ("", "options.chunk_tokens=1024"),
    "simulated_requests": ("", "options.simulated_requests=300"),
}
