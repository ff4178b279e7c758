"""The plan document that a solve returns: one envelope for every kind, readable without pydantic."""
