"""What runs already, in the terms of the search: its instances priced, simulated, and varied by a few settings."""
