"""`planner experts` and what it reads and prints."""
