"""Serving engines as data: one module an engine, of what it is called, started, set and measured by.

Another engine is a module here that `registry` lists, its releases in `planner/engines/NAME.yaml`, rows of what it sets
by itself in `settings.yaml`, and the code that writes for it in `planner/emit/serving/`, listed in
`planner/emit/clusters/engines.py`.
"""
