"""Measured kernel tables: import, storage as mapped columns, choice by version, interpolation on ragged grids."""
