"""Expert layouts as the files that engines load."""
