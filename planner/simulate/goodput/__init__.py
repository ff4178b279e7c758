"""The highest rate that keeps every limit: fleets compared by simulation, under bounds by work alone."""
