"""Two plans of every option of serving problems."""

from problem_changes import PARTED, Case, apart

SIMULATED = (
    "options.judged_by=simulation ; options.simulated_requests=100 ; options.tp=[1] ; cluster.pools.0.gpus=1"
    " ; workloads.0.output_tokens={mean: 100, cv: 0.5} ; workloads.0.slo={ttft: {p95: 200ms}}"
)
ROUTED = "models.m.name=Qwen/Qwen3-30B-A3B ; cluster.pools=[{gpu: h200, nodes: 1}] ; options.tp=[1]"
SIDES = (
    "models.m.name=Qwen/Qwen3-30B-A3B ; cluster.pools=[{gpu: h200, nodes: 2}] ; options={modes: [attention-ffn],"
    " tp: [1], max_batch: [64], chunk_tokens: [2048], attention_gpus: [4], ffn_gpus: [4], micro_batches: [2]}"
)
HEADS = "models.m.name=XiaomiMiMo/MiMo-7B-Base"
MTP = "options.speculation={method: mtp, acceptance: 0.7, draft_tokens: [1]}"
STATED = "options.speculation={method: stated, acceptance: 0.7, draft_tokens: [3], draft_step: 1ms}"
DRAFTED = (
    "models={m: {name: Qwen/Qwen3-8B}, s: {name: Qwen/Qwen3-0.6B}, t: {name: Qwen/Qwen3-1.7B}} ; workloads.0.model=m"
    " ; options.speculation={method: model, acceptance: 0.7, draft_tokens: [3], model: s}"
)
PIPED = (
    "cluster.pools=[{gpu: l40s, gpus: 4}] ; workloads.0.slo={ttft: 20s, tpot: 300ms}"
    " ; options.max_batch=[256] ; options.tp=[1, 4] ; options.pp=[1, 4]"
)

SERVE: dict[str, Case] = {
    "modes": ("", "options.modes=[colocated, disaggregated]"),
    "tp": ("", "options.tp=[2]"),
    "pp": ("", "options.pp=[2]"),
    "dp": apart("options.dp=[1]", "options.dp=[2]", ROUTED),
    "ep": apart("options.ep=[1]", "options.ep=[2]", ROUTED + " ; options.dp=[2]"),
    "roles.*.tp": ("", "options.roles={colocated: {tp: [2]}}"),
    "roles.*.pp": ("", "options.roles={colocated: {pp: [2]}}"),
    "roles.*.dp": apart("options.dp=[1, 2]", "options.roles={colocated: {dp: [2]}}", ROUTED),
    "roles.*.ep": apart("options.ep=[1, 2]", "options.roles={colocated: {ep: [2]}}", ROUTED + " ; options.dp=[2]"),
    "without": ("", "options.without=[colocated/m/tp1/h100_sxm]"),
    "max_batch": ("", "options.max_batch=[32]"),
    "chunk_tokens": ("", "options.chunk_tokens=[1024]"),
    "max_gpus_per_instance": ("options.tp=[2]", "options.max_gpus_per_instance=1"),
    "max_shapes": apart("", "options.max_shapes=1", "options.modes=[colocated, disaggregated]"),
    "max_prefill_utilisation": apart(
        "", "options.max_prefill_utilisation=0.5", "options.modes=[disaggregated] ; workloads.0.slo={}"
    ),
    "max_decode_occupancy": ("", "options.max_decode_occupancy=0.5"),
    "memory_reserve": ("", "options.memory_reserve=70%"),
    "attention_gpus": apart("", "options.attention_gpus=[2]", SIDES),
    "ffn_gpus": apart("", "options.ffn_gpus=[2]", SIDES),
    "micro_batches": apart("", "options.micro_batches=[3]", SIDES),
    "overlap": apart(
        "",
        "options.overlap=[two-batch]",
        ROUTED + " ; options.dp=[4] ; options.ep=[4] ; options.modes=[colocated, disaggregated]",
    ),
    "redundant_experts": apart("", "options.redundant_experts=[0]", ROUTED + " ; options.dp=[2] ; options.ep=[2]"),
    "speculation.method": apart(MTP, STATED, HEADS),
    "speculation.acceptance": apart("", "options.speculation.acceptance=0.8", HEADS + PARTED + MTP),
    "speculation.draft_tokens": apart("", "options.speculation.draft_tokens=[0]", HEADS + PARTED + MTP),
    "speculation.model": apart("", "options.speculation.model=t", DRAFTED),
    "speculation.draft_step_s": apart("", "options.speculation.draft_step=2ms", STATED),
    "choice": apart("", "options.choice=fastest", PIPED),
    "queueing": ("", "options.queueing=[feedback]"),
    "elastic": ("", "options.elastic=[true]"),
    "judged_by": apart("", "options={tp: [1]}", SIMULATED),
    "simulated_requests": apart("", "options.simulated_requests=120", SIMULATED),
}
