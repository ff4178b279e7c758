"""Two plans of every option of problems of a fleet."""

from problem_changes import Case, apart

SMALL_TRAIN = (
    "{kind: train, models: {m: {name: Qwen/Qwen3-0.6B}}, objective: {minimize: step_time}, options: {global_batch: 16,"
    " sequence_tokens: %s, search: {tp: 1, pp: 1, cp: 1, zero_stage: 1, micro_batch: 1, schedule: 1f1b}}}"
)
SMALL_SERVE = (
    "{kind: serve, models: {m: {name: Qwen/Qwen3-8B}}, workloads: [{input_tokens: 512, output_tokens: 16, slo: {ttft:"
    " {p95: 1s}}}], options: {modes: [colocated], tp: [1], pp: [1], max_batch: [64], chunk_tokens: [2048]}}"
)
TRAINED = (
    "cluster.pools.0.nodes=2 ; options.jobs=[{name: pretrain, problem: "
    + SMALL_TRAIN % 2048
    + ", nodes: [2], usd_per_unit: 1}]"
)
SERVED = (
    "cluster={pools: [{gpu: h100_sxm, nodes: 2, gpus_per_node: 1}]} ; options.jobs=[{name: chat, problem: "
    + SMALL_SERVE
    + ", usd_per_unit: 1%s, load: {rates_per_s: [1, 60, 60, 1]}}]"
)
FAR = (
    "cluster.pools.0.nodes=5 ; options.windows=6 ; options.window=4h ; options.jobs=["
    + ", ".join(
        f"{{name: {name}, curve: [{{nodes: 1, units_per_hour: {rate}}}, {{nodes: 2, units_per_hour: {1.8 * rate}}}, "
        f"{{nodes: 3, units_per_hour: {2.5 * rate}}}], usd_per_unit: {usd}, usd_per_missing: {cost}, "
        f"target: {30 * rate}, start_up: 2h, restarts: job}}"
        for name, rate, usd, cost in ((f"j{k}", 5 + k % 7, 1 + k % 3, 1 + k % 5) for k in range(13))
    )
    + "]"
)
TWO_POOLS = "cluster.pools=[{gpu: h100_sxm, nodes: 3}, {gpu: h200, name: other, nodes: 2}]"
SHARED = (
    "options.jobs.1.shared={busy: 40%, free_memory: 10GB} ; options.opportunistic={jobs: [{name: eval, gpus: 1,"
    " usd_per_gpu_hour: 1, busy: 70%, memory: 11GB, contention: {batch: 0.02}}]}"
)
LIKE = (
    "options.jobs.0.shared={busy: 40%%, free_memory: 10GB, like: %s} ; options.jobs.1.shared.like=%s"
    " ; options.opportunistic.jobs.0.contention={chat: 0.2, batch: 0.01}"
)
ELASTIC = (
    "cluster.pools.0.gpus_per_node=2 ; options.elastic={jobs: [{name: vision, workers: 4, worker_s: {h100_sxm: 1.0},"
    " usd_per_hour: 30}]}"
)
AIMED = "options.jobs.1.target=50"
STARTED = "options.jobs.0.start_up=20min"
FLEET: dict[str, Case] = {
    "window_s": ("", "options.window=5h"),
    "windows": ("", "options.windows=2"),
    "reserve_nodes": ("", "options.reserve_nodes=1"),
    "jobs.*.name": ("", "options.jobs.0.name=talk"),
    "jobs.*.problem": (TRAINED, TRAINED.replace("2048", "4096")),
    "jobs.*.curve.*.nodes": ("", "options.jobs.0.curve.1.nodes=3"),
    "jobs.*.curve.*.units_per_hour": ("", "options.jobs.0.curve.1.units_per_hour=190"),
    "jobs.*.nodes": (TRAINED, TRAINED.replace("nodes: [2]", "nodes: [1]")),
    "jobs.*.unit_nodes": (SERVED % "", SERVED % ", unit_nodes: 2"),
    "jobs.*.least_nodes": ("", "options.jobs.1.least_nodes=2"),
    "jobs.*.level": (SERVED % "", SERVED % ", level: verified"),
    "jobs.*.usd_per_unit": ("", "options.jobs.1.usd_per_unit=3"),
    "jobs.*.usd_per_missing": ("", "options.jobs.0.usd_per_missing=3"),
    "jobs.*.load.rates_per_s": ("", "options.jobs.0.load.rates_per_s=[0.01, 0.05, 0.03, 0.03]"),
    "jobs.*.load.trace": ("", "options.jobs.0.load={trace: day.csv} ; options.windows=4"),
    "jobs.*.load.scale": ("", "options.jobs.0.load.scale=0.5"),
    "jobs.*.load.levels": ("", "options.jobs.0.load.levels=[0.5, 1.5]"),
    "jobs.*.safety": (SERVED % "", SERVED % ", safety: 20%"),
    "jobs.*.target": ("", AIMED),
    "jobs.*.deadline_s": apart("", "options.jobs.1.deadline=3h", AIMED),
    "jobs.*.start_up_s": ("", STARTED),
    "jobs.*.restarts": apart("", "options.jobs.0.restarts=job", STARTED),
    "jobs.*.least_windows": ("", "options.jobs.0.least_windows=3"),
    "jobs.*.nodes_before": apart("", "options.jobs.0.nodes_before=2", STARTED),
    "fixed": ("", "options.fixed={batch: 1}"),
    "without": ("", "options.without=[batch/2]"),
    "jobs.*.pools": apart("", "options.jobs.1.pools=[other]", TWO_POOLS),
    "jobs.*.curve.*.pool": apart("", "options.jobs.1.curve.1.pool=other", TWO_POOLS),
    "jobs.*.shared.busy": apart("", "options.jobs.1.shared.busy=80%", SHARED),
    "jobs.*.shared.free_memory_bytes": apart("", "options.jobs.1.shared.free_memory=5GB", SHARED),
    "jobs.*.shared.like": apart(LIKE % ("chat", "batch"), LIKE % ("batch", "chat"), SHARED),
    "opportunistic.most_loss": apart("", "options.opportunistic.most_loss=1%", SHARED),
    "opportunistic.rates": apart("", "options.opportunistic.rates=[0.2]", SHARED),
    "opportunistic.overload_loss": apart("", "options.opportunistic.overload_loss=0.1", SHARED),
    "opportunistic.spill_loss": apart("", "options.opportunistic.spill_loss=0.9", SHARED),
    "opportunistic.spill_slowdown": apart("", "options.opportunistic.spill_slowdown=0.9", SHARED),
    "opportunistic.jobs.*.name": apart("", "options.opportunistic.jobs.0.name=other", SHARED),
    "opportunistic.jobs.*.gpus": apart("", "options.opportunistic.jobs.0.gpus=2", SHARED),
    "opportunistic.jobs.*.usd_per_gpu_hour": apart("", "options.opportunistic.jobs.0.usd_per_gpu_hour=9", SHARED),
    "opportunistic.jobs.*.busy": apart("", "options.opportunistic.jobs.0.busy=10%", SHARED),
    "opportunistic.jobs.*.memory_bytes": apart("", "options.opportunistic.jobs.0.memory=12GB", SHARED),
    "opportunistic.jobs.*.contention": apart("", "options.opportunistic.jobs.0.contention=0.05", SHARED),
    "elastic.start_up_s": apart("", "options.elastic.start_up=1h", ELASTIC),
    "elastic.jobs.*.name": apart("", "options.elastic.jobs.0.name=other", ELASTIC),
    "elastic.jobs.*.workers": apart("", "options.elastic.jobs.0.workers=5", ELASTIC),
    "elastic.jobs.*.worker_s": apart("", "options.elastic.jobs.0.worker_s={h100_sxm: 2}", ELASTIC),
    "elastic.jobs.*.most_workers": apart("", "options.elastic.jobs.0.most_workers={h100_sxm: 1}", ELASTIC),
    "elastic.jobs.*.usd_per_hour": apart("", "options.elastic.jobs.0.usd_per_hour=60", ELASTIC),
    "elastic.jobs.*.reference_s": apart("", "options.elastic.jobs.0.reference_s=2", ELASTIC),
    "elastic.jobs.*.least_speed": apart("", "options.elastic.jobs.0.least_speed=0.9", ELASTIC),
}
