"""`planner experts`: expert placement and replication for MoE models; its input and its reports."""
