"""Serving plans chosen by discrete-event simulation: goodput of placements on common random draws."""
