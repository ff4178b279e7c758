"""Hardware descriptions: accelerators, nodes, links, clusters, prices, and measured kernel tables."""
