"""Measure cells: what to measure next, for how long, and where it is kept."""
