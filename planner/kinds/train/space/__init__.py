"""Search space of training: parallelism, schedule, ZeRO, recomputation, and micro-batch costs over it."""
