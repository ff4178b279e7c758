"""Copies between arrays of equal shapes, and within one, element by element (numba).

numba's own `into[:] = source` brings a message for shapes that differ, and all of its strings to compile.
"""

from planner.solvers.compilation.parts import part


@part
def copy_row(source, into):
    for n in range(len(source)):
        into[n] = source[n]


@part
def copy_rows(source, into):
    for r in range(len(source)):
        for n in range(source.shape[1]):
            into[r, n] = source[r, n]


@part
def move_item(row, source, target):
    """Takes what stands at `source` out of the row and puts it at `target`."""
    taken = row[source]
    if source < target:
        for n in range(source, target):
            row[n] = row[n + 1]
    else:
        for n in range(source, target, -1):
            row[n] = row[n - 1]
    row[target] = taken
