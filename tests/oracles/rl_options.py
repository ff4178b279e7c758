"""Two plans of every option of RL problems."""

from problem_changes import Case, apart
from serve_options import DRAFTED, HEADS, MTP, STATED

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
    "launcher": apart("", "options.launcher=verl", MANY),
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
