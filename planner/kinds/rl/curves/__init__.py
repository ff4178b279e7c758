"""Cost curves of replicas, modelled or as measured: those that generate, and those that train."""
