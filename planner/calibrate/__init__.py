"""Parameters of the cost model refitted on what was measured, and readers of what others measured."""
