"""Serving plans judged by simulation: placements compared on the same draws."""
