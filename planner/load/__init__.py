"""From files to problems and plans: read, override, validate, look every name up."""
