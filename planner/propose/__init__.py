"""Which benchmark runs settle a serving decision, and what they settled."""
