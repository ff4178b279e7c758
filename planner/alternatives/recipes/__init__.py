"""Public recipes: settings that others published, with their sources, and the one nearest to a plan of each kind."""
