"""Measure the cost of MoE verification once, honestly; then verify only what pays."""

__version__ = "0.1.0"
