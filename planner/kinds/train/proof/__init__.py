"""Whether the proof of a training plan holds: its space derived again, its decision priced again."""
