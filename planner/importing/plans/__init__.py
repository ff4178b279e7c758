"""What was read as problems and plans: a module a kind."""
