"""Why a serving problem has no plan: limits that cannot hold together, and options that leave no shape."""
