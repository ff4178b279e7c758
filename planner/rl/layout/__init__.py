"""Where the roles of a plan lie in its pools, for one plan and for all trainings of a search at once."""
