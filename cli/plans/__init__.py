"""Verbs on plans: init, solve, show, explain, check, diff, emit, execute, schema."""
