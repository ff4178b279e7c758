"""What RL problems ask for and cannot have."""
