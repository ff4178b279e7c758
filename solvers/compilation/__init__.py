"""How inner loops are compiled by numba: functions that are inlined into what calls them."""
