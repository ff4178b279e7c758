"""Options that `planner check --level execute` and `planner execute` share."""

from typing import Annotated

import typer

EXECUTE = "Level execute"

Roles = Annotated[
    str | None, typer.Option("--roles", metavar="NAMES", help="Roles, by commas; all.", rich_help_panel=EXECUTE)
]
Device = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="cpu or cuda; that at hand.", rich_help_panel=EXECUTE)
]
Nproc = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Ranks at a time; one a device.", rich_help_panel=EXECUTE)
]
CutSteps = Annotated[
    str | None,
    typer.Option("--cut", metavar="BOUNDS", help="Make steps smaller: layers=2,batch=4.", rich_help_panel=EXECUTE),
]
TimeLimit = Annotated[
    str | None, typer.Option("--time-limit", metavar="TIME", help="For the whole run, 10min.", rich_help_panel=EXECUTE)
]
CalibrationFile = Annotated[
    str | None,
    typer.Option("--calibration", metavar="FILE", help="Parameters of the cost model.", rich_help_panel=EXECUTE),
]
ExecuteProfiles = Annotated[
    list[str] | None,
    typer.Option("--profiles", metavar="PATH", help="Kernel tables; repeatable.", rich_help_panel=EXECUTE),
]
