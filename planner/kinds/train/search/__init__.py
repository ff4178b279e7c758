"""Search for the best training plan: branch and bound, layer-wise strategies, limits in conflict."""
