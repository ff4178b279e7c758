"""Plans over time: the passes of a training pipeline, the phases of an RL iteration, steps predicted and measured."""
