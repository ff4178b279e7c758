"""What a training plan may decide: the discrete space, and what a micro-batch costs in it."""
