"""One package per plan kind (serve, train, rl, experts, place); `registry` finds them, and no kind knows another."""
