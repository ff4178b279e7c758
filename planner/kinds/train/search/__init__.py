"""The best training plan: best-first branch and bound, layer-wise strategies, limits in conflict."""
