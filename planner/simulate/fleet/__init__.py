"""The simulated fleet: instances with step times and scheduler rules, and how they are operated."""
