"""For every option of every kind of plan that is solved: overrides of two problems that have two plans.

They change the small problems of `tests/kinds/test_nothing_ignored.py`; an empty text leaves the base as it is.
"""

Case = tuple[str, str]
PARTED = " ; "


def apart(first: str, second: str, before: str = "") -> Case:
    """Two changes of the same changed base."""
    parts = [PARTED.join(part for part in (before, change) if part) for change in (first, second)]
    return parts[0], parts[1]


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
    "speculation.method": apart(MTP, STATED, HEADS),
    "speculation.acceptance": apart("", "options.speculation.acceptance=0.8", HEADS + PARTED + MTP),
    "speculation.draft_tokens": apart("", "options.speculation.draft_tokens=[0]", HEADS + PARTED + MTP),
    "speculation.model": apart("", "options.speculation.model=t", DRAFTED),
    "speculation.draft_step_s": apart("", "options.speculation.draft_step=2ms", STATED),
    "queueing": ("", "options.queueing=[feedback]"),
    "elastic": ("", "options.elastic=[true]"),
    "judged_by": apart("", "options={tp: [1]}", SIMULATED),
    "simulated_requests": apart("", "options.simulated_requests=120", SIMULATED),
}
LAUNCHED = {
    "serve": ("speculation.algorithm", "speculation.checkpoint"),
    "rl": ("speculation.algorithm", "speculation.checkpoint"),
    "place": ("lora.adapters.*.checkpoint",),
    "workflow": ("stages.*.options.*.image",),
}
"""What only launch scripts read; test_emit_speculation.py, test_rl_targets.py and test_workflow_targets.py hold them
to it, in tests/emit."""

TWO_POOLS = (
    "cluster={pools: [{gpu: h100_sxm, gpus: 2}, {gpu: h200, gpus: 2}],"
    " links: [{pools: [h100_sxm, h200], bandwidth: 10GB/s}]}"
)
LENGTHS = "options.lengths=[{tokens: 1024, share: 1}, {tokens: 2048, share: 1}]"
RAMP = "options.train_tokens=1e9 ; options.search.dp=4 ; options.batch_ramp=[{global_batch: 8, tokens: 1e6}]"
EXPERTS = "models.m.name=Qwen/Qwen3-30B-A3B ; cluster.pools.0.nodes=2"
SAVED = (
    "options.train_tokens=1e12 ; options.reliability={remote_write: 10GB/s} ; cluster.pools.0.nodes=8"
    " ; options.global_batch=64"
)
COPIES = SAVED + (
    " ; options.search={tp: 8, pp: 1, cp: 1, zero_stage: 0, micro_batch: 1} ; options.reliability.tier=on_failure"
)
UNMEASURED = EXPERTS + " ; options.search={pp: 1, cp: 1, schedule: 1f1b}"
STAGES = "cluster.pools=[{gpu: h100_sxm, gpus: 6}] ; options.search.pp=[3] ; options.global_batch=12"
SPREAD = EXPERTS + " ; options.search.ep=8 ; options.dispatcher=alltoall"
FULL = " ; options.experts={fullest: 3}"
CAPPED = " ; options.experts={fullest: 1, capacity: 1.5}"
PACKED = (
    "options.task=sft ; options.search.micro_batch=[1]"
    " ; options.documents=[{tokens: 512, share: 1}, {tokens: 1024, share: 1}]"
)
MOVED = (
    "options.task=sft ; options.sequence_tokens=65536 ; options.global_batch=4 ; options.search={tp: 2, dp: 4}"
    " ; options.documents=[{tokens: 65536, share: 1}, {tokens: 4096, share: 16}] ; options.core_attention_apart={}"
)
SPARSE = (
    "options.sequence_tokens=32768 ; options.search={cp: 8}"
    " ; options.sparse_heads={heads: [{heads: 1, sparsity: 0}, {heads: 15, sparsity: 0.99}]}"
)
SEEN = (
    "models.m.name=Qwen/Qwen3-VL-2B-Instruct"
    " ; options.samples=[{share: 1, images: [{width: 256, height: 256}]}, {share: 1}]"
)
HEARD = "models.m.name=Qwen/Qwen2-Audio-7B ; options.samples=[{share: 1, audio_s: [30]}]"
MADE = (
    "models.m.name=DistTrain/MLLM-72B ; cluster.pools.0.nodes=16 ; options.global_batch=64"
    " ; options.search={tp: 8, pp: 4, cp: 1, micro_batch: 1}"
    " ; options.samples=[{share: 1, generated: [{width: 256, height: 256}]}]"
)

TRAIN: dict[str, Case] = {
    "global_batch": ("", "options.global_batch=32"),
    "sequence_tokens": ("", "options.sequence_tokens=1024"),
    "precision": ("", "options.precision=fp8"),
    "train_tokens": ("options.train_tokens=1e9", "options.train_tokens=2e9"),
    "optimizer": ("", "options.optimizer=sgd"),
    "task": ("", "options.task=lora"),
    "lora_rank": apart("", "options.lora_rank=64", "options.task=lora"),
    "memory_utilisation": ("", "options.memory_utilisation=0.05"),
    "overlap": ("", "options.overlap=[]"),
    "batch_ramp.*.global_batch": apart("", "options.batch_ramp.0.global_batch=4", RAMP),
    "batch_ramp.*.tokens": apart("", "options.batch_ramp.0.tokens=2e6", RAMP),
    "lengths.*.tokens": apart("", "options.lengths.0.tokens=512", LENGTHS),
    "lengths.*.share": apart("", "options.lengths.0.share=3", LENGTHS),
    **{f"search.{name}": ("", f"options.search.{name}=2") for name in ("tp", "pp", "cp", "micro_batch")},
    "search.vpp": apart(
        "options.search.vpp=2", "options.search.vpp=4", "options.search.pp=2 ; options.search.schedule=interleaved"
    ),
    "search.dp": ("", "options.search.dp=4"),
    "search.ep": apart("options.search.ep=4", "options.search.ep=8", EXPERTS),
    "search.moe_tp": apart(
        "options.search={tp: 2, pp: 1, moe_tp: 1}", "options.search={tp: 2, pp: 1, moe_tp: 2}", EXPERTS
    ),
    "dispatcher": apart("options.dispatcher=alltoall", "options.dispatcher=deepep", EXPERTS),
    "experts.fullest": apart("", "options.experts={fullest: 3}", SPREAD),
    "experts.capacity": apart("", "options.experts={fullest: 3, capacity: 1.25}", SPREAD + FULL),
    "experts.padded": apart("", "options.experts={fullest: 1, capacity: 1.5, padded: true}", SPREAD + CAPPED),
    "documents.*.tokens": apart("", "options.documents.0.tokens=256", PACKED),
    "documents.*.share": apart("", "options.documents.0.share=9", PACKED),
    "samples.*.share": apart("", "options.samples.0.share=9", SEEN),
    "samples.*.audio_s": apart("", "options.samples.0.audio_s=[30, 20]", HEARD),
    **{
        f"samples.*.{made}.*.{field}": apart("", f"options.samples.0.{made}.0.{field}={value}", problem)
        for made, problem in (("images", SEEN), ("generated", MADE))
        for field, value in (("width", 512), ("height", 512), ("count", 3))
    },
    "frozen": apart("", "options.frozen=[encoder]", SEEN),
    "search.modules": apart("", "options.search.modules=apart", SEEN),
    "degrees_by_document": apart("", "options.degrees_by_document=true", PACKED + " ; options.search.pp=[1]"),
    "core_attention_apart.tolerance": apart("", "options.core_attention_apart.tolerance=0.5", MOVED),
    "core_attention_apart.block_tokens": apart("", "options.core_attention_apart.block_tokens=4096", MOVED),
    "sparse_heads.heads.*.heads": apart("", "options.sparse_heads.heads=[{heads: 16, sparsity: 0.9}]", SPARSE),
    "sparse_heads.heads.*.sparsity": apart("", "options.sparse_heads.heads.0.sparsity=0.5", SPARSE),
    "sparse_heads.gather_overhead_s": apart("", "options.sparse_heads.gather_overhead=5ms", SPARSE),
    "schedule_by_modality": apart("", "options.schedule_by_modality=true", SEEN + " ; options.search.pp=[2]"),
    "step_spread": ("", "options.step_spread=0.05"),
    "reduce_gradients": apart("", "options.reduce_gradients=bf16", "cluster.pools.0.nodes=2"),
    "loading.sample_bytes": apart(
        "", "options.loading.sample_bytes=1e9", "cluster.pools.0.nodes=2 ; options.loading.samples_per_s=1000"
    ),
    "loading.read_bytes_per_s": apart("", "options.loading.read_bytes_per_s=1e8", "options.loading.sample_bytes=1e9"),
    "loading.samples_per_s": ("", "options.loading.samples_per_s=0.001"),
    "in_network_reduction": apart("", "options.in_network_reduction=true", "cluster.pools.0.nodes=2"),
    "cuda_graphs": ("", "options.cuda_graphs=true"),
    "choice": apart("", "options.choice=fastest", UNMEASURED),
    "window_tokens": ("", "options.window_tokens=256"),
    "code.era": ("options.code.era=megatron", "options.code.era=torchtitan_eager"),
    "code.attention": ("", "options.code.attention=unfused"),
    "code.fused": ("", "options.code.fused=false"),
    "code.fused_experts": apart(
        "options.code={era: megatron}", "options.code={era: megatron, fused_experts: true}", EXPERTS
    ),
    "code.host": ("", "options.code.host=legacy"),
    "code.parallel_block": ("", "options.code.parallel_block=true"),
    "code.loaders_per_node": ("", "options.code.loaders_per_node=8"),
    "code.blocking_hand_overs": apart("", "options.code.blocking_hand_overs=true", "options.search.pp=2"),
    "search.schedule": apart("", "options.search.schedule=zb_h1", "options.search.pp=2"),
    "search.zero_stage": ("", "options.search.zero_stage=3"),
    "search.zero_shards": apart(
        "", "options.search.zero_shards=8", "cluster.pools.0.nodes=2 ; options.search={tp: 1, pp: 1, zero_stage: 3}"
    ),
    "search.recompute": ("", "options.search.recompute=full"),
    "search.context_parallel": apart(
        "options.search.context_parallel=ring", "options.search.context_parallel=ulysses", "options.search.cp=2"
    ),
    "search.sequence_parallel": apart("", "options.search.sequence_parallel=false", "options.search.tp=2"),
    "search.offload": ("", "options.search.offload=[optimizer]"),
    "search.layers": apart("", "options.search.layers=even", STAGES),
    "search.layerwise": apart("", "options.search.layerwise=true", "options.search={pp: 1, cp: 1, micro_batch: 1}"),
    "search.pools": apart("", "options.search.pools=stages", TWO_POOLS),
    "reliability.remote_write_bytes_per_s": apart("", "options.reliability.remote_write=1GB/s", SAVED),
    "reliability.remote_read_bytes_per_s": apart("", "options.reliability.remote_read=1GB/s", SAVED),
    "reliability.mtbf_s": apart("", "options.reliability.mtbf=2h", SAVED),
    "reliability.nodes_per_rack": apart("", "options.reliability.nodes_per_rack=8", COPIES),
    "reliability.tier": apart("options.reliability.tier=synchronous", "options.reliability.tier=on_failure", SAVED),
    "reliability.spare_nodes": apart("options.reliability.spare_nodes=0", "options.reliability.spare_nodes=2", SAVED),
    "reliability.save_slowdown": apart("", "options.reliability.save_slowdown=0.5", SAVED),
    "reliability.slow_nodes": apart("", "options.reliability.slow_nodes=5%", SAVED),
    "reliability.slow_speed": apart(
        "", "options.reliability.slow_speed=0.5", SAVED + " ; options.reliability.slow_nodes=5%"
    ),
}

PPO = (
    "models={actor: {name: Qwen/Qwen3-0.6B}, critic: {name: Qwen/Qwen3-0.6B}, big: {name: Qwen/Qwen3-1.7B}}"
    " ; workloads.0.model=actor ; options.algorithm=ppo"
)
TWO_MODELS = "models={a: {name: Qwen/Qwen3-0.6B}, b: {name: Qwen/Qwen3-1.7B}}"
AHEAD = "options.arrangements=[colocated, disaggregated] ; options.max_staleness=1"
MANY = "options.prompts=64 ; options.generation_tp=[1, 2, 4]"
LATE = (
    "models.m.name=Qwen/Qwen3-8B ; workloads.0.output_tokens={mean: 4000, cv: 1.5} ; options.prompts=64"
    " ; options.samples_per_prompt=8 ; options.generation_tp=[1, 4] ; options.max_running=64"
    " ; options.late_thresholds=[0.05, 0.1]"
)
TOOLS = "options.generation_tp=[1, 2] ; options.tools={calls: 2, wait: 5s}"
SCORED = (
    "options.reference=m ; options.reward=m ; options.served=[{part: reference, tp: [1], servers: [1],"
    " batch_samples: [4]}]"
)
CALLED = "options.reward_calls={by: rule, time: 2s, workers: 8}"
HORIZON = (
    "options.horizon={periods: [{iterations: 2}, {iterations: 2, output_scale: 8}], generation_change: 0s,"
    " training_change: 0s} ; options.arrangements=[disaggregated] ; options.prompts=64 ; options.max_staleness=1"
    " ; options.generation_tp=[1, 2, 4] ; options.training_tp=[1, 2] ; options.training_pp=[1, 2]"
)
CURVE = "pp: 1, ep: 1, sequence_s: 1.0e-4, token_s: 1.0e-8, prefill_tokens_per_s: 1.0e+5, max_running: 16"
CURVES = (
    f"options.costs={{generation: [{{pool: h100_sxm, tp: 1, step_s: 0.01, kv_tokens: 100000, {CURVE}}},"
    f" {{pool: h100_sxm, tp: 2, step_s: 0.02, kv_tokens: 100000, {CURVE}}}], training: [{{pool: h100_sxm, tp: 1,"
    " pp: 1, train_tokens_per_s: 1.0e+4, forward_tokens_per_s: 3.0e+4, micro_tokens: 2048}]}"
)


def _curves(part: str, **other: float) -> dict[str, Case]:
    """Every figure of the first measured curve, and another."""
    return {
        f"costs.{part}.*.{name}": apart("", f"options.costs.{part}.0.{name}={value}", CURVES)
        for name, value in other.items()
    }


SPARSE_ACTOR = "models.m.name=Qwen/Qwen3-30B-A3B ; cluster.pools.0.nodes=4 ; options.generation_tp=[2]"
RECORDED = "[{input_tokens: [5], output_tokens: [5, 9, 30, 7, 8]}]"
RECORDED_RUN = (
    "models={} ; workloads=[] ; cluster={pools: [{gpu: unspecified, name: a, nodes: 1, gpus_per_node: 4}]} ; options="
    "{algorithm: any, prompts: 5, equal_shares: false, max_staleness: 1, synchrony: [synchronous, one_step], costs:"
    " {generation: [{pool: a, tp: 1, step_s: 0.01, sequence_s: 0.001, token_s: 0.00001, prefill_tokens_per_s: 1000,"
    " max_running: 2, kv_tokens: 100}], training: [{pool: a, tp: 1, train_tokens_per_s: 100, forward_tokens_per_s: 300,"
    " micro_tokens: 64}], weight_sync: [{generation: a, training: a, sync_s: 0.1}], switch_s: 0.1}, %s}"
)
LISTED = RECORDED_RUN % f"records: {RECORDED}"
PERIODS = RECORDED_RUN % (
    f"horizon: {{generation_change_s: 1, training_change_s: 1, periods: [{{iterations: 2, records: {RECORDED}}},"
    f" {{iterations: 2, records: {RECORDED}}}]}}"
)
ALONE = LISTED + " ; options.costs.training=[]"
NOW = "options.horizon.running={mode: 'disaggregated, synchronous', generation: %s x tp1 a, training: %s x tp1 a}"

_CALLING = "{input_tokens: 5, output_tokens: [9, %d], wait_s: [0.5], observation_tokens: [3]}"
_AGENT = "options.agents.batches.0.trajectories.0."
AGENTS = RECORDED_RUN.replace("max_staleness: 1, synchrony: [synchronous, one_step], ", "") % (
    f"agents: {{batches: [{{trajectories: [{', '.join(_CALLING % tokens for tokens in (30, 8, 20, 12, 25))}]}}]}}"
)
_MOVING = (
    AGENTS
    + " ; cluster.pools.0.gpus_per_node=3 ; options.arrangements=[disaggregated] ; options.agents.move_thresholds="
    "[1.0] ; options.costs.training.0.train_tokens_per_s=1.0e+5 ; options.costs.training.0.forward_tokens_per_s=1.0e+5"
    " ; options.costs.generation.0.kv_tokens=1000 ; options.costs.generation.0.sequence_s=0.02"
    " ; options.agents.batches.0.trajectories.0.output_tokens=[60, 30]"
    " ; options.agents.batches.0.trajectories.2.output_tokens=[60, 30]"
)
"""Two long trajectories start on one of two replicas, and one of them moves when the other replica is idle."""
_CHANGED_AGENTS = {
    "batches.*.trajectories.*.input_tokens": _AGENT + "input_tokens=50",
    "batches.*.trajectories.*.output_tokens": _AGENT + "output_tokens=[9, 50]",
    "batches.*.trajectories.*.wait_s": _AGENT + "wait_s=[50]",
    "batches.*.trajectories.*.observation_tokens": _AGENT + "observation_tokens=[40]",
    "staleness": "options.agents.staleness=[1]",
    "dispatches": "options.agents.dispatches=[assigned]",
    "priorities": "options.agents.priorities=[longest_first]",
    "move_thresholds": "options.agents.move_thresholds=[1.0]",
}

RL: dict[str, Case] = {
    **{f"agents.{name}": apart("", changed, AGENTS) for name, changed in _CHANGED_AGENTS.items()},
    "agents.batches.*.trajectories.*.predicted": apart(
        "", _AGENT + "predicted=[1, 1]", AGENTS + " ; options.agents.dispatches=[longest_first]"
    ),
    "agents.keep_kv": apart("", "options.agents.keep_kv=false", AGENTS),
    "agents.move_s": apart("", "options.agents.move_s=20", _MOVING),
    "agents.move_token_s": apart("", "options.agents.move_token_s=2", _MOVING),
    "records.*.input_tokens": apart("", "options.records.0.input_tokens=[6]", LISTED),
    "records.*.output_tokens": apart("", "options.records.0.output_tokens=[5, 9, 40, 7, 8]", LISTED),
    "records.*.predicted": apart(
        "", "options.records.0.predicted=[9, 1, 2, 3, 4]", LISTED + " ; options.dispatch=longest_first"
    ),
    "dispatch": apart("", "options.dispatch=longest_first", LISTED),
    "generation_only": apart("options.generation_only=true", "options.generation_only=false", ALONE),
    "equal_shares": apart("", "options.equal_shares=true", LISTED),
    "costs.weight_sync.*.generation": apart("", "options.costs.weight_sync.0.generation=b", LISTED),
    "costs.weight_sync.*.training": apart("", "options.costs.weight_sync.0.training=b", LISTED),
    "costs.weight_sync.*.sync_s": apart("", "options.costs.weight_sync.0.sync_s=9", LISTED),
    "costs.switch_s": apart("", "options.costs.switch=9s", LISTED),
    **{
        f"horizon.periods.*.records.*.{name}": apart("", f"options.horizon.periods.0.records.0.{name}={value}", PERIODS)
        for name, value in {"input_tokens": "[6]", "output_tokens": "[5, 9, 40, 7, 8]"}.items()
    },
    "horizon.periods.*.records.*.predicted": apart(
        "",
        "options.horizon.periods.0.records.0.predicted=[9, 1, 2, 3, 4]",
        PERIODS + " ; options.dispatch=longest_first",
    ),
    "horizon.running.mode": apart("", "options.horizon.running.mode=unknown", PERIODS + " ; " + NOW % (1, 3)),
    "horizon.running.generation": apart(NOW % (1, 1), NOW % (3, 1), PERIODS),
    "horizon.running.training": apart(NOW % (1, 1), NOW % (1, 3), PERIODS),
    "algorithm": ("", PPO),
    "prompts": ("", "options.prompts=32"),
    "samples_per_prompt": ("", "options.samples_per_prompt=4"),
    "minibatches": ("", "options.minibatches=2"),
    "max_staleness": apart("", "options.max_staleness=0", AHEAD),
    "actor": apart("options.actor=a ; workloads.0.model=a", "options.actor=b ; workloads.0.model=b", TWO_MODELS),
    "critic": apart("", "options.critic=big", PPO),
    "critic_gpus": apart("", "options.critic_gpus=[own]", PPO),
    "reference": ("", "options.reference=m"),
    "reward": ("", "options.reward=m"),
    "teacher": ("", "options.teacher=m"),
    **{
        f"served.*.{name}": apart("", f"options.served.0.{name}={value}", SCORED)
        for name, value in {
            **{"part": "reward", "pool": "nowhere", "tp": "[2]", "servers": "[2]", "batch_samples": "[1]"},
            **{"shared_by": "3", "or_beside": "true", "takes": "samples"},
        }.items()
    },
    **{
        f"reward_calls.{name}": apart("", f"options.reward_calls.{given}={value}", CALLED)
        for name, given, value in (
            ("by", "by", "sandbox"),
            ("time_s", "time", "90s"),
            ("start_s", "start", "90s"),
            ("workers", "workers", "1"),
        )
    },
    "training_precision": ("", "options.training_precision=[fp8]"),
    "rollout_weights": ("", "options.rollout_weights=[fp8]"),
    "engine_sleep": ("", "options.engine_sleep=[host]"),
    "host_bandwidth_bytes_per_s": ("", "options.host_bandwidth=1GB/s"),
    "arrangements": ("", "options.arrangements=[disaggregated]"),
    "synchrony": apart("", "options.synchrony=[synchronous]", AHEAD),
    "over_sampling": ("", "options.over_sampling=1.5"),
    "partial_rollouts": apart(
        "", "options.partial_rollouts=true", "options.over_sampling=1.5 ; options.iterations=2 ; " + AHEAD
    ),
    "useful_share": apart("", "options.useful_share=0.7", "options.over_sampling=2"),
    "simulated_rollouts": ("", "options.simulated_rollouts=true"),
    "in_flight_updates": apart("", "options.in_flight_updates=true", AHEAD),
    "max_output_tokens": ("", "options.max_output_tokens=400"),
    "iterations": ("", "options.iterations=2"),
    "length_error": ("options.length_error=0.1", "options.length_error=2"),
    "tail_fractions": apart("", "options.tail_fractions=[0.2]", MANY),
    "fusion_thresholds": apart("", "options.fusion_thresholds=[0.3]", "options.reference=m"),
    "late_thresholds": apart("", "options.late_thresholds=[0.3]", MANY),
    "late_change_s": apart("options.late_change=0s", "options.late_change=2s", LATE),
    "fused_training": apart("", "options.fused_training=true", PPO + " ; options.training_pp=[2] ; options.prompts=8"),
    "tools.calls": apart("", "options.tools.calls=3", TOOLS),
    "tools.wait_s": apart("", "options.tools.wait=9s", TOOLS),
    "tools.observation_tokens": apart("", "options.tools.observation_tokens=100", TOOLS),
    "tools.priorities": apart("", "options.tools.priorities=[longest_first]", TOOLS),
    "tools.move_thresholds": apart("", "options.tools.move_thresholds=[1.5]", TOOLS),
    "max_running": ("", "options.max_running=8"),
    "whole_nodes": apart("", "options.whole_nodes=true", MANY),
    **{name: ("", f"options.{name}=[2]") for name in ("generation_tp", "training_tp", "training_pp", "training_cp")},
    "training_ep": apart("options.training_ep=[4]", "options.training_ep=[8]", SPARSE_ACTOR),
    "speculation.method": apart(MTP, STATED, HEADS),
    "speculation.acceptance": apart("", "options.speculation.acceptance=0.8", STATED),
    "speculation.draft_tokens": apart("", "options.speculation.draft_tokens=[1]", STATED),
    "speculation.model": apart("", "options.speculation.model=t", DRAFTED + " ; options.actor=m"),
    "speculation.draft_step_s": apart("", "options.speculation.draft_step=2ms", STATED),
    "recompute": ("options.recompute=none", "options.recompute=full"),
    "weight_sync_s": apart("", "options.weight_sync=9s", "options.arrangements=[disaggregated]"),
    "weight_sync_overlapped": apart("", "options.weight_sync_overlapped=true", AHEAD),
    "max_iteration_s": ("", "options.max_iteration=1s"),
    "horizon.periods.*.iterations": apart("", "options.horizon.periods.0.iterations=5", HORIZON),
    "horizon.periods.*.output_scale": apart("", "options.horizon.periods.1.output_scale=5", HORIZON),
    **{
        f"horizon.{name}_change_s": apart("", f"options.horizon.{name}_change=1s", HORIZON)
        for name in ("generation", "training", "circuit")
    },
    "costs.generation.*.pool": ("", CURVES),
    "costs.training.*.pool": ("", CURVES),
    **_curves("generation", tp=4, pp=2, ep=2, step_s=0.011, sequence_s=2e-4, token_s=2e-8),
    **_curves("generation", prefill_tokens_per_s=2e5, max_running=2, kv_tokens=3000),
    **_curves("training", tp=2, pp=2, train_tokens_per_s=2e4, forward_tokens_per_s=6e4, score_tokens_per_s=6e4),
    **_curves("training", micro_tokens=9000, min_dp=16, optimizer_s=1, offload_s=1, offload_sharded_s=1),
}

WINDOWS = "options.policy=periodic ; options.interval=60s ; options.loads=windows.npz"

REALTIME = "options.policy=realtime"

BARE = "models={} ; options={ep: 4, slots_per_rank: 6, loads: %s}"  # two windows of 2 layers, 16 experts
SMALL = BARE % "small.npz"
GROUPED = SMALL + " ; options.groups=2"
CONFINED = GROUPED + " ; options.nodes_per_group=1"
TOKENS = BARE % "tokens.npz" + " ; options.policy=affinity ; options.node_of_rank=[0, 0, 1, 1]"
STEPS = BARE % "steps.npz" + " ; options.policy=micro_batches"

EXPERT_LAYOUTS: dict[str, Case] = {
    "ep": ("", "options.ep=8"),
    "slots_per_rank": ("", "options.slots_per_rank=40"),
    "rank_speeds": ("", "options.rank_speeds=[1, 1, 1, 0.5]"),
    "peak_tokens": ("", "options.peak_tokens=1000"),
    "policy": ("", "options.policy=realtime"),
    "loads": ("", "options.loads=windows.npz"),
    "array": apart("options.array=one", "options.array=two", "options.loads=both.npz"),
    "resident": ("", "options.resident=resident.npz"),
    "groups": apart("", "options.groups=4", WINDOWS),
    "interval_s": apart("", "options.interval=90s", WINDOWS),
    "min_chunk_tokens": apart("", "options.min_chunk_tokens=300", REALTIME),
    "copy_domain": apart("", "options.copy_domain=2", REALTIME),
    "relays": apart("options.relays=1", "options.relays=0", REALTIME),
    "micro_batch_tokens": apart("", "options.micro_batch_tokens=4096", REALTIME),
    "shares": apart("", "options.shares=free", SMALL),
    "ahead": apart("", "options.ahead=true", SMALL),
    "tolerance": apart("", "options.tolerance=50%", SMALL + " ; options.policy=windows"),
    "most_moved_bytes": apart("", "options.most_moved=1B", SMALL + " ; options.policy=windows"),
    "nodes_per_group": apart("options.nodes_per_group=1", "options.nodes_per_group=2", GROUPED),
    "node_of_rank": apart("options.node_of_rank=[0, 0, 1, 1]", "options.node_of_rank=[0, 1, 0, 1]", CONFINED),
    "expert_bytes": apart("options.expert_size=1MB", "options.expert_size=2MB", SMALL + " ; options.policy=windows"),
    "imbalance_price": apart("", "options.imbalance_price=0", TOKENS),
    "num_experts": apart("", "options.num_experts=20", TOKENS),
    "home_slots": apart("", "options.home_slots=4", STEPS),
}

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
    "max_batch": ("", "options.max_batch=4"),
    "chunk_tokens": ("", "options.chunk_tokens=1024"),
    "simulated_requests": ("", "options.simulated_requests=300"),
}
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
        for name, rate, usd, cost in (("a", 10, 2, 7), ("b", 5, 1, 9), ("c", 6, 3, 1))
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
STAGE_FUNCTION = "options.stages.0.options.0"
STAGE_SERVED = "options.stages.1.serve"
SAMPLED = STAGE_FUNCTION + ".latency={samples_s: [%s]}"
TWO_OPTIONS = (
    "options.stages.0.options=[{name: a, recall: 80%%, latency: {mean: 50ms}}, {name: b, recall: %s,"
    " usd_per_call: 0.001, latency: {mean: 60ms}}] ; options.stages.0.least_recall=%s"
)


def _stage_lengths(side: str) -> dict[str, Case]:
    """Of the calls of a stage; those of a trace are refused."""
    field, base = f"{STAGE_SERVED}.{side}", f"stages.*.serve.{side}"
    return {
        base: ("", f"{field}=20"),
        f"{base}.low": (f"{field}={{low: 10, high: 90}}", f"{field}={{low: 50, high: 90}}"),
        f"{base}.high": (f"{field}={{low: 10, high: 90}}", f"{field}={{low: 10, high: 99}}"),
        f"{base}.mean": (f"{field}={{mean: 10, cv: 1}}", f"{field}={{mean: 12, cv: 1}}"),
        f"{base}.cv": (f"{field}={{mean: 10, cv: 1}}", f"{field}={{mean: 10, cv: 0.5}}"),
        f"{base}.shape": ("", f"{field}={{shape: sharegpt}}"),
        f"{base}.trace": ("", f"{field}={{trace: a.csv}}"),
        f"{base}.column": ("", f"{field}={{trace: a.csv, column: other}}"),
    }


WORKFLOW: dict[str, Case] = {
    "stages.*.name": ("", "options.stages.1.name=t"),
    "stages.*.after": ("", "options.stages.1.after=[]"),
    "stages.*.options.*.name": ("", f"{STAGE_FUNCTION}.name=b"),
    "stages.*.options.*.latency.mean_s": ("", f"{STAGE_FUNCTION}.latency.mean=90ms"),
    "stages.*.options.*.latency.cv": ("", f"{STAGE_FUNCTION}.latency.cv=0.9"),
    "stages.*.options.*.latency.samples_s": (SAMPLED % "0.1, 0.2", SAMPLED % "0.1, 0.3"),
    "stages.*.options.*.usd_per_call": ("", f"{STAGE_FUNCTION}.usd_per_call=0.001"),
    "stages.*.options.*.usd_per_hour": ("", f"{STAGE_FUNCTION}.price=0.60USD/h"),
    "stages.*.options.*.servers": ("", f"{STAGE_FUNCTION}.servers=[2]"),
    "stages.*.options.*.slots": ("", f"{STAGE_FUNCTION}.slots=2"),
    "stages.*.options.*.recall": (TWO_OPTIONS % ("90%", "85%"), TWO_OPTIONS % ("84%", "85%")),
    "stages.*.least_recall": (TWO_OPTIONS % ("90%", "80%"), TWO_OPTIONS % ("90%", "85%")),
    "stages.*.serve.model": (
        "models={m: {name: Qwen/Qwen3-0.6B}} ; options.stages.1.serve.model=m",
        "models={n: {name: Qwen/Qwen3-1.7B}} ; options.stages.1.serve.model=n",
    ),
    **_stage_lengths("input_tokens"),
    **_stage_lengths("output_tokens"),
    "stages.*.serve.pools": apart(
        f"{STAGE_SERVED}.pools=[a]",
        f"{STAGE_SERVED}.pools=[b]",
        "cluster.pools=[{name: a, gpu: h100_sxm, gpus: 1, price: 2USD/h},"
        " {name: b, gpu: h200, gpus: 1, price: 3USD/h}]",
    ),
    "stages.*.serve.limits_s": ("", f"{STAGE_SERVED}.limits_s=[1.5]"),
    "stages.*.serve.options": ("", f"{STAGE_SERVED}.options.max_batch=[8]"),
    "correlation": (
        "",
        "options.correlation=1 ; options.stages.1={name: s, after: [f], options: [{name: c, latency: "
        "{mean: 50ms, cv: 1}}]}",
    ),
    "simulated_requests": ("", "options.simulated_requests=300"),
}

OTHER_BASE = "base="
"""Before the name of another base problem of the kind (`field_cases.BASES`), as the first of the overrides."""


def _other(base: str, change: str, before: str = "") -> Case:
    first = OTHER_BASE + base + before
    return first, f"{first} ; options.{change}"


MOVES = "stages.1.options.0.latency.transfers"
SCHEDULES: dict[str, Case] = {
    **{f"stages.*.work.{part}.{key}_s": _other("servers", f"stages.1.work.{part}.{key}=6s")
       for part in ("computes", "reads", "writes") for key in ("split", "whole")},
    "stages.*.work.one_function_s": _other("servers", "stages.2.work.one_function=3s"),
    "stages.*.primitive": _other("engines", "stages.1.primitive=p"),
    "servers.slots": _other("servers", "servers.slots=[4, 4]"),
    "servers.most_members": _other("servers", "servers.most_members=1"),
    "servers.memory_speedup": _other("servers", "servers.memory_speedup=2"),
    "engines.queries_s": _other("engines", "engines.queries_s=[0, 0.05]"),
    "engines.primitives.*.engine": _other("engines", "engines.primitives.q.engine=e"),
    "engines.primitives.*.setup_s": _other("engines", "engines.primitives.p.setup=60ms"),
    "engines.primitives.*.each_s": _other("engines", "engines.primitives.p.each=30ms"),
    "engines.primitives.*.most_members": _other(
        "engines", "engines.primitives.p.most_members=1", " ; options.engines.queries_s=[0, 0]"
        " ; options.engines.primitives.q.most_members=2"
    ),
    "stages.*.options.*.latency.transfers.buffer_bytes": _other("functions", f"{MOVES}.buffer=6GB"),
    "stages.*.options.*.latency.transfers.clusters.*.name": _other("functions", f"{MOVES}.clusters.0.name=z"),
    "stages.*.options.*.latency.transfers.clusters.*.transfer_s": _other(
        "functions", f"{MOVES}.clusters.0.transfer=3s"
    ),
    "stages.*.options.*.latency.transfers.clusters.*.compute_s": _other("functions", f"{MOVES}.clusters.0.compute=3s"),
    "stages.*.options.*.latency.transfers.clusters.*.size_bytes": _other("functions", f"{MOVES}.clusters.0.size=8GB"),
    "scenarios": _other("functions", "scenarios=apart", " ; options.stages.1.options=[{name: n, latency: {samples_s: "
                        "[1, 3]}, usd_per_call: 0.001}]"),
    "choices.*.options": _other("functions", "choices={a: {options: [t]}}"),
    "choices.*.servers": ("", "options.choices={f: {servers: [2]}}"),
}  # fmt: skip

SPOKEN = (
    "workloads.0={input_tokens: 100, output_tokens: {mean: 80, cv: 0.5}, load: {rate: 2/s}, slo: {ttft: {p90: 1s}}}"
    " ; cluster.pools=[{name: a, gpu: h100_sxm, gpus: 32, price: 2USD/h},"
    " {name: b, gpu: h200, gpus: 32, price: 3USD/h}]"
    " ; options={simulated_requests: 200, speech: {audio: {mean_s: 4, cv: 0.5}, most_replicas: 4,"
    " encode: [{name: e, pool: a, base_s: 0.02, per_audio_s: 0.01}],"
    " prefill: [{name: p, pool: a, base_s: 0.03, per_token_s: 0.0002}],"
    " decode: [{name: d, pool: a, slots: 4, step_s: 0.02}],"
    " vocode: [{name: v, pool: a, base_s: 0.05, per_token_s: 0.001}]}}"
)
HASTE = (
    " ; options.speech.decode.0.step_s=0.045 ; options.speech.late_share=90% ; options.speech.slack=0ms"
    " ; workloads.0.slo={ttft: {p90: 4s}}"
)


def _spoken(change: str, before: str = "") -> Case:
    return SPOKEN + before, f"{SPOKEN}{before} ; options.speech.{change}"


SPEECH: dict[str, Case] = {
    "speech.audio.mean_s": _spoken("audio.mean_s=5"),
    "speech.audio.cv": _spoken("audio.cv=0.6"),
    "speech.audio.low_s": _spoken("audio.low_s=4"),
    "speech.audio.high_s": _spoken("audio.high_s=4"),
    "speech.audio_tokens_per_s": _spoken("audio_tokens_per_s=20"),
    "speech.first_chunks": _spoken("first_chunks=[8]"),
    "speech.chunk_tokens": _spoken("chunk_tokens=20"),
    "speech.context_tokens": _spoken("context_tokens=100"),
    "speech.slack_s": _spoken("slack=200ms", HASTE),
    "speech.late_share": (SPOKEN + HASTE, SPOKEN + HASTE + " ; options.speech.late_share=0%"),
    "speech.most_replicas": _spoken("most_replicas=5"),
    **{f"speech.{stage}.*.{name}": _spoken(f"{stage}.0.{name}={value}")
       for stage in ("encode", "prefill", "decode", "vocode")
       for name, value in (("name", "other"), ("pool", "b"), ("gpus", "2"), ("gpu_share", "50%"))},
    "speech.encode.*.base_s": _spoken("encode.0.base_s=0.03"),
    "speech.encode.*.per_audio_s": _spoken("encode.0.per_audio_s=0.02"),
    "speech.prefill.*.base_s": _spoken("prefill.0.base_s=0.04"),
    "speech.prefill.*.per_token_s": _spoken("prefill.0.per_token_s=0.0003"),
    "speech.decode.*.slots": _spoken("decode.0.slots=5"),
    "speech.decode.*.step_s": _spoken("decode.0.step_s=0.021"),
    "speech.vocode.*.base_s": _spoken("vocode.0.base_s=0.06"),
    "speech.vocode.*.per_token_s": _spoken("vocode.0.per_token_s=0.002"),
}  # fmt: skip

SHOWN = (
    "workloads.0={input_tokens: 100, output_tokens: {mean: 80, cv: 0.5}, load: {rate: 4/s},"
    " slo: {ttft: {p90: 1s}, tpot: {p90: 50ms}}}"
    " ; cluster.pools=[{name: a, gpu: h100_sxm, gpus: 32, price: 2USD/h},"
    " {name: b, gpu: h200, gpus: 32, price: 3USD/h}]"
    " ; options={simulated_requests: 200, images: {shares: [0.2, 0.4, 0.4], image_tokens: 500, most_replicas: 4,"
    " encode: [{name: e, pool: a, base_s: 0.02, per_image_s: 0.1}],"
    " prefill: [{name: p, pool: a, base_s: 0.03, per_token_s: 0.00005}],"
    " decode: [{name: d, pool: a, slots: 8, step_s: 0.02}]}}"
)
TOGETHER = " ; options.images.prefill.0.encode_base_s=0.02 ; options.images.encode=[]"


def _shown(change: str, before: str = "") -> Case:
    return SHOWN + before, f"{SHOWN}{before} ; options.images.{change}"


IMAGES: dict[str, Case] = {
    "images.shares": _shown("shares=[0.1, 0.5, 0.4]"),
    "images.image_tokens": _shown("image_tokens=600"),
    "images.move_per_image_s": _shown("move_per_image_s=0.01"),
    "images.move_per_token_s": _shown("move_per_token_s=0.0001"),
    "images.split_images": _shown("split_images=false", " ; options.images.split_images=true"),
    "images.most_replicas": _shown("most_replicas=5"),
    **{f"images.{stage}.*.{name}": _shown(f"{stage}.0.{name}={value}")
       for stage in ("encode", "prefill", "decode")
       for name, value in (("name", "other"), ("pool", "b"), ("gpus", "2"), ("gpu_share", "50%"))},
    "images.encode.*.base_s": _shown("encode.0.base_s=0.03"),
    "images.encode.*.per_image_s": _shown("encode.0.per_image_s=0.11"),
    "images.prefill.*.base_s": _shown("prefill.0.base_s=0.04"),
    "images.prefill.*.per_token_s": _shown("prefill.0.per_token_s=0.00006"),
    "images.prefill.*.encode_base_s": _shown("prefill.0.encode_base_s=0.03", TOGETHER),
    "images.prefill.*.encode_per_image_s": _shown("prefill.0.encode_per_image_s=0.05", TOGETHER),
    "images.decode.*.slots": _shown("decode.0.slots=7"),
    "images.decode.*.step_s": _shown("decode.0.step_s=0.021"),
}  # fmt: skip

OPTIONS = {
    "workflow": WORKFLOW | SCHEDULES | SPEECH | IMAGES,
    "fleet": FLEET,
    "serve": SERVE,
    "train": TRAIN,
    "rl": RL,
    "experts": EXPERT_LAYOUTS,
    "place": PLACE,
}
