"""A plan's nodes and racks in the forms that schedulers read: Slurm, Kueue, and labels of nodes."""
