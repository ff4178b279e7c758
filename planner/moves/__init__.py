"""The moves from a plan that runs to another: copies of models brought and dropped, in an order that has room."""
