"""Layers of one model over unequal nodes (Helix): the problem, aligned stages, moves, spans as a program, bounds."""
