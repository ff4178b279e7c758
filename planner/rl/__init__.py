"""RL post-training: who generates, who trains, when each starts; exact evaluation, exact search, rollouts simulated.

Costs enter as curves (`problem.py`), so that any cost model can state a problem.
"""
