"""Analytical cost model: architecture x hardware x parallelism to seconds and bytes of a step, vectorised."""
