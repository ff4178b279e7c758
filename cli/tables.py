"""Says which kernel tables of the machine price serving where none were named."""

import os
from collections.abc import Sequence

from planner.cli.output import say


def say_tables(named: Sequence[str]) -> None:
    """One line for the tables of the machine where nothing else was `named`, or for why they do not serve."""
    from planner.costs.rates.pricer import PROFILES_VARIABLE
    from planner.hardware.profiles.installed import installed_tables

    if named or os.environ.get(PROFILES_VARIABLE):
        return
    installed = installed_tables()
    if installed is None:
        return
    if installed.problem:
        say(f"note: {installed.name} is installed and has {installed.problem}: costs go on without its tables")
        return
    say(f"kernel tables of {installed.name}, which is installed, price serving; `--profiles none` goes without")
