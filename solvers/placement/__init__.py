"""Models, their layers and their adapters on groups of unequal devices, and the moves from one placement to another."""
