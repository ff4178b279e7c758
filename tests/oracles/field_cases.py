"""Two values of every field that a kind of plan reads, as overrides of one small problem of the kind.

`READ` holds them by kind and by the field's place in the schema; values that need more than their own field set that
too.
"""

import json

from fleet_options import TRAINED
from place_options import FLOORED, MIXED
from problem_changes import Case
from serve_options import SIMULATED
from small_configs import SMALL_CONFIGS

BASES: dict[str, str] = {
    "serve": """
        models: {m: {name: Qwen/Qwen3-8B}}
        cluster: {pools: [{gpu: h100_sxm, gpus: 2}]}
        workloads: [{input_tokens: 512, output_tokens: 128, slo: {ttft: 1s, tpot: 50ms}}]
        objective: {maximize: goodput_per_gpu}
        options: {modes: [colocated], tp: [1, 2], pp: [1], max_batch: [64], chunk_tokens: [2048]}""",
    "train": """
        models: {m: {name: Qwen/Qwen3-0.6B}}
        cluster: {pools: [{gpu: h100_sxm, nodes: 1}]}
        objective: {minimize: step_time}
        options:
          global_batch: 16
          sequence_tokens: 2048
          search: {tp: [1, 2], pp: [1, 2], cp: 1, zero_stage: 1, micro_batch: 1, schedule: 1f1b}""",
    "rl": """
        models: {m: {name: Qwen/Qwen3-0.6B}}
        cluster: {pools: [{gpu: h100_sxm, nodes: 1}]}
        workloads: [{input_tokens: 256, output_tokens: {mean: 500, cv: 0.5}}]
        objective: {minimize: iteration_time}
        options:
          algorithm: grpo
          prompts: 16
          samples_per_prompt: 2
          iterations: 1
          arrangements: [colocated]
          generation_tp: [1]
          training_tp: [1]
          training_pp: [1]
          max_running: 16""",
    "experts": """
        models: {m: {name: Qwen/Qwen3-30B-A3B}}
        cluster: {pools: [{gpu: h200, nodes: 1}]}
        objective: {minimize: imbalance}
        options: {ep: 4, slots_per_rank: 33, loads: loads.npz}""",
    "fleet": """
        cluster: {pools: [{gpu: h100_sxm, nodes: 3}]}
        options:
          window: 6h
          windows: 4
          jobs:
            - name: chat
              curve: [{nodes: 1, units_per_hour: 100}, {nodes: 2, units_per_hour: 180}]
              usd_per_unit: 1.0
              load: {rates_per_s: [0.01, 0.05, 0.03, 0.02]}
            - {name: batch, curve: [{nodes: 1, units_per_hour: 5}, {nodes: 2, units_per_hour: 10}], usd_per_unit: 2}""",
    "place": """
        models: {m: {name: Qwen/Qwen3-8B}}
        cluster: {pools: [{gpu: h100_sxm, gpus: 2}]}
        workloads:
          - {input_tokens: 512, output_tokens: 32, load: {rate: 20/s, arrival_cv: 3}, slo: {latency: {p1: 60s}}}
        objective: {maximize: attainment}
        options: {simulated_requests: 200, max_batch: 2}""",
    "workflow": """
        models: {m: {name: Qwen/Qwen3-0.6B}}
        cluster: {pools: [{gpu: h100_sxm, gpus: 2, price: 2.50USD/h}]}
        workloads: [{input_tokens: 512, output_tokens: 16, load: {rate: 4/s}, slo: {latency: {p90: 2s}}}]
        objective: {minimize: cost}
        options:
          simulated_requests: 200
          stages:
            - {name: f, options: [{name: a, latency: {mean: 100ms, cv: 0.5}, servers: [1, 2], price: 0.50USD/h}]}
            - name: s
              after: [f]
              serve:
                limits_s: [1.0]
                options: {modes: [colocated], tp: [1], pp: [1], max_batch: [16], chunk_tokens: [2048]}""",
    "workflow/servers": """
        options:
          servers: {slots: [3, 3], most_members: 2, memory_speedup: 10}
          stages:
            - {name: a, work: {computes: {split: 2s, whole: 100ms}, reads: {split: 1s}, writes: {split: 3s, whole: 1s}}}
            - {name: b, after: [a], work: {computes: {split: 1s}, reads: {split: 4s, whole: 2s}, writes: {split: 1s}}}
            - {name: c, after: [b], work: {reads: {split: 1s, whole: 300ms}, one_function: 2s}}""",
    "workflow/engines": """
        options:
          engines:
            queries_s: [0, 0.1]
            primitives: {p: {engine: e, setup: 50ms, each: 20ms, most_members: 2}, q: {engine: f, setup: 0.2s}}
          stages: [{name: a, primitive: p}, {name: b, after: [a], primitive: q}]""",
    "workflow/functions": """
        workloads: [{load: {rate: 2/s}, slo: {latency: {p90: 8s}}}]
        objective: {minimize: cost}
        options:
          stages:
            - name: a
              options:
                - {name: s, latency: {samples_s: [3, 4]}, usd_per_call: 0.001}
                - {name: t, latency: {samples_s: [1, 2]}, usd_per_call: 0.002}
            - name: b
              after: [a]
              options:
                - name: m
                  latency:
                    transfers:
                      buffer: 10GB
                      clusters:
                        - {name: x, transfer: 2s, compute: 1s, size: 6GB}
                        - {name: y, transfer: 1s, compute: 2s, size: 3GB}""",
}

TWO_POOLS = "cluster={pools: [{gpu: h100_sxm, gpus: 2}, {gpu: h200, gpus: 2}], links: [%s]}"
TWO_MODELS = "models={m: {name: Qwen/Qwen3-8B}, n: {name: Qwen/Qwen3-4B}}"
LINK = "{pools: [h100_sxm, h200], bandwidth: 10GB/s}"
ONE_NODE, TWO_NODES = "cluster.pools=[{gpu: h100_sxm, nodes: 1}]", "cluster.pools=[{gpu: h100_sxm, nodes: 2}]"
NAMED = TWO_NODES + " ; cluster.pools.0.out_of_service=[a] ; cluster.pools.0.node_names=[%s]"

TALKS = (
    "workloads.0.input_tokens={trace: talks.csv} ; workloads.0.output_tokens={trace: talks.csv} ; "
    "workloads.0.load={rate: 8.5/s} ; cluster.pools.0.price=3USD/h ; objective={minimize: cost} ; options.tp=[1] ; "
    "options.judged_by=queueing ; cache={tiers: [{name: host, unit: 1GB, max_units: 4, usd_per_gb_hour: 0.01, "
    "bandwidth: 4GB/s}]}"
)
"""Conversations, and memory for their prompts."""


def _carried(config: str) -> str:
    """A model of the base problem in place of which another is written out."""
    return f"models={json.dumps({'m': {'config': 'own', 'contents': SMALL_CONFIGS[config]}})}"


DEVICES: dict[str, Case] = {
    "models.*.name": ("", "models.m.name=Qwen/Qwen3-1.7B"),
    "models.*.config": ("models={m: {config: dense-8}}", "models={m: {config: dense-12}}"),
    "models.*.contents": (_carried("dense-8"), _carried("dense-12")),
    "cluster.pools.*.gpu": ("", "cluster.pools.0.gpu=a100_sxm"),
    "cluster.pools.*.name": ("", "cluster.pools.0.name=hall"),
    "cluster.pools.*.nodes": (ONE_NODE, TWO_NODES),
    "cluster.pools.*.gpus": (
        "cluster.pools=[{gpu: h100_sxm, gpus: 4}]",
        "cluster.pools=[{gpu: h100_sxm, gpus: 8}]",
    ),
    "cluster.pools.*.gpus_per_node": (
        TWO_NODES + " ; cluster.pools.0.gpus_per_node=2",
        TWO_NODES + " ; cluster.pools.0.gpus_per_node=4",
    ),
    "cluster.pools.*.out_of_service": (TWO_NODES, TWO_NODES + " ; cluster.pools.0.out_of_service=[0]"),
    "cluster.pools.*.node_names": (NAMED % "a, b", NAMED % "b, a"),
}


def _limits(time: str) -> dict[str, Case]:
    """Limits on a time of requests, by statistic, each so tight that it binds."""
    statistics = ("mean", "p50", "p90", "p95", "p99")
    tight = {
        "tpot": ("12ms",) * 5, "itl": ("12ms", "9ms", "12ms", "12ms", "12ms"), "latency": ("1.6s",) * 5,
        "ttft": ("66ms", "66ms", "75ms", "80ms", "90ms"),
    }[time]  # fmt: skip
    return {
        f"workloads.*.slo.{time}.{name}_s": (
            f"workloads.0.slo={{{time}: {{{name}: 60s}}}}",
            f"workloads.0.slo={{{time}: {{{name}: {limit}}}}}",
        )
        for name, limit in zip(statistics, tight, strict=True)
    }


def _lengths(side: str) -> dict[str, Case]:
    field = f"workloads.0.{side}"
    return {
        f"workloads.*.{side}": (f"{field}=400", f"{field}=500"),
        f"workloads.*.{side}.low": (f"{field}={{low: 100, high: 900}}", f"{field}={{low: 500, high: 900}}"),
        f"workloads.*.{side}.high": (f"{field}={{low: 100, high: 900}}", f"{field}={{low: 100, high: 990}}"),
        f"workloads.*.{side}.mean": (f"{field}={{mean: 100, cv: 1}}", f"{field}={{mean: 120, cv: 1}}"),
        f"workloads.*.{side}.cv": (f"{field}={{mean: 100, cv: 1}}", f"{field}={{mean: 100, cv: 2}}"),
        f"workloads.*.{side}.shape": (f"{field}={{shape: sharegpt}}", f"{field}={{shape: azure-code}}"),
    }


MINUTE = "options.stages.1.serve.limits_s=[60.0] ; workloads.0.slo={latency: {p90: 60s}}"
BOTH_SERVED = (
    "models={m: {name: Qwen/Qwen3-0.6B}, n: {name: Qwen/Qwen3-1.7B}} ; workloads.0.model=%s"
    " ; options.stages.0={name: f, serve: {model: %s, limits_s: [1.0], options: {modes: [colocated], tp: [1], pp: [1],"
    " max_batch: [16], chunk_tokens: [2048]}}}"
)


def _priced(case: Case) -> Case:
    """The same pools with a price."""
    first, second = (text.replace("{gpu: h100_sxm,", "{gpu: h100_sxm, price: 2USD/h,") for text in case)
    return first, second


def _unhurried(case: Case) -> Case:
    """The same changes where requests and stages have a minute."""
    first, second = (f"{text} ; {MINUTE}" if text else MINUTE for text in case)
    return first, second


PICTURED = (
    "workloads.0.slo={ttft: {p90: 60s}, tpot: {%s}} ; cluster.pools=[{name: a, gpu: h100_sxm, gpus: 8, price: 2USD/h}]"
    " ; options={simulated_requests: 200, images: {shares: [0.5, 0.5], image_tokens: 100, most_replicas: 2,"
    " prefill: [{name: p, encode_base_s: 0.001}], decode: [{name: d, slots: 4, step_s: 0.001}]}}"
)


def _whole_limits(time: str) -> dict[str, Case]:
    """Percentiles that anything and nothing keeps; of means there is no share of requests."""
    cases: dict[str, Case] = {
        f"workloads.*.slo.{time}.{name}_s": (
            f"workloads.0.slo={{{time}: {{{name}: 60s}}}}",
            f"workloads.0.slo={{{time}: {{{name}: 1ms}}}}",
        )
        for name in ("p50", "p90", "p95", "p99")
    }
    return cases | {f"workloads.*.slo.{time}.mean_s": (f"workloads.0.slo={{{time}: {{mean: 60s}}}}", REFUSED)}


def _refused_traces(side: str) -> dict[str, Case]:
    """Streams are drawn, and a trace is one stream."""
    field = f"workloads.0.{side}"
    return {
        f"workloads.*.{side}.trace": (f"{field}={{trace: a.csv}}", REFUSED),
        f"workloads.*.{side}.column": (f"{field}={{trace: a.csv, column: other}}", REFUSED),
    }


def _traced(side: str) -> dict[str, Case]:
    field = f"workloads.0.{side}"
    return {
        f"workloads.*.{side}.trace": (f"{field}={{trace: a.csv}}", f"{field}={{trace: b.csv}}"),
        f"workloads.*.{side}.column": (f"{field}={{trace: a.csv}}", f"{field}={{trace: a.csv, column: other}}"),
    }


SEEING = "models.m.name=Qwen/Qwen3-VL-4B-Instruct ; workloads.0.images="
HEARING = (
    "models.m.name=Qwen/Qwen2-Audio-7B-Instruct ; options.tp=[1] ; options.max_batch=[8]"
    " ; workloads.0.input_tokens=2000 ; workloads.0.audio_s="
)


def _amounts(path: str, before: str, less: int, after: str = "", spread: str = "") -> dict[str, Case]:
    """Amounts of a request in each of their forms, `less` or twice as much; `spread` is where their spread counts."""

    def case(first: str, second: str, also: str = "") -> Case:
        return f"{before}{first}{after}{also}", f"{before}{second}{after}{also}"

    more = 2 * less
    listed, traced = "{values: [0, %s], shares: [%s]}", "{trace: %s.csv, column: %s}"
    return {
        path: case(f"{less}", f"{more}"),
        f"{path}.mean": case(f"{{mean: {less}}}", f"{{mean: {more}}}"),
        f"{path}.cv": case(f"{{mean: {less}, cv: 1}}", f"{{mean: {less}, cv: 2}}", spread),
        f"{path}.values": case(listed % (less, "0.5, 0.5"), listed % (more, "0.5, 0.5")),
        f"{path}.shares": case(listed % (less, "0.5, 0.5"), listed % (less, "0.4, 0.6")),
        f"{path}.trace": case(traced % ("a", "other"), traced % ("b", "media")),
        f"{path}.column": case(traced % ("b", "other"), traced % ("b", "media")),
    }


APART = "options.modes=[disaggregated] ; cluster.pools=[{gpu: h100_sxm, nodes: 2, gpus_per_node: 1}]"
SHARED = (
    TWO_MODELS
    + " ; workloads=[{name: a, model: %s, input_tokens: 512, output_tokens: 128, share: %s},"
    + " {name: b, model: m, input_tokens: 64, output_tokens: 512}]"
)

WIDE = "cluster.pools=[{gpu: h100_sxm, nodes: 2, gpus_per_node: 1}]"
STAGES = "options.search.pools=stages ; options.search.pp=[2] ; "
SPLIT = "options.arrangements=[disaggregated] ; "
HORIZON = "options.horizon={periods: [{iterations: 2}], generation_change: 9s, training_change: 9s}"

ONE_PASS = "options={simulated_requests: 200, batching: false} ; workloads.0.output_tokens=1"
BOTH_PLACED = (
    TWO_MODELS
    + " ; workloads=[{name: a, model: %s, input_tokens: 512, output_tokens: 32, load: {rate: 10/s},"
    + " slo: {latency: {p1: 500ms}}},"
    + " {name: b, model: %s, input_tokens: 64, output_tokens: 99, load: {rate: 4/s}, slo: {latency: {p1: 1s}}}]"
)


LAYERED = (
    "options={layers: {max_stages: 2}} ; objective={maximize: tokens_per_s_per_gpu}"
    " ; workloads=[{name: a, input_tokens: 512, output_tokens: 32}] ; models.m.name=Qwen/Qwen3-32B"
    " ; cluster={pools: [{gpu: l40s, nodes: 1, gpus_per_node: 1%s}, {gpu: a100_sxm, nodes: 1, gpus_per_node: 1%s}],"
    " links: [%s]}"
)
WIDE_LAYERS = LAYERED.replace("l40s, nodes: 1", "l40s, nodes: 2") % (
    "%s",
    "",
    "{pools: [l40s, a100_sxm], bandwidth: 10GB/s}",
)
UPLINKED = WIDE_LAYERS % ", topology: {racks: %s, uplink: %s}"
ON_RAILS = WIDE_LAYERS % ", topology: {rails: {nodes: %s, oversubscription: %s}}"
ON_RACKS = (
    (FLOORED % "[4]").replace("gpus_per_node: 2", "gpus_per_node: 2, topology: {racks: %s}").replace("racks: [4], ", "")
)
JOINT = "{pools: [l40s, a100_sxm], bandwidth: %s}"


def _placed_limits(time: str, loose: str, tight: str) -> dict[str, Case]:
    """Limits on a time of requests that are on time or not; a mean is of no request."""
    field = f"workloads.0.slo={{{time}: {{%s: %s}}}}"
    stated = {
        f"workloads.*.slo.{time}.{name}_s": (field % (name, loose), field % (name, tight))
        for name in ("p50", "p90", "p95", "p99")
    }
    return {**stated, f"workloads.*.slo.{time}.mean_s": (field % ("mean", loose), REFUSED)}


TIGHT = "cluster.pools.0.nodes=2 ; options.ep=16 ; options.slots_per_rank=8"
AHEAD = (
    "options.arrangements=[colocated, disaggregated] ; options.max_staleness=1"
    " ; options.generation_tp=[1, 2, 4] ; options.training_tp=[1, 2, 4]"
)
REFUSED = "refused by its own rule"
STEPWISE = "options={ep: 2, slots_per_rank: 66, policy: realtime, loads: windows.npz}"


def _wired(options: str) -> dict[str, Case]:
    """Groups of nodes in one scale-up domain, around a node that is out where their rule shows."""

    def joined(links: str, nodes: int = 4, out: str = "1") -> str:
        pool = f"{{gpu: h100_sxm, nodes: {nodes}, gpus_per_node: 1, out_of_service: [{out}]"
        return f"cluster.pools=[{pool}, topology: {{scale_up: {{{links}}}}}}}] ; {options}"

    name, ring = "cluster.pools.*.topology.scale_up", "kind: ring, hops: 1, group: 2"
    return {
        f"{name}.kind": (joined("kind: fixed, group: 2"), joined("kind: switch, group: 2")),
        f"{name}.group": (
            joined("kind: ring, hops: 1, group: 2", out=""),
            joined("kind: ring, hops: 1, group: 3", out=""),
        ),
        f"{name}.hops": (joined(ring), joined("kind: ring, hops: 2, group: 2")),
        f"{name}.unit": (joined("kind: switch, group: 2"), joined("kind: switch, group: 2, unit: 2")),
        f"{name}.bandwidth_bytes_per_s": (joined(ring), joined(ring + ", bandwidth: 1GB/s")),
    }


def _racked(options: str) -> dict[str, Case]:
    """Racks of a node each, or one of both, with uplinks."""

    def racked(topology: str) -> str:
        return f"cluster.pools=[{{gpu: h100_sxm, nodes: 2, gpus_per_node: 1, topology: {{{topology}}}}}] ; {options}"

    name, apart = "cluster.pools.*.topology", "racks: [1, 1], uplink: 1GB/s"
    return {
        f"{name}.racks": (racked(apart), racked("racks: [2], uplink: 1GB/s")),
        f"{name}.uplink_bytes_per_s": (racked(apart), racked("racks: [1, 1], uplink: 100MB/s")),
    }


def _uplinked(rate: str) -> str:
    """Racks of a node each, whose uplinks send new weights."""
    pool = f"{{gpu: h100_sxm, nodes: 2, topology: {{racks: [1, 1], uplink: {rate}}}}}"
    return f"{SPLIT} ; cluster.pools=[{pool}]"


def _switched() -> dict[str, Case]:
    """Racks of a node each, whose circuits send new weights."""

    def joined(racks: str, **changed: str) -> str:
        circuits = {"ports": "2", "link": "10MB/s", "switching": "1s"} | changed
        written = ", ".join(f"{name}: {value}" for name, value in circuits.items())
        pool = f"{{gpu: h100_sxm, nodes: 2, topology: {{racks: {racks}, circuits: {{{written}}}}}}}"
        return f"{SPLIT} ; cluster.pools=[{pool}]"

    name, apart = "cluster.pools.*.topology", joined("[1, 1]")
    return {
        f"{name}.racks": (apart, joined("[2]")),
        f"{name}.circuits.ports": (apart, joined("[1, 1]", ports="1")),
        f"{name}.circuits.link_bytes_per_s": (apart, joined("[1, 1]", link="1MB/s")),
        f"{name}.circuits.switching_s": (apart, joined("[1, 1]", switching="5s")),
    }


def _railed(options: str) -> dict[str, Case]:
    """Rails of a node each, or of both."""

    def railed(rails: str) -> str:
        pool = f"{{gpu: h100_sxm, nodes: 2, gpus_per_node: 1, topology: {{rails: {{{rails}}}}}}}"
        return f"cluster.pools=[{pool}] ; {options}"

    name = "cluster.pools.*.topology.rails"
    return {
        f"{name}.nodes": (railed("nodes: 1, oversubscription: 8"), railed("nodes: 2, oversubscription: 8")),
        f"{name}.oversubscription": (railed("nodes: 1, oversubscription: 8"), railed("nodes: 1, oversubscription: 64")),
    }


READ: dict[str, dict[str, Case]] = {
    "serve": {
        **DEVICES,
        "name": ("", "name=other"),
        "models.*.weights": ("", "models.m.weights=fp8"),
        "models.*.kv_cache": ("", "models.m.kv_cache=fp8"),
        "cluster.pools.*.usd_per_gpu_hour": ("", "cluster.pools.0.price=3USD/h"),
        "cluster.pools.*.fabric": (APART, APART + " ; cluster.pools.0.fabric=hdr200"),
        "cluster.pools.*.nic_bandwidth_bytes_per_s": (APART, APART + " ; cluster.pools.0.nic_bandwidth=1GB/s"),
        "cluster.pools.*.oversubscription": (APART, APART + " ; cluster.pools.0.oversubscription=8"),
        **_wired("options.tp=[2]"),
        **_racked("options={tp: [1], pp: [2]}"),
        **_railed("options={tp: [1], pp: [2]}"),
        "cluster.links.*.bandwidth_bytes_per_s": (
            "options.modes=[disaggregated] ; " + TWO_POOLS % LINK,
            "options.modes=[disaggregated] ; " + TWO_POOLS % LINK.replace("10GB/s", "1GB/s"),
        ),
        "cluster.links.*.latency_s": (
            "options.modes=[disaggregated] ; " + TWO_POOLS % LINK,
            "options.modes=[disaggregated] ; " + TWO_POOLS % LINK.replace("10GB/s", "10GB/s, latency: 1ms"),
        ),
        "cluster.links.*.pools": (
            "options.modes=[disaggregated] ; " + TWO_POOLS % LINK,
            "options.modes=[disaggregated] ; " + TWO_POOLS % "",
        ),
        "availability.level": ("", "availability=n+1"),
        "availability.per": (TWO_NODES + " ; availability.per=role", TWO_NODES + " ; availability.per=node"),
        "workloads.*.name": ("", "workloads.0.name=other"),
        "workloads.*.model": (SHARED % ("m", 1), SHARED % ("n", 1)),
        "workloads.*.share": (SHARED % ("n", 1), SHARED % ("n", 3)),
        **_lengths("input_tokens"),
        **_lengths("output_tokens"),
        **_traced("input_tokens"),
        **_traced("output_tokens"),
        **_amounts("workloads.*.images.count", f"{SEEING}{{tokens: 2, count: ", 8, "}", f" ; {SIMULATED}"),
        **_amounts("workloads.*.audio_s", HEARING, 30),
        "workloads.*.images.tokens": (f"{SEEING}{{tokens: 64}}", f"{SEEING}{{tokens: 32}}"),
        "workloads.*.images.width": (f"{SEEING}{{width: 256, height: 256}}", f"{SEEING}{{width: 512, height: 256}}"),
        "workloads.*.images.height": (f"{SEEING}{{width: 256, height: 256}}", f"{SEEING}{{width: 256, height: 512}}"),
        "workloads.*.prefix_hits": ("", "workloads.0.prefix_hits=50%"),
        "workloads.*.load.rate_per_s": ("workloads.0.load={rate: 2/s}", "workloads.0.load={rate: 3/s}"),
        "workloads.*.load.concurrency": ("workloads.0.load={concurrency: 2}", "workloads.0.load={concurrency: 3}"),
        "workloads.*.load.arrival_cv": (
            "workloads.0.load={rate: 8.5/s}",
            "workloads.0.load={rate: 9/s, arrival_cv: 3}",
        ),
        **_limits("ttft"),
        **_limits("tpot"),
        **_limits("itl"),
        **_limits("latency"),
        "workloads.*.slo.attainment": (
            "workloads.0.slo={ttft: {p50: 80ms}, attainment: 90%}",
            "workloads.0.slo={ttft: {p50: 80ms}, attainment: 95%}",
        ),
        "workloads.*.slo.confidence": ("", "workloads.0.slo.confidence=90%"),
        "engine.name": ("", "engine.name=sglang"),
        "engine.version": ("engine={name: trtllm}", "engine={name: trtllm, version: 1.0.0}"),
        "engine.memory_utilisation": ("", "engine.memory_utilisation=0.5"),
        "engine.max_context_tokens": ("", "engine.max_context_tokens=2000"),
        "engine.async_scheduling": ("", "engine.async_scheduling=false"),
        "cache.tiers.*.name": (TALKS, f"{TALKS} ; cache.tiers.0.name=ssd"),
        "cache.tiers.*.unit_bytes": (TALKS, f"{TALKS} ; cache.tiers.0.unit=2GB"),
        "cache.tiers.*.max_units": (TALKS, f"{TALKS} ; cache.tiers.0.max_units=0"),
        "cache.tiers.*.usd_per_gb_hour": (TALKS, f"{TALKS} ; cache.tiers.0.usd_per_gb_hour=0.02"),
        "cache.tiers.*.bandwidth_bytes_per_s": (TALKS, f"{TALKS} ; cache.tiers.0.bandwidth=1GB/s"),
        "cache.tiers.*.request_bandwidth_bytes_per_s": (TALKS, f"{TALKS} ; cache.tiers.0.request_bandwidth=3GB/s"),
        "cache.window_s": (TALKS, f"{TALKS} ; cache.window=1s"),
        "cache.block_tokens": (TALKS, f"{TALKS} ; cache.block_tokens=256"),
        "engine.host_cache_bytes_per_gpu": (
            "workloads.0.prefix_hits=50%",
            "workloads.0.prefix_hits=50% ; engine.host_cache=8GB",
        ),
        "costs.profiles": ("", "costs.profiles=[profiles]"),
        "costs.calibration": ("", "costs.calibration=none"),
        "objective.maximize": ("", "objective.maximize=tokens_per_s_per_gpu"),
        "objective.minimize": (
            "workloads.0.load={rate: 1/s} ; objective={minimize: gpus}",
            "workloads.0.load={rate: 1/s} ; cluster.pools.0.price=3USD/h ; objective={minimize: cost}",
        ),
        "objective.pareto": ("", "objective={pareto: [tokens_per_s_per_gpu, tokens_per_s_per_user]}"),
        "objective.expected": ("", "objective.expected=true"),
        "limits.gpus": ("", "limits.gpus=1"),
        "limits.usd_per_hour": (
            "cluster.pools.0.price=3USD/h",
            "cluster.pools.0.price=3USD/h ; limits.price=4USD/h",
        ),
        "seed": (SIMULATED + " ; seed=1", SIMULATED + " ; seed=2"),
    },
    "train": {
        **DEVICES,
        "name": ("", "name=other"),
        "cluster.pools.*.fabric": (WIDE, WIDE + " ; cluster.pools.0.fabric=hdr200"),
        "cluster.pools.*.nic_bandwidth_bytes_per_s": (WIDE, WIDE + " ; cluster.pools.0.nic_bandwidth=1GB/s"),
        "cluster.pools.*.oversubscription": (WIDE, WIDE + " ; cluster.pools.0.oversubscription=8"),
        **_wired("options.search={tp: 2, pp: 1, cp: 1}"),
        **_racked("options.search={tp: 1, pp: 1, dp: 2, cp: 1, zero_stage: 1, micro_batch: 1}"),
        "cluster.links.*.pools": (STAGES + TWO_POOLS % LINK, STAGES + TWO_POOLS % ""),
        "cluster.links.*.bandwidth_bytes_per_s": (
            STAGES + TWO_POOLS % LINK,
            STAGES + TWO_POOLS % LINK.replace("10GB/s", "1GB/s"),
        ),
        "cluster.links.*.latency_s": (
            STAGES + TWO_POOLS % LINK,
            STAGES + TWO_POOLS % LINK.replace("10GB/s", "10GB/s, latency: 1ms"),
        ),
        "costs.profiles": ("", "costs.profiles=[profiles]"),
        "costs.calibration": ("", "costs.calibration=none"),
        "engine.name": ("engine.name=megatron-lm", "engine.name=torchtitan"),
        "engine.version": ("engine.name=megatron-lm", 'engine={name: megatron-lm, version: "0.1"}'),
        "objective.maximize": ("", "objective={maximize: tokens_per_s_per_gpu}"),
        "objective.minimize": ("", "objective={maximize: tokens_per_s_per_gpu}"),
        "limits.gpus": ("", "limits.gpus=4"),
    },
    "rl": {
        **DEVICES,
        "name": ("", "name=other"),
        "models.*.weights": ("", "models.m.weights=fp8"),
        "models.*.kv_cache": ("", "models.m.kv_cache=fp8"),
        "cluster.pools.*.usd_per_gpu_hour": (
            "objective.minimize=cost ; cluster.pools.0.price=2USD/h",
            "objective.minimize=cost ; cluster.pools.0.price=3USD/h",
        ),
        "cluster.pools.*.topology.uplink_bytes_per_s": (_uplinked("1GB/s"), _uplinked("10MB/s")),
        **_switched(),
        "cluster.pools.*.fabric": (TWO_NODES, TWO_NODES + " ; cluster.pools.0.fabric=hdr200"),
        "cluster.pools.*.nic_bandwidth_bytes_per_s": (TWO_NODES, TWO_NODES + " ; cluster.pools.0.nic_bandwidth=1GB/s"),
        "cluster.links.*.pools": (SPLIT + TWO_POOLS % LINK, SPLIT + TWO_POOLS % ""),
        "cluster.links.*.bandwidth_bytes_per_s": (
            SPLIT + TWO_POOLS % LINK,
            SPLIT + TWO_POOLS % LINK.replace("10GB/s", "1GB/s"),
        ),
        "cluster.links.*.latency_s": (
            SPLIT + TWO_POOLS % LINK,
            SPLIT + TWO_POOLS % LINK.replace("10GB/s", "10GB/s, latency: 100ms"),
        ),
        "workloads.*.model": ("workloads.0.model=m", TWO_MODELS + " ; options.actor=m ; workloads.0.model=n"),
        **_lengths("input_tokens"),
        **_lengths("output_tokens"),
        **{
            name: (case[0], REFUSED)
            for side in ("input_tokens", "output_tokens")
            for name, case in _traced(side).items()
        },
        "engine.name": ("", "engine.name=sglang"),
        "engine.version": ("engine={name: trtllm}", "engine={name: trtllm, version: 1.0.0}"),
        "engine.memory_utilisation": ("", "engine.memory_utilisation=0.5"),
        "costs.profiles": ("", "costs.profiles=[profiles]"),
        "costs.calibration": ("", "costs.calibration=none"),
        "objective.maximize": (
            "cluster.pools.0.price=2USD/h",
            "cluster.pools.0.price=2USD/h ; objective={maximize: tokens_per_usd}",
        ),
        "objective.minimize": (
            "cluster.pools.0.price=2USD/h",
            "cluster.pools.0.price=2USD/h ; objective={minimize: cost}",
        ),
        "limits.gpus": ("", "limits.gpus=4"),
        "current": (HORIZON, HORIZON + " ; current=plan.json"),
        "seed": ("seed=1", "seed=2"),
    },
    "experts": {
        **_wired(STEPWISE),
        **_racked(STEPWISE),
        **_railed(STEPWISE),
        "name": ("", "name=other"),
        "models.*.name": ("", "models.m.name=Qwen/Qwen3-30B-A3B-FP8"),
        "models.*.config": ("models={m: {config: experts-512}}", "models={m: {config: experts-768}}"),
        "models.*.contents": (_carried("experts-512"), _carried("experts-768")),
        "models.*.weights": ("", "models.m.weights=fp8"),
        "cluster.pools.*.gpu": ("", "cluster.pools.0.gpu=h100_sxm"),
        "cluster.pools.*.name": ("", "cluster.pools.0.name=hall"),
        "cluster.pools.*.nodes": (
            "",
            "cluster.pools.0={gpu: h200, nodes: 2} ; options.ep=16 ; options.slots_per_rank=10",
        ),
        "cluster.pools.*.gpus": ("cluster.pools=[{gpu: h200, gpus: 4}]", "cluster.pools=[{gpu: h200, gpus: 2}]"),
        "cluster.pools.*.gpus_per_node": (
            "cluster.pools=[{gpu: h200, nodes: 2, out_of_service: [0]}]",
            "cluster.pools=[{gpu: h200, nodes: 2, out_of_service: [0], gpus_per_node: 4}]",
        ),
        "cluster.pools.*.node_names": (
            "cluster.pools=[{gpu: h200, nodes: 2, out_of_service: [a], node_names: [a, b]}]",
            "cluster.pools=[{gpu: h200, nodes: 2, out_of_service: [a], node_names: [b, a]}]",
        ),
        "cluster.pools.*.out_of_service": (
            "cluster.pools=[{gpu: h200, nodes: 2}]",
            "cluster.pools=[{gpu: h200, nodes: 2, out_of_service: [0]}]",
        ),
        "engine.name": ("", "engine.name=sglang"),
        "engine.version": ("", "engine.version=v1"),
        "engine.memory_utilisation": ("", "engine.memory_utilisation=0.5"),
        "objective.minimize": ("", "objective={minimize: gpus}"),
        "seed": (TIGHT + " ; seed=1", TIGHT + " ; seed=2"),
    },
    "fleet": {
        **{name: case for name, case in DEVICES.items() if name.startswith("cluster.")},
        "name": ("", "name=other"),
        "cluster.pools.*.usd_per_gpu_hour": ("", "cluster.pools.0.price=2USD/h"),
        "cluster.pools.*.fabric": (TRAINED, TRAINED + " ; cluster.pools.0.fabric=ib_ndr"),
        "cluster.pools.*.nic_bandwidth_bytes_per_s": (TRAINED, TRAINED + " ; cluster.pools.0.nic_bandwidth=1GB/s"),
        "cluster.pools.*.oversubscription": (TRAINED, TRAINED + " ; cluster.pools.0.oversubscription=40"),
    },
    "place": {
        **DEVICES,
        "cluster.pools.*.topology.racks": (ON_RACKS % "[1, 1, 2]", ON_RACKS % "[2, 2]"),
        "cluster.pools.*.topology.uplink_bytes_per_s": (UPLINKED % ("[1, 1]", "1GB/s"), UPLINKED % ("[1, 1]", "1MB/s")),
        "cluster.pools.*.topology.rails.nodes": (ON_RAILS % (1, 9999), ON_RAILS % (2, 9999)),
        "cluster.pools.*.topology.rails.oversubscription": (ON_RAILS % (1, 9), ON_RAILS % (1, 9999)),
        "name": ("", "name=other"),
        "models.*.weights": ("", "models.m.weights=fp8"),
        "models.*.kv_cache": ("", "models.m.kv_cache=fp8"),
        "workloads.*.name": ("", "workloads.0.name=other"),
        "workloads.*.model": (BOTH_PLACED % ("m", "n"), BOTH_PLACED % ("n", "m")),
        **_lengths("input_tokens"),
        **_lengths("output_tokens"),
        **_traced("input_tokens"),
        **_traced("output_tokens"),
        "workloads.*.load.rate_per_s": ("workloads.0.load={rate: 60/s}", "workloads.0.load={rate: 50/s}"),
        "workloads.*.load.arrival_cv": ("", "workloads.0.load.arrival_cv=2"),
        **_placed_limits("ttft", "60s", "1ms"),
        **_placed_limits("tpot", "60s", "1ms"),
        **_placed_limits("latency", "60s", "1ms"),
        "workloads.*.slo.attainment": (
            "workloads.0.slo={latency: {p1: 300ms}, attainment: 1%}",
            "workloads.0.slo={latency: {p1: 300ms}, attainment: 99.9%}",
        ),
        "engine.name": ("", "engine.name=sglang"),
        "engine.version": ("engine={name: trtllm}", "engine={name: trtllm, version: 1.0.0}"),
        "engine.memory_utilisation": ("", "engine.memory_utilisation=0.5"),
        "costs.calibration": ("", "costs.calibration=none"),
        "objective.maximize": ("", "objective={maximize: goodput_per_gpu}"),
        "objective.minimize": ("", "objective={minimize: gpus}"),
        "limits.gpus": ("", "limits.gpus=1"),
        "seed": ("seed=1", "seed=2"),
        "cluster.pools.*.nic_bandwidth_bytes_per_s": (
            LAYERED % ("", "", ""),
            LAYERED % (", nic_bandwidth: 1MB/s", "", ""),
        ),
        "cluster.pools.*.usd_per_gpu_hour": (
            MIXED % (3, 3, 2, 1, 1, 0),
            (MIXED % (3, 3, 2, 1, 1, 0)).replace("1.9", "3"),
        ),
        "cluster.links.*.pools": (LAYERED % ("", "", ""), LAYERED % ("", "", JOINT % "1MB/s")),
        "cluster.links.*.bandwidth_bytes_per_s": (
            LAYERED % ("", "", JOINT % "1MB/s"),
            LAYERED % ("", "", JOINT % "2MB/s"),
        ),
        "cluster.links.*.latency_s": (
            LAYERED % ("", "", JOINT % "1MB/s"),
            LAYERED % ("", "", JOINT.replace("%s", "1MB/s, latency: 1ms")),
        ),
    },
    "workflow": {
        **{name: _priced(case) for name, case in DEVICES.items()},
        "name": ("", "name=other"),
        "models.*.weights": ("", "models.m.weights=fp8"),
        "models.*.kv_cache": ("", "models.m.kv_cache=fp8"),
        "cluster.pools.*.usd_per_gpu_hour": ("", "cluster.pools.0.price=3USD/h"),
        "workloads.*.name": ("", "workloads.0.name=other"),
        "workloads.*.model": (BOTH_SERVED % ("m", "n"), BOTH_SERVED % ("n", "m")),
        **_lengths("input_tokens"),
        **{name: _unhurried(case) for name, case in _lengths("output_tokens").items()},
        **_refused_traces("input_tokens"),
        **_refused_traces("output_tokens"),
        "workloads.*.load.rate_per_s": ("workloads.0.load={rate: 6/s}", "workloads.0.load={rate: 5/s}"),
        "workloads.*.load.arrival_cv": ("", "workloads.0.load.arrival_cv=2"),
        **_whole_limits("ttft"),
        **_whole_limits("latency"),
        **{
            f"workloads.*.slo.tpot.{name}_s": (PICTURED % f"{name}: 60s", PICTURED % f"{name}: 1us")
            for name in ("p50", "p90", "p95", "p99")
        },
        "workloads.*.slo.tpot.mean_s": (PICTURED % "mean: 60s", REFUSED),
        "engine.name": ("", "engine.name=sglang"),
        "engine.version": ("engine={name: trtllm}", "engine={name: trtllm, version: 1.0.0}"),
        "engine.memory_utilisation": ("", "engine.memory_utilisation=0.5"),
        "costs.calibration": ("", "costs.calibration=none"),
        "objective.minimize": ("", "objective={minimize: gpus}"),
        "limits.gpus": ("", "cluster.pools.0.gpus=8 ; options.stages.1.serve.options.tp=[4] ; limits.gpus=1"),
        "limits.usd_per_hour": ("", "limits.price=0.10USD/h"),
        "seed": ("seed=1", "seed=2"),
    },
}
