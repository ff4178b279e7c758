"""What arrives: request streams as arrays, arrival processes, traces and their statistics."""
