"""One package per plan kind; `registry` finds them, and no kind knows another."""
