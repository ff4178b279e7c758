"""Plan kind `rl`: RL post-training (PPO, GRPO ...): which GPUs generate, which train, and how both overlap."""

from planner.kinds.registry import Kind
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.options import RlOptions
from planner.kinds.rl.reads import READS

KIND = Kind(
    name="rl",
    purpose="placement and schedule of generation and training in RL post-training",
    options=RlOptions,
    decision=RlDecision,
    reads=READS,
    proofs=("best_first", "horizon"),
    searched=("best_first", "horizon"),
    stated=True,
)
