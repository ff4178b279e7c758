"""Two plans of every option of training problems."""

from problem_changes import Case, apart

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
    "mtp": apart("options.mtp=true", "options.mtp=false", "models.m.name=XiaomiMiMo/MiMo-7B-Base"),
    "dropout.hidden": ("", "options.dropout.hidden=0.1"),
    "dropout.attention": apart("", "options.dropout.attention=0.1", "options.code.attention=unfused"),
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
    "search.recompute_modules": apart("", "options.search.recompute_modules=mlp", "options.search.recompute=selective"),
    "search.recompute_layers": apart(
        "options.search.recompute_layers=all", "options.search.recompute_layers=1", "options.search.recompute=full"
    ),
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
