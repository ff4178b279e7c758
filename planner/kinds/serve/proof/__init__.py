"""Whether the proof of a serving plan holds: its model rebuilt and its figures priced again."""
