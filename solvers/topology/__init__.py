"""Topology as mathematics: groups on healthy nodes, faults replayed, exchanges, racks and circuits."""
