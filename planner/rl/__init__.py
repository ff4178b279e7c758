"""RL post-training on GPUs: rollout and training split or colocated; simulated rollouts, exact search.

Costs enter as curves (`problem.py`), so that any cost model can state a problem.
"""
