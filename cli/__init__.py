"""The `planner` command line: typer verbs that parse arguments, call the library and print."""
