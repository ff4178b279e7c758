"""What a run needs beyond one step: input lengths, batch ramps, checkpoints."""
