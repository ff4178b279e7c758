"""Two plans of every option of problems of expert layouts."""

from problem_changes import Case, apart

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
