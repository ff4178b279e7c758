"""Two plans of every option of workflows."""

from problem_changes import OTHER_BASE, Case, apart

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
