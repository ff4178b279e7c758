"""Plans of a day for the schedulers of clusters, beside the launch files of their jobs."""
