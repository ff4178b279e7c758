"""Emits RL plans for RL frameworks: verl, slime, OpenRLHF, NeMo-RL, AReaL."""
