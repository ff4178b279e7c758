"""The check of a plan on a running engine: started or reached, driven with the plan's workload, measured and judged."""
