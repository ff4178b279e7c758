"""One training plan priced: layers on stages, the pipeline simulated, memory of each rank."""
