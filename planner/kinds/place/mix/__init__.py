"""How many instances of each GPU type serve a bucketed workload at least cost (Mélange), by measured rates."""
