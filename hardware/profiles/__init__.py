"""Measured kernel tables: import, memory-mapped storage, choice by engine version, interpolation on ragged grids."""
