"""Launch scripts of serving engines."""
