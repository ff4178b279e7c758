"""Launch files of training frameworks."""
