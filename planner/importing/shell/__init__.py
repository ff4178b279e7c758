"""Shell scripts followed without running them: words, conditions, statements, and the ways through a script."""
